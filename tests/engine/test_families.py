"""Families with windows, latents and recurrent states: Transformers' tokens, however work and memory were cut."""

import numpy as np
import pytest
from engines import assert_matches_reference, engine_for, record_logits, request, run
from families import FAMILIES

from headrace.compiler.errors import Unsupported
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.runtime.state_layout import state_layouts

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
# Chunks may end anywhere, which changes the last bits; a token may differ only at a near-tie.
CLOSE = 2e-3


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = FAMILIES[request.param]()
    model.save_pretrained(folder)
    return model, folder


def prompts(count, low, high, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 256, rng.integers(low, high)).tolist() for _ in range(count)]


def compare(engine, model, texts, params=GREEDY):
    logits = record_logits(engine)
    results = run(engine, *[request(i, p, params) for i, p in enumerate(texts)])
    assert_matches_reference(model, texts, results, logits, atol=CLOSE, near=CLOSE)
    return results


def eager(folder, **options):
    return engine_for(folder, executor="eager", **options)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(tiny, chunk):
    model, folder = tiny
    compare(eager(folder, max_batch_tokens=chunk, max_running=1), model, prompts(2, 70, 110))


def test_mixed_batch_of_8(tiny):
    model, folder = tiny
    compare(eager(folder, max_batch_tokens=40), model, prompts(8, 1, 90))


def test_cached_prefix(tiny):
    model, folder = tiny
    engine = eager(folder, max_batch_tokens=32)
    shared = prompts(1, 100, 101)[0]
    compare(engine, model, [shared])
    others = [shared, [*shared[:70], 5, 6, 7], shared[:33]]
    compare(engine, model, others)  # where these part ways states are kept
    results = compare(engine, model, others)
    assert [results[i, 0].cached_tokens for i in range(3)] == [96, 64, 32]


def test_a_conversation_goes_on(tiny):
    """The output of one turn is the prefix of the next."""
    model, folder = tiny
    engine = eager(folder)
    text = prompts(1, 40, 41)[0]
    for turn in range(3):
        results = compare(engine, model, [text])
        assert results[0, 0].cached_tokens >= 32 * bool(turn)
        text = [*text, *results[0, 0].tokens, *prompts(1, 9, 20, seed=turn)[0]]


def test_samples_of_one_prompt_share_it(tiny):
    _, folder = tiny
    engine = eager(folder)
    prompt = prompts(1, 50, 51)[0]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, n=3)
    results = run(engine, request(0, prompt, params))
    assert len({tuple(results[0, n].tokens) for n in range(3)}) == 1
    assert results[0, 0].cached_tokens == 0


def smallest(folder, factor):
    """Bytes that a few short sequences fill."""
    layouts = state_layouts(load_spec(open_checkpoint(folder), "m"), 4)
    return sum(layout.page_bytes * (factor if layout.group.by_token else 4) for layout in layouts)


def test_preemption(tiny):
    model, folder = tiny
    engine = eager(folder, kv_memory=smallest(folder, 14), context_length=130)
    compare(engine, model, prompts(6, 20, 70), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert engine.scheduler.roster.preemptions > 0
    assert engine.stats().pages_used == 0


def test_compiled_code_is_refused_by_name_where_there_is_none(tiny):
    _, folder = tiny
    with pytest.raises(Unsupported, match="cannot compile state at layer"):
        engine_for(folder, executor="compiled")


def test_auto_falls_back(tiny, caplog):
    _, folder = tiny
    assert run(engine_for(folder, executor="auto"), request(0, [5, 6, 7]))[0, 0].tokens
    assert "not compiled, running with PyTorch" in caplog.text


def test_too_little_memory_is_said(tiny):
    _, folder = tiny
    with pytest.raises(InvalidInput) as caught:
        eager(folder, kv_memory=1, context_length=500)
    assert caught.value.field == "kv_memory"
