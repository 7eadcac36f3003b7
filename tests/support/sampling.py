"""Cases for samplers: logits with every kind of trouble, settings, slots."""

import numpy as np
from hypothesis import strategies as st

from headrace.runtime.batch import NO_MASKS, Batch, SlotOpen, SlotSampling, mask_words
from headrace.runtime.sampler import NotFinite
from headrace.runtime.slots import SlotTable

NO_INTS = np.empty(0, np.int32)


def rows_of_logits(kind, rows, vocab, seed):
    """float32 [rows, vocab] of a kind."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, (rows, vocab)).astype(np.float32)
    if kind == "flat":
        x /= 30
    elif kind == "ties":
        x = np.rint(x)
    elif kind == "equal":
        x[:] = x[:, :1]
    elif kind == "zeros":
        x = rng.choice(np.array([0.0, -0.0], np.float32), x.shape)
    elif kind == "holes":
        x[rng.random(x.shape) < 0.7] = -np.inf
    elif kind == "huge":
        x *= 1e37
    elif kind == "tiny":
        x *= 1e-40
    elif kind == "spread":
        x = np.ldexp(np.sign(x), rng.integers(-100, 100, x.shape)).astype(np.float32)
    elif kind == "broken":
        for row, value in zip(x, (np.nan, np.inf, -np.inf, -np.nan), strict=False):
            if value == -np.inf:
                row[:] = value
            else:
                row[rng.integers(vocab)] = value
    return x


KINDS = ["normal", "flat", "ties", "equal", "zeros", "holes", "huge", "tiny", "spread", "broken"]


@st.composite
def samplings(draw, vocab):
    """Settings of a slot."""
    tokens = st.lists(st.integers(0, vocab - 1), max_size=5, unique=True)
    biased = draw(tokens)
    return SlotSampling(
        temperature=draw(st.sampled_from([0.0, 1e-6, 1e-5, 0.01, 0.3, 0.8, 1.0, 2.5, 100.0])),
        top_k=draw(st.sampled_from([0, 0, -1, 1, 2, 5, 40, 1000, vocab - 1, vocab])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.999999, 1e-9, 0.1])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0, 1e-13])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5, 0.01])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.7, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, -1.5])),
        bias_tokens=np.array(biased, np.int32),
        bias_values=np.array([draw(st.sampled_from([-100, 100, 0.1, 3])) for _ in biased], np.float32),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        sample_index=draw(st.integers(0, 127)),
        min_tokens=draw(st.sampled_from([0, 0, 2, 9])),
        suppress=np.array(draw(tokens), np.int32),
        logprobs=draw(st.sampled_from([None, None, 0, 1, 5, 20])),
    )


def mask_of(tokens, vocab):
    """The mask that allows these tokens."""
    bits = np.zeros(mask_words(vocab) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


@st.composite
def masks(draw, vocab):
    """A mask, or None: for one token, few, most, all, or none of them."""
    kind = draw(st.sampled_from(["free", "one", "few", "most", "all", "none"]))
    if kind == "free":
        return None
    if kind in ("one", "none"):
        return mask_of([draw(st.integers(0, vocab - 1))] if kind == "one" else [], vocab)
    share = {"few": 0.05, "most": 0.9, "all": 1.0}[kind]
    chosen = np.random.default_rng(draw(st.integers(0, 2**32))).random(vocab) < share
    return mask_of(np.flatnonzero(chosen), vocab)


def opened(settings_, vocab, tokens=None, prompt_length=None):
    """Slots 0, 1, ... with these settings, after some tokens."""
    table = SlotTable(len(settings_), [4], vocab)
    tokens = np.arange(6, dtype=np.int32) % vocab if tokens is None else np.array(tokens, np.int32)
    prompt_length = len(tokens) // 2 if prompt_length is None else prompt_length
    opens = tuple(SlotOpen(i, tokens, prompt_length, x) for i, x in enumerate(settings_))
    table.apply(opening(opens))
    return table


def opening(opens):
    """A batch that only opens slots."""
    return Batch(1, tuple(opens), (), NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS.astype(bool))


def expected(table, slots, logits, positions, masks=NO_MASKS):
    """What the reference draws: tokens, -1 where it refuses, and reports."""
    tokens, reports = [], []
    for i, (slot, row, position) in enumerate(zip(slots, logits, positions, strict=True)):
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                token, report = table.draw(slot, row, int(position), masks.get(i))
        except NotFinite:
            token, report = -1, None
        tokens.append(token)
        reports.append(report)
    return tokens, reports


def plain(report):
    """A report as something that ``==`` compares."""
    if report is None:
        return None
    tops = (report.top_tokens.tolist(), report.top_logprobs.tolist())
    return (report.token, report.logprob, report.rank, *tops, report.top_tokens.dtype, report.top_logprobs.dtype)
