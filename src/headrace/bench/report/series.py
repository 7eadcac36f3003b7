"""From samples to the few numbers that a plot needs. Moments and durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.bench.results.measure import output_moments
from headrace.bench.results.samples import Floats, Ints, Samples

CURVE_POINTS = 2000
TIMELINE_BINS = 300
FLOW_BINS = 120
STEPS = (1.0, 2.0, 5.0)


def tail_curve(values: Floats, most: int = CURVE_POINTS) -> tuple[Floats, Floats]:
    """The complementary distribution: at each value the share of all that is at least as large.

    Args:
        values: Any order, float64 [n].
        most: So many points at most; half of them are spread evenly over the ranks, half over the logarithm of the rank
            counted from the largest, so that the tail is kept.

    Returns:
        Ascending values and their shares, both float64 [at most ``most``], shares from 1 down to 1/n.
    """
    ordered = np.sort(values)
    n = len(ordered)
    if n <= most:
        slower = np.arange(n, 0, -1)
    else:
        even = np.linspace(1, n, most // 2)
        tail = np.geomspace(1, n, most - most // 2)
        slower = np.unique(np.rint(np.concatenate([even, tail])).astype(np.int64))[::-1]
    return ordered[n - slower], slower / max(n, 1)


def nice_width(extent: float, bins: float) -> float:
    """The least of 1, 2, 5 by powers of ten that cuts ``extent`` into at most ``bins`` pieces."""
    raw = max(extent, 1e-9) / bins
    decade = 10.0 ** np.floor(np.log10(raw))
    return float(next(step * decade for step in (*STEPS, 10.0) if step * decade >= raw * (1 - 1e-9)))


def bin_edges(extent: float, bins: float) -> Floats:
    """Edges of bins of a nice width from 0 to at least ``extent``."""
    width = nice_width(extent, bins)
    return np.arange(int(np.ceil(max(extent, width) / width * (1 - 1e-9))) + 1, dtype=np.float64) * width


def extent(samples: Samples) -> float:
    """Until when anything is known of the round."""
    ends = [np.nanmax(column, initial=0.0) for column in (samples.due, samples.sent, samples.end, samples.event_times)]
    return float(max(ends))


def mean_active(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """How many of the intervals are open, as the mean over each bin.

    Args:
        begin: Float64 [n].
        end: Float64 [n], not before ``begin``.
        edges: Ascending, float64 [bins + 1].
    """

    def since(moments: Floats) -> Floats:
        """Sum over all moments of the time passed since then, at every edge."""
        ordered = np.sort(moments)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        passed = np.searchsorted(ordered, edges)
        return np.asarray(passed * edges - sums[passed], dtype=np.float64)

    # The sums grow with the square of the run; what is left of their difference is a count, so noise is cut away.
    mean = np.diff(since(begin) - since(end)) / np.diff(edges)
    return np.where(mean > 1e-6, mean, 0.0)


@dataclass(frozen=True, slots=True)
class Activity:
    """Requests by what they were doing, the mean over each bin.

    Attributes:
        edges: Of the bins, float64 [bins + 1].
        waiting: Due, and without output yet.
        streaming: Between first output and end.
        queued: In the server's queue as it says; None if it says nothing.
    """

    edges: Floats
    waiting: Floats
    streaming: Floats
    queued: Floats | None


def activity(samples: Samples) -> Activity:
    """What the requests were doing, moment by moment."""
    until = extent(samples)
    edges = bin_edges(until, TIMELINE_BINS)
    over = np.where(np.isnan(samples.end), until, samples.end)
    over = np.maximum(over, samples.due)
    first = np.fmin(np.where(np.isnan(samples.first), over, samples.first), over)
    told = ~np.isnan(samples.queue) & ~np.isnan(samples.sent)
    queued = None
    if told.any():
        sent = samples.sent[told]
        queued = mean_active(sent, sent + samples.queue[told], edges)
    return Activity(edges, mean_active(samples.due, first, edges), mean_active(first, over, edges), queued)


@dataclass(frozen=True, slots=True)
class Flow:
    """Rates over time, per second.

    Attributes:
        edges: Of the bins, float64 [bins + 1].
        due: Requests due.
        completed: Requests answered to the end.
        output_tokens: Tokens that came; None where the server told no counts.
    """

    edges: Floats
    due: Floats
    completed: Floats
    output_tokens: Floats | None


def flow(samples: Samples) -> Flow:
    """Rates in bins wide enough that ten requests or so fall into one."""
    until = extent(samples)
    bins = float(np.clip(len(samples) / 10, 12, FLOW_BINS))
    edges = bin_edges(until, bins)
    width = np.diff(edges)
    # What is in the last bin came in the part of it that lies within the round.
    width[-1] = max(until - edges[-2], width[-1] * 0.2)

    def rate(moments: Floats, weights: Floats | None = None) -> Floats:
        return np.asarray(np.histogram(moments, edges, weights=weights)[0] / width, dtype=np.float64)

    tokens = output_moments(samples)
    return Flow(edges, rate(samples.due), rate(samples.end[samples.succeeded]), tokens and rate(*tokens))


def thinned(moments: Floats, values: Floats, most: int) -> Ints:
    """Indexes of at most ``most`` points: the largest of every stretch of time, and of the rest every so many.

    Args:
        moments: Float64 [n].
        values: Float64 [n].
    """
    n = len(moments)
    if n <= most:
        return np.arange(n)
    stretches = most // 2
    order = np.lexsort((-values, np.floor((moments - moments.min()) / max(np.ptp(moments), 1e-9) * (stretches - 1))))
    stretch = np.floor((moments[order] - moments.min()) / max(np.ptp(moments), 1e-9) * (stretches - 1))
    largest = order[np.concatenate([[True], np.diff(stretch) > 0])]
    rest = np.setdiff1d(np.arange(n), largest)
    return np.sort(np.concatenate([largest, rest[:: -(-len(rest) // (most - len(largest)))]]))


def length_edges(counts: Ints, most: int = 40) -> Floats:
    """Edges of bins for lengths: one bin a length where there are few, logarithmic bins over more than two decades.

    Args:
        counts: Lengths in tokens, int64 [n], n at least 1.
        most: Bins at most.
    """
    low, high = int(counts.min()), int(counts.max())
    if high - low < most:
        edges = np.arange(low, high + 2, dtype=np.float64) - 0.5
    elif low > 0 and high / low > 100:
        edges = np.unique(np.rint(np.geomspace(low, high + 1, most + 1))) - 0.5
    else:
        edges = np.arange(low, high + 1 + (step := -(-(high - low + 1) // most)), step, dtype=np.float64) - 0.5
    return edges
