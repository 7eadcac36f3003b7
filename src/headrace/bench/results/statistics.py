"""Figures with their 95 % confidence intervals.

An interval comes from the block bootstrap (``resampling``): the middle of the resampled figures, a little more than
95 % of them, because k blocks tell their own spread only as well as Student's t says (the expanded percentile interval
of Hesterberg, The American Statistician 69, 2015). For the upper end of a percentile, k is the number of blocks with a
value at or above it, for the lower end of those with one at or below: what is rare is known only from where it happens.
An end is None if its k is below ``ENOUGH``; then the truth may well lie outside of all that was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from headrace.bench.results.resampling import Resampling, block_length, resample
from headrace.bench.results.samples import Floats, Ints
from headrace.bench.results.schema import Distribution, Estimate

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
ENOUGH = 5
SLICES = 20
SHORTEST = 1e-9  # seconds of a window that a rate can be taken over

_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)
# Upper critical values of Student's t for a two-sided 95 % interval, 1 to 30 degrees of freedom: NIST/SEMATECH
# e-Handbook of Statistical Methods, section 1.3.6.7.2.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def student_t(freedom: int) -> float:
    """The t that a two-sided 95 % interval with so many degrees of freedom (at least 1) reaches out to.

    Above the table by the expansion in Abramowitz and Stegun, 26.7.5, to within 1e-5.
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / freedom + second / freedom**2


def percentiles(values: Floats, shares: Sequence[float] = tuple(PERCENTILES.values())) -> Floats:
    """Percentiles, shares in 0..1, as NumPy's ``linear`` method has them; NaN of nothing."""
    if not len(values):
        return np.full(len(shares), np.nan)
    found: Floats = np.quantile(values, shares)
    return found


def describe(values: Floats, owner: Ints | None = None) -> Distribution | None:
    """A latency's distribution.

    Args:
        values: Seconds; not NaN. One a request in due order, unless ``owner`` is given.
        owner: The request of each value, ascending; requests are numbered in due order. Those without a value are left
            out of the resampling.

    Returns:
        None if there are no values.
    """
    if not len(values):
        return None
    if owner is None:
        owner = np.arange(len(values))
    else:
        _, owner = np.unique(owner, return_inverse=True)
    counts = np.bincount(owner)
    requests = resample(len(counts), block_length(np.bincount(owner, values) / counts))
    means = requests.totals(values, owner) / np.maximum(requests.totals(np.ones(len(values)), owner), 1)
    shares = list(PERCENTILES.values())
    exact = percentiles(values, shares)
    drawn = requests.percentiles(values, owner, shares)
    return Distribution(
        len(values),
        estimate(float(values.mean()), means, requests.blocks),
        float(values.min()),
        float(values.max()),
        {
            name: _percentile(values, owner, requests, float(exact[i]), drawn[:, i])
            for i, name in enumerate(PERCENTILES)
        },
    )


def _percentile(values: Floats, owner: Ints, requests: Resampling, value: float, drawn: Floats) -> Estimate:
    low = estimate(value, drawn, requests.reach(owner, values <= value)).low
    high = estimate(value, drawn, requests.reach(owner, values >= value)).high
    return Estimate(value, low, high)


def estimate(value: float, drawn: Floats, blocks: int) -> Estimate:
    """A figure with the interval that its resamples give.

    Args:
        value: The figure itself; the interval is widened to hold it.
        drawn: The figure in each resample; NaN where that has none.
        blocks: Independent observations, roughly.
    """
    drawn = drawn[~np.isnan(drawn)]
    if blocks < ENOUGH or not len(drawn):
        return Estimate(value)
    tail = _NORMAL.cdf(-math.sqrt(blocks / (blocks - 1)) * student_t(blocks - 1))
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def share(hits: npt.NDArray[np.bool_]) -> Estimate:
    """The share of requests, in due order, of which something is true; 0 without an interval if there are none.

    Wilson's score interval, for the number of independent requests that would vary as much as these do: their number
    over the ratio of the bootstrap's variance to the binomial one, if that is above 1. So a share of 0 or 1, which no
    resample can leave, has an interval as well; there the requests count as independent.
    """
    n = len(hits)
    if not n:
        return Estimate(0.0)
    value = float(hits.mean())
    requests = resample(n, block_length(hits.astype(np.float64)))
    if requests.blocks < ENOUGH:
        return Estimate(value)
    if 0 < value < 1:
        owner = np.arange(n)
        drawn = requests.totals(hits.astype(np.float64), owner) / requests.totals(np.ones(n), owner)
        inflation = max(1.0, float(drawn.var()) * requests.blocks / (requests.blocks - 1) / (value * (1 - value) / n))
        n = n / inflation  # type: ignore[assignment]
    reach = student_t(requests.blocks - 1)
    middle = (value + reach**2 / (2 * n)) / (1 + reach**2 / n)
    half = reach / (1 + reach**2 / n) * math.sqrt(value * (1 - value) / n + reach**2 / (4 * n**2))
    return Estimate(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def rate(moments: Floats, window: tuple[float, float], weights: Floats | None = None) -> Estimate:
    """How much happened a second of the window, its ends included; 0 of a window without length.

    The interval comes from the totals of ``SLICES`` equal slices of the window, drawn with replacement (batch means:
    slices this long hardly depend on each other). Its ends are None if fewer than one thing a slice happened.

    Args:
        moments: When something happened, seconds; NaN is never.
        window: Begin and end.
        weights: How much each counts; 1 if not given.
    """
    begin, close = window
    if close - begin < SHORTEST:
        return Estimate(0.0)
    inside = (moments >= begin) & (moments <= close)
    counted = np.ones(int(inside.sum())) if weights is None else weights[inside]
    seconds = close - begin
    value = float(counted.sum()) / seconds
    if np.count_nonzero(counted) < SLICES:
        return Estimate(value)
    slices = np.minimum((moments[inside] - begin) * (SLICES / seconds), SLICES - 1).astype(np.int64)
    totals = np.bincount(slices, counted, minlength=SLICES).astype(np.float64)
    drawn = resample(SLICES, 1).totals(totals, np.arange(SLICES)) / seconds
    return estimate(value, drawn, SLICES)


def quotient(above: Floats, below: Floats) -> Estimate | None:
    """The sum of one column over the sum of another, requests in due order; None if the second sum is 0."""
    if not below.sum():
        return None
    value = float(above.sum() / below.sum())
    shares = above / np.where(below > 0, below, 1)
    requests = resample(len(above), block_length(shares))
    owner = np.arange(len(above))
    totals = requests.totals(below, owner)
    drawn = requests.totals(above, owner) / np.where(totals > 0, totals, np.nan)
    return estimate(value, drawn, requests.blocks)
