"""The search for the highest rate that keeps the service level, as a pure function of the trials so far.

From ``start`` the rate is doubled, or halved, until one that keeps the level and a higher one that does not are known;
then their geometric mean is tried, until they are within the tolerance. A trial is a sample, and may be wrong: so at
last both ends are tried again, and each is believed when two of at most three trials agree. An end that is not believed
changes sides, and the search goes on from there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_TRIALS = 40
REACH = 2.0**12  # the search ends this far above or below its start
LEAST_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes:
        max_rate: Highest rate that kept the level and lies below all that did not; None if none did.
        failed_rate: Lowest rate that did not keep it; None if all did: the true maximum may be higher.
    """

    max_rate: float | None
    failed_rate: float | None


@dataclass(frozen=True, slots=True)
class _Bracket:
    """Where the maximum lies, by the trials so far.

    Attributes:
        low: Highest rate that kept the level, below ``high``; None if none did.
        high: Lowest rate that did not; None if all did.
        split: A rate whose trials disagree evenly; None if there is none.
        trials: Rate to number of trials.
    """

    low: float | None
    high: float | None
    split: float | None
    trials: Counter[float]


def next_rate(
    points: Sequence[tuple[float, bool]], start: float, tolerance: float, limit: float | None = None
) -> float | None:
    """The rate to try next, or None when the search is over: after ``MAX_TRIALS`` trials at the latest.

    Where the truth is monotone and within ``REACH`` of the start, the search ends on its own, after at most 13 trials
    to bracket it, ``ceil(log2(log(2) / log(1 + tolerance)))`` to narrow it down and 2 to confirm it: 19 at a tolerance
    of 5 %, 23 at ``LEAST_TOLERANCE``.

    Args:
        points: Rate and whether it kept the level, of every trial so far, in any order; rates as this function gave
            them.
        start: The rate to try first, above 0.
        tolerance: The search ends when the lowest rate that fails is at most this share above the highest that does
            not; at least ``LEAST_TOLERANCE`` is used.
        limit: No higher rate is tried.
    """
    if limit is not None:
        start = min(start, limit)
    if not points:
        return start
    if len(points) >= MAX_TRIALS:
        return None
    found = _bracket(points)
    if found.split is not None:
        return found.split
    low, high = found.low, found.high
    if high is None:
        assert low is not None  # every trial is on one side
        higher = low * 2 if limit is None else min(low * 2, limit)
        if higher > low and higher <= start * REACH:
            return higher
    elif low is None:
        if high / 2 >= start / REACH:
            return high / 2
        return None
    elif high / low > 1 + max(tolerance, LEAST_TOLERANCE):
        return math.sqrt(low * high)
    return next((rate for rate in (low, high) if rate is not None and found.trials[rate] < 2), None)


def outcome(points: Iterable[tuple[float, bool]]) -> Outcome:
    """What the trials say, at the end of a search or before; a rate whose trials disagree evenly counts as failed."""
    found = _bracket(points, doubted=True)
    return Outcome(found.low, found.high)


def _bracket(points: Iterable[tuple[float, bool]], *, doubted: bool = False) -> _Bracket:
    """Count the trials; with ``doubted`` a rate whose trials disagree evenly is one that failed."""
    votes: Counter[float] = Counter()
    trials: Counter[float] = Counter()
    for rate, met in points:
        votes[rate] += 1 if met else -1
        trials[rate] += 1
    high = min((rate for rate, vote in votes.items() if vote < 0 or (doubted and vote == 0)), default=None)
    low = max((rate for rate, vote in votes.items() if vote > 0 and (high is None or rate < high)), default=None)
    split = next((rate for rate, vote in votes.items() if vote == 0), None)
    return _Bracket(low, high, split, trials)
