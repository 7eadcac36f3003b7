"""A prompt's hidden vectors to one: however batches cut the prompt, and whatever runs beside it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.batch import Batch, SlotOpen, SlotSampling
from headrace.runtime.pooling import pool
from headrace.runtime.slots import SlotTable

POOLINGS = st.sampled_from(["mean", "last", None])


def vectors_of(prompts, size=3):
    """Of each prompt, vectors whose sums depend on the order in which float32 adds them up."""
    rng = np.random.default_rng(len(prompts))
    return [(rng.normal(0, 1, (n, size)) * 10.0 ** rng.integers(-4, 5, (n, 1))).astype(np.float32) for n in prompts]


def run(lengths, poolings, steps, pieces):
    """Embed prompts, one a slot; each step computes some tokens of each, as far as it has them.

    Args:
        lengths: Of the prompts.
        poolings: How each is embedded.
        steps: Of each step, the tokens of each prompt; the rest comes in a step behind.
        pieces: In how many vectors at once they are handed over.
    """
    table, vectors = SlotTable(len(lengths), [4], 10), vectors_of(lengths)
    opens = tuple(
        SlotOpen(slot, np.zeros(n, np.int32), n, SlotSampling(pooling=pooling))
        for slot, (n, pooling) in enumerate(zip(lengths, poolings, strict=True))
    )
    done, found = [0] * len(lengths), {}
    for step in [*steps, lengths]:
        counts = [min(want, n - at) for want, n, at in zip(step, lengths, done, strict=True)]
        rows = [slot for slot, count in enumerate(counts) if count]
        offsets = np.cumsum([0, *(counts[slot] for slot in rows)]).astype(np.int32)
        ends = np.array([done[slot] + counts[slot] == lengths[slot] for slot in rows], bool)
        starts = np.array([done[slot] for slot in rows], np.int32)
        batch = Batch(1, opens, (), np.array(rows, np.int32), starts, offsets, np.zeros(offsets[-1], np.int32), ends)
        opens = ()
        table.apply(batch)
        hidden = np.concatenate([vectors[slot][done[slot] : done[slot] + counts[slot]] for slot in rows] or [[]])
        got = pool(batch, table, lambda b, e, h=hidden: [h[i : min(e, i + pieces)] for i in range(b, e, pieces)])
        assert not got.errors
        assert set(table.drawing(batch).tolist()) == {r for r in np.flatnonzero(ends) if poolings[rows[r]] is None}
        found |= {rows[row]: vector for row, vector in got.embeddings.items()}
        done = [at + count for at, count in zip(done, counts, strict=True)]
    return found, vectors


@given(st.data(), st.lists(st.tuples(st.integers(1, 40), POOLINGS), min_size=1, max_size=4), st.integers(1, 9))
def test_an_embedding_depends_on_its_prompt_alone(data, prompts, pieces):
    lengths, poolings = ([p[n] for p in prompts] for n in (0, 1))
    steps = data.draw(st.lists(st.lists(st.integers(0, 20), min_size=len(prompts), max_size=len(prompts)), max_size=5))
    found, vectors = run(lengths, poolings, steps, pieces)
    assert set(found) == {slot for slot, pooling in enumerate(poolings) if pooling is not None}
    whole, _ = run(lengths, poolings, [], 1000)
    for slot, vector in found.items():
        wide = vectors[slot].astype(np.float64)
        expected = wide.mean(0) if poolings[slot] == "mean" else wide[-1]
        assert vector.dtype == np.float32
        assert np.array_equal(vector, whole[slot])
        np.testing.assert_allclose(vector, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_what_is_not_finite_fails_its_row_alone(bad, pooling):
    table = SlotTable(2, [4], 10)
    opens = tuple(SlotOpen(slot, np.zeros(2, np.int32), 2, SlotSampling(pooling=pooling)) for slot in range(2))
    slots, starts, offsets = (np.array(x, np.int32) for x in ([0, 1], [0, 0], [0, 2, 4]))
    batch = Batch(1, opens, (), slots, starts, offsets, np.zeros(4, np.int32), np.ones(2, bool))
    table.apply(batch)
    hidden = np.ones((4, 3), np.float32)
    hidden[3, 1] = bad
    got = pool(batch, table, lambda begin, end: [hidden[begin:end]])
    assert got.embeddings[0].tolist() == [1, 1, 1]
    assert list(got.embeddings) == [0]
    assert "not finite" in got.errors[1]
