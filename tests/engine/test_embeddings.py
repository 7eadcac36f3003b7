"""Embeddings equal Transformers' hidden vectors, and depend on nothing but their own prompt."""

import engines
import numpy as np
import pytest
from byte_engines import byte_engine
from engines import engine_for, reference_embedding, request, run
from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONFIGS, make

from headrace.engine.sampling_params import SamplingParams
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup

CLOSE = 2e-5
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
POOLINGS = ("mean", "last")


def prompts(count, low, high, seed=1, vocab=256):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, rng.integers(low, high)).tolist() for _ in range(count)]


def embed(number, prompt, pooling, **about):
    return request(number, prompt, SamplingParams(), pooling=pooling, **about)


def both_ways(engine, model, texts, close=CLOSE):
    """Embed prompts in both ways, together, beside one that is answered; compare."""
    messages = [embed(2 * i + n, text, pooling) for i, text in enumerate(texts) for n, pooling in enumerate(POOLINGS)]
    results = run(engine, *messages, request(1000, texts[0], GREEDY))
    for i, text in enumerate(texts):
        for n, pooling in enumerate(POOLINGS):
            expected = reference_embedding(model, text, pooling)
            np.testing.assert_allclose(results[2 * i + n, 0].embedding, expected, atol=close, rtol=0)
    assert len(results[1000, 0].tokens) == GREEDY.max_tokens
    assert engine.stats().pages_used == 0
    return results


def saved(model, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    return saved(FAMILIES[request.param](), tmp_path_factory, request.param)


@pytest.fixture(scope="module", params=CONFIGS)
def llama(request, tmp_path_factory):
    return saved(make(request.param), tmp_path_factory, request.param)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return saved(make("llama3"), tmp_path_factory, "llama3")


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_family_of_any_state(family, chunk):
    model, folder = family
    engine = engine_for(folder, executor="eager", max_batch_tokens=chunk)
    both_ways(engine, model, prompts(3, 1, 90), close=2e-3)  # as for tokens: chunks change the last bits


def test_the_llama_line(llama):
    model, folder = llama
    both_ways(engine_for(folder, executor="eager", max_batch_tokens=40), model, prompts(3, 1, 150))


COMPILED = ["llama3", "qwen3"]


@pytest.mark.parametrize(
    "name", [*COMPILED, *(pytest.param(n, marks=pytest.mark.bars) for n in CONFIGS if n not in COMPILED)]
)
def test_compiled(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path)
    engine = engine_for(tmp_path, executor="compiled", recipe="float32", max_batch_tokens=40)
    both_ways(engine, model, prompts(3, 1, 150))


def test_in_bfloat16(tiny):
    model, folder = tiny
    results = run(engine_for(folder, executor="eager", dtype="bfloat16"), embed(0, [5, 6, 7], "mean"))
    expected = reference_embedding(model, [5, 6, 7], "mean")
    np.testing.assert_allclose(results[0, 0].embedding, expected, atol=0.05)


def test_who_is_preempted_begins_anew(tiny):
    model, folder = tiny
    engine = engine_for(folder, executor="eager", pages=8, context_length=100, max_running=2, max_batch_tokens=24)
    (text,) = prompts(1, 90, 91)
    engine.add(embed(0, text, "mean", priority=1))
    for _ in range(3):
        assert engine.step() == []
    results = run(engine, embed(1, text[::-1], "last"))
    assert engine.scheduler.roster.preemptions > 0
    np.testing.assert_allclose(results[0, 0].embedding, reference_embedding(model, text, "mean"), atol=CLOSE)


def test_a_mean_takes_nothing_from_the_cache_and_leaves_its_pages_there(tiny):
    model, folder = tiny
    engine = engine_for(folder, executor="eager")
    (text,) = prompts(1, 100, 101)
    counts = []
    for number, pooling in enumerate(("mean", "mean", "last")):
        result = run(engine, embed(number, text, pooling))[number, 0]
        counts.append(result.cached_tokens)
        np.testing.assert_allclose(result.embedding, reference_embedding(model, text, pooling), atol=CLOSE)
    assert counts == [0, 0, 96]
    assert run(engine, request(9, [*text, 5], GREEDY))[9, 0].cached_tokens == 96
    assert engine.stats().prompt_tokens == 401
    assert engine.stats().output_tokens == GREEDY.max_tokens


def test_stamps(tiny):
    line = run(engine_for(tiny[1], executor="eager"), embed(0, [5, 6], "mean"))[0, 0].finish.timeline
    assert line.queued <= line.first_scheduled <= line.prefill_done == line.last_token
    assert line.first_token is None


def test_a_prompt_may_fill_the_context(tiny):
    model, folder = tiny
    engine = engine_for(folder, executor="eager", pages=4, context_length=64)
    (text,) = prompts(1, 64, 65)
    results = run(engine, embed(0, text, "mean"), embed(1, [*text, 5], "mean"))
    np.testing.assert_allclose(results[0, 0].embedding, reference_embedding(model, text, "mean"), atol=CLOSE)
    assert "the prompt has 65 tokens" in results[1, 0].finish.message


def test_a_prompt_has_one_embedding(tiny):
    engine = engine_for(tiny[1], executor="eager")
    (delta, _) = engine.add(request(0, [5], SamplingParams(n=2), pooling="mean"))
    assert delta.finish.reason == "error"
    assert "one embedding" in delta.finish.message


def test_aborted_or_late_it_holds_nothing(tiny):
    engine = engine_for(tiny[1], executor="eager", max_batch_tokens=8)
    (text,) = prompts(1, 100, 101)
    engine.add(embed(0, text, "mean"))
    engine.step()
    engine.abort([0])
    engine.check()
    assert not engine.has_work
    assert engine.stats().pages_used == 0
    assert run(engine, embed(1, text, "mean", deadline=0.0))[1, 0].finish.reason == "late"


def test_who_fails_alone_is_not_embedded():
    """A batch that fails for one prompt; the others are embedded."""
    full = MemoryGroup(True, PageForm.of(1, [(1, 8)]).in_slabs(144))

    def fault(batch, tokens):
        if 13 in tokens:
            raise RuntimeError("unlucky")

    engine = byte_engine([full], slabs=20, context=60)
    engine.executor.fault = fault
    results = run(engine, *[embed(n, [n + 10, 5, 6], "mean") for n in range(5)])
    assert [n for n in range(5) if results[n, 0].embedding is None] == [3]
    assert "unlucky" in results[3, 0].finish.message


JOBS = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from(["mean", "last", None]), st.integers(-1, 1)), min_size=1, max_size=6
)


@given(JOBS, st.integers(1, 40), st.integers(5, 12), st.integers(1, 4), st.lists(st.integers(0, 5), max_size=2))
@settings(max_examples=25)
def test_any_mix(tiny, jobs, chunk, pages, slots, taken_back):
    """Prompts that share beginnings are embedded and answered in an arena far too small for all."""
    model, folder = tiny
    options = {"max_batch_tokens": chunk, "max_running": slots, "context_length": 76}
    engine = engine_for(folder, executor="eager", pages=pages, **options)
    (text,) = prompts(1, 80, 81)
    for number, (length, pooling, priority) in enumerate(jobs):
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        engine.add(request(number, text[:length], params, pooling=pooling, priority=priority))
    early = {}
    for number in taken_back:
        engines.collect(engine, early, engine.step())
        engine.abort([number])
        engine.check()
    results = run(engine)
    for number, (length, pooling, _) in enumerate(jobs):
        result = results.get((number, 0)) or early.get((number, 0))
        if number in taken_back and (result is None or result.finish is None):
            continue
        if pooling is None:
            continue
        expected = reference_embedding(model, text[:length], pooling)
        np.testing.assert_allclose(result.embedding, expected, atol=CLOSE, rtol=0)
    assert engine.stats().pages_used == 0
