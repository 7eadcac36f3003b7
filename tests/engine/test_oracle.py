"""Tokens and logits equal Transformers', however the work was cut, shared, mixed or interrupted."""

import json

import engines
import numpy as np
import pytest
from engines import assert_matches_reference, engine_for, record_logits, reference_logits, request, run
from tiny import make

from headrace.engine.sampling_params import SamplingParams
from headrace.models.opening import open_checkpoint
from headrace.text.prompt import chat_prompt
from headrace.text.tokenizer import load_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(params=["eager", "compiled"], autouse=True)
def _executor(request, monkeypatch):
    """Each test on both executors, in float32."""
    monkeypatch.setattr(engines, "DEFAULTS", {"executor": request.param, "recipe": "float32"})


@pytest.fixture(scope="module", params=["llama3", "qwen3"])
def tiny(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = make(request.param)
    model.save_pretrained(folder)
    return model, folder


def prompts(count, low, high, vocab=256, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, rng.integers(low, high)).tolist() for _ in range(count)]


def compare(engine, model, texts, params=GREEDY):
    logits = record_logits(engine)
    results = run(engine, *[request(i, p, params) for i, p in enumerate(texts)])
    assert_matches_reference(model, texts, results, logits)
    return results


def test_alone(tiny):
    model, folder = tiny
    for prompt in prompts(3, 1, 120):
        compare(engine_for(folder), model, [prompt])


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(tiny, chunk):
    model, folder = tiny
    compare(engine_for(folder, max_batch_tokens=chunk, max_running=1), model, prompts(2, 100, 150))


def test_mixed_batch_of_8(tiny):
    model, folder = tiny
    compare(engine_for(folder, max_batch_tokens=40), model, prompts(8, 1, 90))


def test_cached_prefix(tiny):
    model, folder = tiny
    engine = engine_for(folder)
    shared = prompts(1, 100, 101)[0]
    compare(engine, model, [shared])
    results = compare(engine, model, [shared, [*shared[:70], 5, 6, 7], shared[:33]])
    assert [results[i, 0].cached_tokens for i in range(3)] == [96, 64, 32]


def test_prefix_of_an_output_is_cached_too(tiny):
    model, folder = tiny
    engine = engine_for(folder)
    first = prompts(1, 40, 41)[0]
    output = compare(engine, model, [first])[0, 0].tokens
    again = first + output + [9]
    assert compare(engine, model, [again])[0, 0].cached_tokens == (len(again) - 2) // 16 * 16


def test_preemption(tiny):
    model, folder = tiny
    engine = engine_for(folder, pages=16, context_length=160)
    compare(engine, model, prompts(6, 20, 70), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert engine.scheduler.roster.preemptions > 0
    assert engine.stats().pages_used == 0


@pytest.mark.parametrize("numerics", ["invariant", "free"])
def test_attention_over_several_blocks_of_positions(tiny, numerics):
    model, folder = tiny
    compare(engine_for(folder, max_batch_tokens=100, numerics=numerics), model, prompts(2, 400, 480))


def test_one_forward_a_step(tiny):
    _, folder = tiny
    engine = engine_for(folder, max_batch_tokens=32)
    run(engine, *[request(i, p, GREEDY) for i, p in enumerate(prompts(8, 1, 90))])
    assert engine.executor.forwards == engine.stats().step


def test_prompt_logprobs(tiny):
    """Against the reference's log-softmax, with the prompt computed in chunks and a warm prefix tree."""
    model, folder = tiny
    engine = engine_for(folder, max_batch_tokens=13)
    prompt = prompts(1, 60, 61)[0]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=4, logprobs=2)
    run(engine, request(0, prompt))
    result = run(engine, request(1, prompt, params))[1, 0]
    logits = reference_logits(model, prompt + result.tokens[:-1]).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    got = result.prompt_logprobs + result.logprobs
    assert len(result.prompt_logprobs) == len(prompt) - 1
    for entry, row, token in zip(got, expected, (prompt + result.tokens)[1:], strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(row[token], abs=1e-3)
        assert abs(entry.rank - 1 - (row > row[token]).sum()) <= 1
        best = np.sort(row)[::-1]
        np.testing.assert_allclose([x for _, x in entry.top], best[: len(entry.top)], atol=1e-3)


@pytest.fixture(scope="module")
def smol(smollm2):
    """Transformers with the weights that our reader gives, which test_smollm2 compares with the gguf package's."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    return model.eval()


@pytest.mark.model
@pytest.mark.bars
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"max_batch_tokens": 7, "max_running": 1},
        {"max_batch_tokens": 64, "max_running": 1},
        {"max_running": 8, "max_batch_tokens": 96},
        {"pages": 40, "context_length": 512, "max_running": 16},
    ],
    ids=["alone", "chunks of 7", "chunks of 64", "mixed batch of 8", "preempted"],
)
def test_smollm2(smollm2, smol, how, record_property):
    texts = smollm2_prompts(smollm2)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    engine = engine_for(smollm2, prefix_cache=False, **{"kv_memory": 256 << 20, **how})
    logits = record_logits(engine)
    if "max_running" in how:
        results = run(engine, *[request(i, p, params) for i, p in enumerate(texts)], check=False)
    else:
        results = {}
        for i, prompt in enumerate(texts):
            results |= run(engine, request(i, prompt, params), check=False)
    engine.check()
    ties = assert_matches_reference(smol, texts, results, logits)
    record_property("near_ties", ties)
    if "pages" in how:
        assert engine.scheduler.roster.preemptions > 0


@pytest.mark.model
@pytest.mark.bars
def test_smollm2_cached_prefix(smollm2, smol):
    texts = smollm2_prompts(smollm2)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    engine = engine_for(smollm2, kv_memory=1 << 30)
    run(engine, *[request(i, p, SamplingParams(max_tokens=1)) for i, p in enumerate(texts)], check=False)
    logits = record_logits(engine)
    results = run(engine, *[request(i, p, params) for i, p in enumerate(texts)], check=False)
    assert all(results[i, 0].cached_tokens == (len(p) - 1) // 16 * 16 for i, p in enumerate(texts))
    assert_matches_reference(smol, texts, results, logits)


QUESTIONS = (
    "Name three rivers.", "What is the capital of France?", "Write a haiku about rain.", "Explain gravity to a child.",
    "What is 17 times 23?", "Translate 'good morning' into Spanish.", "List the planets in order.",
    "Who was Ada Lovelace?",
    "Give me a recipe for pancakes.", "Why is the sky blue?", "Write a function that reverses a string in Python.",
    "Summarize the plot of Hamlet in two sentences.", "What does DNA stand for?", "How do I boil an egg?",
    "Tell me a joke about computers.", "What is the boiling point of water in Kelvin?", "Describe the taste of coffee.",
    "Which is larger, 0.9 or 0.11?", "Write an email asking for a day off.", "What is a prime number?",
    "Où est la gare ?",
    "Wie spät ist es?", "水は何度で凍りますか。", "Complete: the quick brown fox", "Reply with one emoji 🌊.",
)  # fmt: skip


def smollm2_prompts(path):
    """25 chats, and 25 runs of 5 to 160 random tokens, since greedy output after those is anything but repetitive."""
    tokenizer = load_tokenizer(open_checkpoint(path).tokenizer)
    chats = [list(chat_prompt(tokenizer, [{"role": "user", "content": q}]).tokens) for q in QUESTIONS]
    rng = np.random.default_rng(7)
    return chats + [rng.integers(20, 49_000, rng.integers(5, 160)).tolist() for _ in range(25)]


def test_config_of_the_tiny_models_is_what_it_says(tiny):
    """The llama3 rope scaling must be in play: at positions beyond the original context it changes the angles."""
    _, folder = tiny
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "llama":
        assert config["rope_parameters"]["rope_type"] == "llama3"
