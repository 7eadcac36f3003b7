"""The native sampler against the reference: equal in every bit, whatever the settings, threads and neighbours."""

import ctypes
import gc
import itertools
import shutil
import weakref

import numpy as np
import pytest
import sampling as cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.case import Case, Input, Output, Tolerance
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.native.sandbox import Candidate, Sandbox
from headrace.errors import InvalidInput
from headrace.runtime.batch import SlotOpen, SlotSampling
from headrace.runtime.native_sampler import RESULT, ROW, NativeSampler, sampler_source, scratch_bytes, settings_row
from headrace.runtime.sampler import LOG2_E, ONE, NotFinite, _adjust, token_logprobs, token_weights, uniform

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)

VOCABS = [*range(1, 41), 300, 1023, 1024, 1025, 2500]


@pytest.fixture(scope="module", params=["this processor", "avx2", "portable"])
def source(request):
    if request.param == "this processor":
        return sampler_source()
    if request.param == "portable":
        return sampler_source(("-O2",))
    if not cpu_features().has("avx2", "fma"):
        pytest.skip("this processor has no AVX2")
    return sampler_source(("-O3", *cpu_features().compile_flags(["avx2", "fma"])))


@pytest.fixture(scope="module")
def library(source):
    return Builder().load(source)


@pytest.fixture(scope="module", params=[1, 2])
def pool(request):
    with ThreadPool(request.param) as made:
        yield made


def compare(pool, library, vocab, chosen, kind, seed, masks=({}, {})):
    """Draw some steps with both, each with its masks; every token, report and count is equal."""
    ours, theirs = cases.opened(chosen, vocab), cases.opened(chosen, vocab)
    sampler = NativeSampler(pool, ours, len(chosen), vocab, library)
    slots = list(range(len(chosen)))
    for step, given_masks in enumerate(masks):
        logits = cases.rows_of_logits(kind, len(chosen), vocab, seed + step)
        positions = np.full(len(chosen), 6 + step)
        tokens, reports = cases.expected(theirs, slots, logits, positions, given_masks)
        got = sampler.draw(slots, logits, positions, given_masks)
        assert got.tokens.tolist() == tokens
        assert [cases.plain(x) for x in got.logprobs] == [cases.plain(x) for x in reports]
    for slot in slots:
        assert ours.last_tokens[slot] == theirs.last_tokens[slot]
        if theirs[slot].counts is not None:
            np.testing.assert_array_equal(ours[slot].counts.output, theirs[slot].counts.output)
            np.testing.assert_array_equal(ours[slot].counts.seen, theirs[slot].counts.seen)


def masked_rows(data, vocab, rows):
    """Masks by row."""
    drawn = [data.draw(cases.masks(vocab)) for _ in range(rows)]
    return {i: mask for i, mask in enumerate(drawn) if mask is not None}


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_equals_the_reference(pool, library, data):
    vocab = data.draw(st.sampled_from(VOCABS))
    chosen = data.draw(st.lists(cases.samplings(vocab), min_size=1, max_size=4))
    kind, seed = data.draw(st.sampled_from(cases.KINDS)), data.draw(st.integers(0, 2**32))
    compare(pool, library, vocab, chosen, kind, seed, [masked_rows(data, vocab, len(chosen)) for _ in range(3)])


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_equals_the_reference_on_a_real_vocabulary(pool, library, data):
    chosen = data.draw(st.lists(cases.samplings(49_152), min_size=2, max_size=2))
    kind = data.draw(st.sampled_from(["normal", "flat", "ties", "holes", "equal"]))
    compare(pool, library, 49_152, chosen, kind, data.draw(st.integers(0, 2**32)), [masked_rows(data, 49_152, 2)])


@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["normal", "flat", "equal"])
def test_large_vocabulary(pool, library, kind, top_p):
    """Nuclei of a few tokens and of 200,000."""
    chosen = [SlotSampling(top_p=top_p, seed=5), SlotSampling(top_k=70_000, seed=6, logprobs=3)]
    compare(pool, library, 200_000, chosen, kind, 1, masks=[{}])


PROBES = """
#include "sampler.c"
uint64_t bits(uint64_t a, uint64_t b, uint64_t c) { return random_bits(a, b, c); }
void weights(const float *x, int64_t n, double peak, double scale, int64_t *w) {
    for (int64_t i = 0; i < n; i += WEIGHED) weigh_32(x + i, peak, scale, (i64x8 *)(w + i));
}
void adjusted(const row *r, const float *x, int64_t n, float *y) {
    if (adjust(r, 0, x, n, y) == x) memcpy(y, x, n * sizeof *y);
}
"""


@pytest.fixture(scope="module")
def probes(source):
    """Parts of the code, for what shows in a token but rarely."""
    headers = (*source.headers, ("sampler.c", source.text))
    made = Builder().load(Source("sampler-probes", PROBES, headers, source.flags))
    made.bits.restype, made.bits.argtypes = ctypes.c_uint64, [ctypes.c_uint64] * 3
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    made.weights.argtypes = [pointer, size, number, number, pointer]
    made.adjusted.argtypes = [pointer, pointer, size, pointer]
    return made


def test_random_bits(probes):
    rng = np.random.default_rng(0)
    for _ in range(200):
        seed, index, position = int(rng.integers(2**64, dtype=np.uint64)), int(rng.integers(128)), rng.integers(2**31)
        assert probes.bits(seed, index, position) == uniform(seed, index, position) * 2**53


@pytest.mark.parametrize("temperature", [1.0, 0.8, 0.013, 57.0])
def test_weights(probes, temperature):
    x = np.random.default_rng(1).normal(0, 10 * temperature, 32_000).astype(np.float32)
    x[:9] = -np.inf
    got = np.empty(len(x) + 8, np.int64)
    got = got[-got.ctypes.data % 64 // 8 :][: len(x)]
    probes.weights(x.ctypes.data, len(x), x.max(), LOG2_E / temperature, got.ctypes.data)
    np.testing.assert_array_equal(got, token_weights(x, temperature))
    exact = np.exp((x.astype(np.float64) - x.max()) / temperature) * ONE
    np.testing.assert_allclose(got, exact, rtol=3e-10, atol=0.51)


@settings(max_examples=60, deadline=None)
@given(
    sampling=cases.samplings(70),
    output=st.lists(st.integers(60, 69), max_size=300),
    seed=st.integers(0, 2**32),
    mask=cases.masks(70),
)
def test_adjusted_logits(probes, sampling, output, seed, mask):
    state = cases.opened([sampling], 70, [1, 2, *output], 2)[0]
    row, _ = settings_row(state, 70)
    row["position"] = 2 + len(output)
    row["mask"] = 0 if mask is None else mask.ctypes.data
    (x,) = cases.rows_of_logits("normal", 1, 70, seed)
    got = np.empty_like(x)
    probes.adjusted(row.ctypes.data, x.ctypes.data, 70, got.ctypes.data)
    np.testing.assert_array_equal(got, _adjust(x, sampling, state.counts, len(output), mask))


def test_a_row_depends_on_nothing_but_itself(library):
    """The same in other batches, in another order, among failing rows, on other threads, and in another slot."""
    vocab, rows = 3000, 24
    logits = cases.rows_of_logits("normal", rows, vocab, 3)
    chosen = [
        SlotSampling(temperature=0.9, top_p=(1.0, 0.8)[i % 2], top_k=(0, 50, 0)[i % 3], seed=i, logprobs=i % 4)
        for i in range(rows)
    ]
    positions = np.arange(100, 100 + rows)

    def draw(threads, order):
        with ThreadPool(threads) as pool:
            sampler = NativeSampler(pool, cases.opened([chosen[i] for i in order], vocab), len(order), vocab, library)
            got = sampler.draw(list(range(len(order))), logits[order], positions[order])
        return {i: (int(got.tokens[at]), cases.plain(got.logprobs[at])) for at, i in enumerate(order)}

    alone = {}
    for i in range(rows):
        alone |= draw(1, [i])
    assert draw(1, list(range(rows))) == alone
    for threads in (2, 3):
        for seed in range(5):
            assert draw(threads, np.random.default_rng(seed).permutation(rows).tolist()) == alone
    logits[::3] = np.nan
    failing = draw(2, list(range(rows)))
    assert [failing[i][0] for i in range(0, rows, 3)] == [-1] * len(range(0, rows, 3))
    assert all(failing[i] == alone[i] for i in range(rows) if i % 3)


def test_frequencies_fit_a_chi_square_test(pool, library):
    probabilities = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    logits = np.tile(np.log(probabilities).astype(np.float32), (200, 1))
    table = cases.opened([SlotSampling(seed=i) for i in range(200)], 6)
    sampler = NativeSampler(pool, table, 200, 6, library)
    draws = [sampler.draw(list(range(200)), logits, np.full(200, at)).tokens for at in range(50)]
    counts = np.bincount(np.concatenate(draws), minlength=6)
    chi = ((counts - probabilities * 10_000) ** 2 / (probabilities * 10_000)).sum()
    assert chi < 20.52  # 5 degrees of freedom, 0.1 %


def test_counts_of_a_resumed_sequence(pool, library):
    """Drawn in one go, or taken off its slot and resumed in another one: the same tokens."""
    vocab, sampling = 50, SlotSampling(repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.2, seed=1)
    logits = cases.rows_of_logits("normal", 30, vocab, 0)

    def play(interrupted):
        tokens = [1, 2, 3]
        table = cases.opened([sampling] * 2, vocab, tokens, 3)
        sampler = NativeSampler(pool, table, 2, vocab, library)
        for at in range(30):
            slot = at // 10 % 2 if interrupted else 0
            if interrupted and at and at % 10 == 0:
                table.apply(cases.opening([SlotOpen(slot, np.array(tokens, np.int32), 3, sampling)]))
            tokens += sampler.draw([slot], logits[at : at + 1], np.array([3 + at])).tokens.tolist()
        return tokens

    assert play(True) == play(False)
    assert len(set(play(False))) > 8


def test_what_is_kept_from_draw_to_draw_is_not_used_for_another(pool, library):
    """The same rows again, after a report, with rows left out, in another order, from a copy and from other memory."""
    vocab = 300
    chosen = [SlotSampling(seed=i, logprobs=(None, 2)[i % 2], repetition_penalty=1 + i / 9) for i in range(3)]
    ours, theirs = cases.opened(chosen, vocab), cases.opened(chosen, vocab)
    sampler = NativeSampler(pool, ours, 3, vocab, library)
    held = cases.rows_of_logits("normal", 3, 2 * vocab, 0)
    memory = [held[:, :vocab].copy(), held[:, :vocab], held[:, vocab:].astype(np.float64), held[:, vocab:].copy()]
    views = [[logits[:n] for n in range(4)] for logits in memory]  # given again: the same objects, with other numbers
    orders = ([0, 1, 2], [0, 1, 2], [2], [1], [2, 0, 1], [0, 1])
    masks = itertools.cycle([{}, {0: cases.mask_of([7, 299], vocab)}, {1: cases.mask_of([31, 32, 64], vocab)}, {}])
    for at, (some, slots) in enumerate(itertools.product(views, orders)):
        some[3][:] = np.roll(some[3], 7, axis=1)
        positions = np.arange(6 + at, 6 + at + len(slots))
        given = some[len(slots)]
        allowed = {i: mask for i, mask in next(masks).items() if i < len(slots)}
        tokens, reports = cases.expected(theirs, slots, given.astype(np.float32), positions, allowed)
        got = sampler.draw(slots, given, positions, allowed)
        assert got.tokens.tolist() == tokens
        assert [cases.plain(x) for x in got.logprobs] == [cases.plain(x) for x in reports]
        if at % 4 == 3:
            sampler.report(some[2], np.array([5, 6], np.int32), at)


@pytest.mark.parametrize("top", [0, 1, 20, 50])
def test_reports_on_given_tokens(pool, library, top):
    vocab = 40
    logits = cases.rows_of_logits("ties", 30, vocab, 4)
    tokens = np.arange(30, dtype=np.int32)
    sampler = NativeSampler(pool, cases.opened([SlotSampling()], vocab), 1, vocab, library)
    got = sampler.report(logits, tokens, top)
    want = [token_logprobs(row, token, top) for row, token in zip(logits, tokens.tolist(), strict=True)]
    assert [cases.plain(x) for x in got] == [cases.plain(x) for x in want]
    logits[7, 3] = np.nan
    with pytest.raises(NotFinite):
        sampler.report(logits, tokens, top)
    with pytest.raises(NotFinite):
        token_logprobs(logits[7], 0, top)
    with pytest.raises(InvalidInput, match="0 to 39"):
        sampler.report(logits, tokens + 20, top)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"temperature": np.nan}, "temperature"),
        ({"top_p": np.inf}, "top_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"suppress": np.array([50], np.int32)}, "suppress"),
        ({"bias_tokens": np.array([-1], np.int32), "bias_values": np.zeros(1, np.float32)}, "bias_tokens"),
        ({"bias_tokens": np.array([1], np.int32)}, "bias_values"),
    ],
)
def test_settings_that_native_code_must_not_see(pool, library, wrong, field):
    sampler = NativeSampler(pool, cases.opened([SlotSampling(**wrong)], 50), 1, 50, library)
    with pytest.raises(InvalidInput, match=field):
        sampler.draw([0], np.zeros((1, 50), np.float32), np.array([0]))


@pytest.mark.parametrize(
    "mask", [np.zeros(1, np.uint32), np.zeros(3, np.uint32), np.zeros(2, np.int32), np.zeros(4, np.uint32)[::2]]
)
def test_a_mask_that_native_code_must_not_see(pool, library, mask):
    sampler = NativeSampler(pool, cases.opened([SlotSampling()], 50), 1, 50, library)
    with pytest.raises(InvalidInput, match="mask"):
        sampler.draw([0], np.zeros((1, 50), np.float32), np.array([6]), {0: mask})


def test_shapes_are_checked(pool, library):
    sampler = NativeSampler(pool, cases.opened([SlotSampling()], 50), 1, 50, library)
    with pytest.raises(InvalidInput, match="shape"):
        sampler.draw([0], np.zeros((1, 49), np.float32), np.array([0]))
    with pytest.raises(InvalidInput, match="vocab_size"):
        NativeSampler(pool, cases.opened([], 1), 1, 1 << 23, library)


def test_a_slot_that_is_opened_again_lets_go_of_what_it_had(pool, library):
    vocab, sampling = 5000, SlotSampling(temperature=0, repetition_penalty=1.1, suppress=np.array([3], np.int32))
    table = cases.opened([sampling], vocab)
    sampler = NativeSampler(pool, table, 1, vocab, library)
    logits = cases.rows_of_logits("normal", 1, vocab, 0)
    held = []
    for _ in range(200):
        table.apply(cases.opening([SlotOpen(0, np.arange(6, dtype=np.int32), 3, sampling)]))
        sampler.draw([0], logits, np.array([6]))
        held.append(weakref.ref(table[0].counts.output))
    gc.collect()
    assert sum(ref() is not None for ref in held) == 1


def test_nothing_is_read_or_written_out_of_bounds():
    """Under the address and undefined-behaviour sanitizers, guards around every operand."""
    builder = Builder()
    if builder.sanitizer_runtime() is None:
        pytest.skip("there is no sanitizer here")
    plain_library = builder.load(sampler_source())
    checked = Candidate(builder.build(sampler_source(sanitize=True)).path, "hr_sample")
    with ThreadPool(2) as pool, Sandbox(2, sanitize=True) as box:
        for vocab in (1, 7, 33, 1023, 1024, 2049):
            for kind in ("normal", "equal", "holes", "broken"):
                chosen = sanitized_settings(vocab)
                logits = cases.rows_of_logits(kind, len(chosen), vocab, 1)
                verdict = box.check(checked, sandbox_case(pool, plain_library, vocab, chosen, logits))
                assert verdict.kind == "ok", f"{vocab} {kind}: {verdict}"


def sanitized_settings(vocab):
    """Every path of the C code."""
    ways = [
        {"temperature": 0.0},
        {"temperature": 0.7, "min_p": 0.1, "logprobs": 3},
        {"top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"top_p": 0.9, "min_tokens": 99, "logprobs": 20},
        {"top_p": 0.999999, "top_k": 1000, "logprobs": 0},
    ]
    common = {"bias_tokens": np.array([vocab - 1], np.int32), "bias_values": np.array([1], np.float32)}
    suppress = np.arange(min(2, vocab - 1), dtype=np.int32)
    return [SlotSampling(seed=i, suppress=suppress, **common, **way) for i, way in enumerate(ways)]


def sandbox_case(pool, library, vocab, chosen, logits):
    """A call of ``hr_sample`` with all it points to in one operand, and the results of the plain library."""
    table, width = cases.opened(chosen, vocab), 20
    blob, taken = np.zeros(64 + 4096 * len(chosen) + 5 * (vocab + 64) * len(chosen), np.uint8), 64

    def moved(array):
        nonlocal taken
        place = blob[taken : taken + array.nbytes].view(array.dtype)
        place[:] = array
        taken += -(-max(array.nbytes, 1) // 64) * 64
        return place

    rows = np.zeros(len(chosen), ROW)
    for i in range(len(chosen)):
        state = table[i]
        for name in ("bias_tokens", "bias_values", "suppress"):
            object.__setattr__(state.sampling, name, moved(getattr(state.sampling, name)))
        if state.counts is not None:
            state.counts.output, state.counts.seen = moved(state.counts.output), moved(state.counts.seen)
        rows[i], _ = settings_row(state, vocab, blob.ctypes.data)
    rows["position"] = 6
    for i in range(0, len(chosen), 2):
        rows[i]["mask"] = moved(cases.mask_of(range(0, vocab, 1 + i), vocab)).ctypes.data - blob.ctypes.data
    results = np.zeros(len(chosen), RESULT)
    tokens, values = np.zeros((len(chosen), width), np.int32), np.zeros((len(chosen), width), np.float32)
    scratch = np.zeros(scratch_bytes(library, vocab) * pool.threads, np.uint8)
    sizes = [len(chosen), vocab, width]
    pool.call(library.hr_sample, [blob, rows, logits, results, tokens, values, scratch], sizes)
    written = [results.view(np.int64), tokens, values]
    outputs = [Output(x, start=np.zeros_like(x)) for x in written]
    operands = [Input(blob), Input(rows.view(np.int64)), Input(logits), *outputs, Output(scratch, Tolerance(255))]
    return Case(operands, sizes)
