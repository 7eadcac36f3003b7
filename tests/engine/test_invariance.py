"""A sequence's logits and tokens are the same to the last bit, whatever runs beside it and however it was cut."""

import engines
import numpy as np
import pytest
from engines import engine_for, record_logits, request, run

from headrace.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.model

PAGE_BYTES = 368_640  # of SmolLM2 in bfloat16: 30 layers x 2 x 3 heads x 64 x 16 tokens x 2 bytes
LENGTHS = (
    150, 3, 47, 280, 16, 17, 33, 1, 99, 64, 255, 256, 257, 12, 5, 80, 31, 32, 130, 7, 61, 200, 9, 10, 11, 77, 140,
           2, 48, 49, 18, 90)  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    monkeypatch.setattr(engines, "DEFAULTS", {"executor": "compiled", "recipe": "int8", "prefix_cache": False})


def prompts():
    rng = np.random.default_rng(3)
    return [rng.integers(20, 49_000, n).tolist() for n in LENGTHS]


def draw(model, numbers, **options):
    """Logits by (request, index, position), tokens by request, and the engine."""
    engine = engine_for(model, **{"kv_memory": 256 << 20, "threads": 1, **options})
    logits = record_logits(engine)
    texts = prompts()
    results = run(engine, *[request(i, texts[i], GREEDY) for i in numbers], check=False)
    engine.check()
    return logits, {i: results[i, 0].tokens for i in numbers}, engine


@pytest.fixture(scope="module")
def alone(smollm2):
    """Each prompt on its own, the truth of these tests; computed when first asked for."""
    engine = engine_for(smollm2, executor="compiled", recipe="int8", kv_memory=256 << 20, threads=1, prefix_cache=False)
    logits, tokens, texts = record_logits(engine), {}, prompts()

    def of(numbers):
        for i in numbers:
            if i not in tokens:
                tokens[i] = run(engine, request(i, texts[i], GREEDY), check=False)[i, 0].tokens
        return logits, tokens

    return of


def assert_same(found, alone, numbers):
    logits, tokens = alone(numbers)
    assert found[1] == {i: tokens[i] for i in numbers}
    assert len(found[0]) == len(numbers) * GREEDY.max_tokens
    for at, row in found[0].items():
        assert np.array_equal(row, logits[at]), at


def batch(model, alone, count, threads):
    assert_same(draw(model, range(count), threads=threads), alone, range(count))


def chunks(model, alone, numbers, tokens):
    assert_same(draw(model, numbers, threads=2, max_batch_tokens=tokens, max_running=1), alone, numbers)


def test_a_batch_of_7(smollm2, alone):
    batch(smollm2, alone, 7, threads=2)


def test_chunks_of_16(smollm2, alone):
    chunks(smollm2, alone, [0, 2, 5], 16)


def test_a_cached_prefix(smollm2, alone):
    numbers = range(4)
    engine = engine_for(smollm2, kv_memory=256 << 20, threads=2, prefix_cache=True)
    texts = prompts()
    run(engine, *[request(100 + i, texts[i], SamplingParams(max_tokens=1)) for i in numbers], check=False)
    logits = record_logits(engine)
    results = run(engine, *[request(i, texts[i], GREEDY) for i in numbers], check=False)
    assert results[0, 0].cached_tokens == 144
    assert_same((logits, {i: results[i, 0].tokens for i in numbers}), alone, numbers)


def test_preemption(smollm2, alone):
    numbers = [4, 5, 6, 13, 16, 17, 19, 22]  # 15 pages at first, 26 at the end
    found = draw(smollm2, numbers, threads=2, kv_memory=16 * PAGE_BYTES, context_length=100)
    assert found[2].scheduler.roster.preemptions > 0
    # What a preempted sequence had drawn is computed again, so its logits are seen twice; the last are kept.
    assert_same(found, alone, numbers)


@pytest.mark.bars
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [2, 7, 32])
def test_batches(smollm2, alone, count, threads):
    batch(smollm2, alone, count, threads)


@pytest.mark.bars
@pytest.mark.parametrize("tokens", [1, 16, 100, 512])
def test_chunks(smollm2, alone, tokens):
    chunks(smollm2, alone, range(0, 32, 3), tokens)


@pytest.mark.bars
def test_two_runs(smollm2):
    first, second = draw(smollm2, range(32), threads=2), draw(smollm2, range(32), threads=2)
    assert first[1] == second[1]
    assert all(np.array_equal(first[0][at], second[0][at]) for at in first[0])


# --- embeddings ---------------------------------------------------------------------------------------------------


def embeddings(model, numbers, **options):
    """Of each prompt the mean and the last vector, beside answers to the same; and the engine."""
    engine = engine_for(model, **{"kv_memory": 256 << 20, "threads": 1, **options})
    texts = prompts()
    wanted = [(2 * i + n, texts[i], pooling) for i in numbers for n, pooling in enumerate(("mean", "last"))]
    messages = [request(number, text, pooling=pooling) for number, text, pooling in wanted]
    answers = [request(1000 + i, texts[i], GREEDY) for i in numbers]
    results = run(engine, *messages, *answers, check=False)
    engine.check()
    return {number: results[number, 0].embedding for number, *_ in wanted}, engine


@pytest.fixture(scope="module")
def embedded(smollm2):
    """Of prompts 0 to 7, each computed alone and whole."""
    engine = engine_for(smollm2, executor="compiled", recipe="int8", kv_memory=256 << 20, threads=1, prefix_cache=False)
    texts, found = prompts(), {}
    for i in range(8):
        for n, pooling in enumerate(("mean", "last")):
            found[2 * i + n] = run(engine, request(0, texts[i], pooling=pooling), check=False)[0, 0].embedding
    return found


def assert_embedded(found, embedded, numbers):
    for number in (2 * i + n for i in numbers for n in (0, 1)):
        assert np.array_equal(found[number], embedded[number]), number


def test_embeddings_in_a_batch(smollm2, embedded):
    found, _ = embeddings(smollm2, range(8), threads=2)
    assert_embedded(found, embedded, range(8))


@pytest.mark.parametrize("tokens", [16, 37])
def test_embeddings_of_chunks(smollm2, embedded, tokens):
    found, _ = embeddings(smollm2, [0, 2, 5], threads=2, max_batch_tokens=tokens, max_running=3)
    assert_embedded(found, embedded, [0, 2, 5])


def test_embeddings_after_a_cached_prefix(smollm2, embedded):
    found, engine = embeddings(smollm2, [0, 3], threads=2, prefix_cache=True, max_running=1)
    assert engine.stats().cached_tokens > 0
    assert_embedded(found, embedded, [0, 3])


def test_embeddings_of_the_preempted(smollm2, embedded):
    found, engine = embeddings(
        smollm2, [1, 2, 4, 5, 6], kv_memory=8 * PAGE_BYTES, context_length=100, max_batch_tokens=24
    )
    assert engine.scheduler.roster.preemptions > 0
    assert_embedded(found, embedded, [1, 2, 4, 5, 6])


def test_int8_embeddings_are_close_to_those_of_float32(smollm2, embedded):
    exact, _ = embeddings(smollm2, range(8), executor="eager", max_batch_tokens=512)
    for number, vector in embedded.items():
        other = exact[number]
        cosine = vector @ other / np.linalg.norm(vector) / np.linalg.norm(other)
        assert cosine > 0.999, number  # the least of these was 0.9997
