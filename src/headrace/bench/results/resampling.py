"""The block bootstrap over requests: how far a figure would vary if the same load were run again.

Latencies of requests that are due one after the other are not independent: they wait in the same queue and run in the
same batch. So whole stretches of neighbours are drawn, with replacement, round the end to the beginning (the circular
block bootstrap of Politis and Romano, 1992); drawing requests one by one would give intervals that are too narrow.
What belongs to a request, such as its gaps, is drawn with it.

No resample is ever written out. The requests, in due order, are cut into at most ``CELLS`` cells of neighbours; a
resample is a weight a cell. Many values are counted once, into ``BINS`` bins by cell, and the counts of all resamples
are one product of matrices. Up to ``CELLS`` requests and ``BINS`` values all of that is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from headrace.bench.results.samples import Floats, Ints

RESAMPLES = 1000
CELLS = 1000
BINS = 1000


@dataclass(frozen=True, slots=True)
class Resampling:
    """Resamples of requests, in due order.

    Attributes:
        weights: How often each cell was drawn in each resample, float32 ``[RESAMPLES, cells]``.
        cell: The cell of each request, int64 ``[requests]``.
        block: The block that each request is in if the requests are cut into blocks one after the other, int64
            ``[requests]``.
        blocks: How many such blocks there are: as many independent observations are in the sample, roughly.
    """

    weights: npt.NDArray[np.float32]
    cell: Ints
    block: Ints
    blocks: int

    def totals(self, values: Floats, owner: Ints) -> Floats:
        """Sum of the values in each resample, ``[RESAMPLES]``; ``owner`` is the request of each value."""
        cells = np.bincount(self.cell[owner], values, minlength=self.weights.shape[1])
        return np.asarray(self.weights.astype(np.float64) @ cells)

    def percentiles(self, values: Floats, owner: Ints, shares: Sequence[float]) -> Floats:
        """Percentiles (shares in 0..1) of the values in each resample, ``[RESAMPLES, shares]``.

        By NumPy's ``linear`` method; NaN for a resample that holds no value.
        """
        bins = Bins.of(values)
        counts = self._counts(bins, self.cell[owner])
        ends = np.cumsum(counts, axis=1, dtype=np.float64)
        total = ends[:, -1].copy()
        most = np.maximum(total - 1, 0)
        # One ascending array for all resamples, so that one search serves them all.
        ends += (np.arange(len(total)) * (total.max() + 1))[:, None]
        found = np.empty((len(total), len(shares)))
        for column, share in enumerate(shares):
            rank = most * share
            below = np.floor(rank)
            low = bins.at_rank(counts, ends, below)
            high = bins.at_rank(counts, ends, np.minimum(below + 1, most))
            found[:, column] = low + (high - low) * (rank - below)
        found[total == 0] = np.nan
        return found

    def _counts(self, bins: Bins, cell: Ints) -> npt.NDArray[np.float32]:
        """How many values of each bin are in each resample, ``[RESAMPLES, bins]``; ``cell`` is that of each value."""
        if len(cell) == len(bins):
            return np.take(self.weights, cell[np.argsort(bins.index)], axis=1)
        cells = self.weights.shape[1]
        joint = np.bincount(cell * len(bins) + bins.index, minlength=cells * len(bins))
        return self.weights @ joint.reshape(cells, len(bins)).astype(np.float32)

    def reach(self, owner: Ints, chosen: npt.NDArray[np.bool_]) -> int:
        """Over how many blocks the chosen values are spread."""
        return len(np.unique(self.block[owner[chosen]]))


@dataclass(frozen=True, slots=True)
class Bins:
    """Ascending values in bins: one each if there are few, else equal ones together, and finer towards the greatest.

    Attributes:
        index: The bin of each value.
        low: The least value of each bin.
        high: The greatest.
    """

    index: Ints
    low: Floats
    high: Floats

    @classmethod
    def of(cls, values: Floats) -> Bins:
        """Bins of these values, at least one."""
        n = len(values)
        if n <= BINS:
            order = np.argsort(values)
            index = np.empty(n, np.int64)
            index[order] = np.arange(n)
            return cls(index, values[order], values[order])
        ordered = np.sort(values)
        even = np.linspace(0, n, BINS // 2, endpoint=False)
        tail = n - np.geomspace(1, n, BINS // 2)
        low = np.unique(ordered[np.concatenate([even, tail]).astype(np.int64)])
        last = np.searchsorted(ordered, low[1:], side="left") - 1
        return cls(np.searchsorted(low, values, side="right") - 1, low, np.append(ordered[last], ordered[-1]))

    def __len__(self) -> int:
        return len(self.low)

    def at_rank(self, counts: npt.NDArray[np.float32], ends: Floats, rank: Floats) -> Floats:
        """The value of this rank (0 is the least) in each resample; inside a bin by its share of the way.

        Args:
            counts: Values of each bin in each resample.
            ends: Their running sums, each resample's beyond those of the one before.
            rank: One a resample.
        """
        rows, width = ends.shape
        row = np.arange(rows)
        start = ends[:, 0] - counts[:, 0]
        found = np.searchsorted(ends.ravel(), start + rank, side="right") - row * width
        found = np.clip(found, 0, width - 1)
        count = counts[row, found].astype(np.float64)
        before = ends[row, found] - count - start
        way = np.where(count > 1, (rank - before) / np.maximum(count - 1, 1), 0.5)
        low = self.low[found]
        return np.asarray(low + (self.high[found] - low) * way)


@lru_cache(maxsize=4)
def resample(requests: int, length: int, seed: int = 0) -> Resampling:
    """Draw ``RESAMPLES`` resamples of ``requests`` (at least 1) requests in blocks of ``length`` (at least 1)."""
    cells = min(requests, CELLS)
    width = min(cells, max(1, round(length * cells / requests)))
    draws = math.ceil(cells / width)
    starts = np.random.default_rng(seed).integers(0, cells, (RESAMPLES, draws))
    flat = np.bincount((starts + np.arange(RESAMPLES)[:, None] * cells).ravel(), minlength=RESAMPLES * cells)
    begun = flat.reshape(RESAMPLES, cells)
    # A cell is drawn as often as a block begins at it or at one of the width - 1 cells before it.
    sums = np.cumsum(np.concatenate([begun[:, cells - width + 1 :], begun], axis=1), axis=1)
    sums = np.concatenate([np.zeros((RESAMPLES, 1), sums.dtype), sums], axis=1)
    weights = (sums[:, width:] - sums[:, :-width]).astype(np.float32)
    weights.flags.writeable = False  # it is kept for the next who asks
    blocks = max(1, requests // length)
    place = np.arange(requests)
    return Resampling(weights, place * cells // requests, place * blocks // requests, blocks)


def block_length(series: Floats) -> int:
    """How many requests a block should have: at least the cube root of their number, and more if they depend on more.

    The automatic choice of Politis and White (Econometric Reviews 23, 2004; corrected by Patton, Politis and White,
    28, 2009) for the circular bootstrap of a mean, taken over ranks, so that a few huge latencies do not hide how the
    others hang together.

    Args:
        series: One value a request, in due order.
    """
    n = len(series)
    least = max(1, round(math.cbrt(n)))
    if n < 10:
        return least
    ranks = np.searchsorted(np.sort(series), series, side="left") + np.searchsorted(
        np.sort(series), series, side="right"
    )
    centred = ranks - ranks.mean()
    if not centred.any():
        return least
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(n - 1, math.ceil(math.sqrt(n)) + run)
    covariance = np.array([centred[: n - lag] @ centred[lag:] for lag in range(most + 1)]) / n
    reach = _last_significant(covariance / covariance[0], n, run)
    lags = np.arange(1, min(2 * reach, most) + 1)
    taper = np.clip(2 * (1 - lags / lags[-1]), 0, 1) if len(lags) > 1 else np.ones(1)
    tapered = 2 * taper * covariance[lags]
    spectrum = covariance[0] + tapered.sum()
    slope = (lags * tapered).sum()
    if spectrum <= 0:
        return least
    best = math.cbrt(1.5 * (slope / spectrum) ** 2 * n)
    return max(least, min(math.ceil(best), math.ceil(min(3 * math.sqrt(n), n / 3))))


def _last_significant(correlation: Floats, n: int, run: int) -> int:
    """The lag after which ``run`` correlations in a row cannot be told from zero, at least 1."""
    small = np.abs(correlation[1:]) < 2 * math.sqrt(math.log10(n) / n)
    for lag in range(len(small) - run + 1):
        if small[lag : lag + run].all():
            return max(1, lag)
    significant = np.flatnonzero(~small)
    return int(significant[-1]) + 1 if len(significant) else 1
