"""From the hashed blocks of a trace to segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from headrace.bench.workload.records import Segment

Ints = npt.NDArray[np.int64]


def shrunk(lengths: Iterable[int] | Ints, shrink: float) -> Ints:
    """Lengths divided and rounded, halves up; 0 where that is less than a half.

    Args:
        lengths: Tokens.
        shrink: The divisor, at least 1.

    Returns:
        int64, one a length.
    """
    whole = lengths if isinstance(lengths, np.ndarray) else np.fromiter(lengths, np.int64)
    return np.floor(whole / shrink + 0.5).astype(np.int64)


def segments_of_blocks(
    rows: Sequence[Sequence[int]], totals: Ints, *, block: int, shrink: float, scope: str
) -> list[tuple[Segment, ...]]:
    """The prompts that lists of block hashes describe, in as few segments as tell the same.

    Block k of a prompt holds its tokens from ``round(k block / shrink)`` to ``round((k + 1) block / shrink)``, so
    blocks at the same place are equally long in every prompt, and adjacent ones leave no gap; the last may be cut short
    by the total. Blocks that only ever occur one after the other become one segment, named after the first of them: a
    prompt of 2,000 blocks is then some thirty segments. Tokens beyond the last block are a segment that no other prompt
    shares.

    Args:
        rows: Each prompt's block hashes, from 0 to 2^62. Equal hashes hold equal tokens.
        totals: int64[len(rows)], tokens of each prompt after the division, at least 1.
        block: Tokens of a block before the division.
        shrink: The divisor, at least 1.
        scope: What keys begin with: hashes of two scopes are unrelated.

    Returns:
        Each prompt's segments, which sum to its total.
    """
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    hashes = np.fromiter(chain.from_iterable(rows), np.int64, offsets[-1])
    place = np.arange(len(hashes)) - np.repeat(offsets[:-1], counts)
    heads = np.flatnonzero(_run_heads(hashes, offsets))
    begins = np.minimum(shrunk(place[heads] * block, shrink), np.repeat(totals, counts)[heads])
    row_ends = np.minimum(shrunk(counts * block, shrink), totals)
    firsts = np.searchsorted(heads, offsets)  # where each row's runs begin among the heads
    names, edges = hashes[heads].tolist(), begins.tolist()
    segments: list[tuple[Segment, ...]] = []
    ends, wholes, bounds = row_ends.tolist(), totals.tolist(), firsts.tolist()
    for row, (end, total) in enumerate(zip(ends, wholes, strict=True)):
        first, last = bounds[row], bounds[row + 1]
        marks = [*edges[first:last], end]
        made = [
            Segment(f"{scope}{name}", high - low)
            for name, (low, high) in zip(names[first:last], pairwise(marks), strict=True)
            if high > low
        ]
        if total > end:
            made.append(Segment(f"{scope}rest {row}", total - end))
        segments.append(tuple(made))
    return segments


def _run_heads(hashes: Ints, offsets: Ints) -> npt.NDArray[np.bool_]:
    """Which blocks do not always follow the block before them, or follow one that has also something else after it."""
    if not len(hashes):
        return np.zeros(0, bool)
    distinct, block = np.unique(hashes, return_inverse=True)
    filled = offsets[:-1] < offsets[1:]
    before, after = np.roll(block, 1), np.roll(block, -1)
    before[offsets[:-1][filled]] = -1
    after[offsets[1:][filled] - 1] = -1
    n = len(distinct)
    joined = _always_same(block, after, n)[before] & _always_same(block, before, n)[block]
    return (before < 0) | ~joined


def _always_same(block: Ints, neighbour: Ints, n: int) -> npt.NDArray[np.bool_]:
    """Of n blocks, which have one and the same neighbour wherever they occur."""
    least, most = np.full(n, n), np.full(n, -1)
    np.minimum.at(least, block, neighbour)
    np.maximum.at(most, block, neighbour)
    same: npt.NDArray[np.bool_] = least == most
    return same
