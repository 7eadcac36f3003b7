"""How soon cached things are used again, learned from this very workload.

A sample of what is cached is followed from its last use to the next, also after it was evicted. From the ages at which
uses came, and the ages that were reached without one, follows what keeping a thing of a certain age is worth.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KINDS = 8  # used 0, 1, 2 and more times since it was computed; the same of states
STATE = 4  # the first kind of states
MOST_USES = STATE - 1
# Ages in seconds, two steps an octave: bucket k begins at EDGES[k].
EDGES: Floats = np.concatenate([[0.0], 0.5 * 2.0 ** (np.arange(44) / 2)])
_WIDTHS = np.diff(EDGES, append=EDGES[-1] * 2)
# Before anything is known: the chance falls with age, for all kinds alike. It weighs as much as so many sightings.
_PRIOR = -np.expm1(-0.3 * _WIDTHS / ((EDGES + EDGES + _WIDTHS) / 2 + 10))
_PRIOR_WEIGHT = 5.0
_MOST_CHANCE = 0.999


def buckets(ages: Floats) -> Ints:
    """Which bucket each age is in; by its logarithm, which is several times as fast as a search among the edges."""
    octaves = np.log2(np.maximum(ages, EDGES[1] / 2) / EDGES[1])
    found: Ints = np.clip(np.floor(2 * octaves + 1), 0, len(EDGES) - 1).astype(np.int64)
    return found


def reuse_density(used: Floats, reached: Floats) -> Floats:
    """Expected uses a second of keeping a thing, by its kind and age.

    A thing is kept until it is used or, without a use, for some time yet, whichever length of that time is best: the
    Gittins index of its remaining life. So what is likely to be used in a minute is worth more now than what was used
    just now and may be used in an hour. Hit density of LHD (Beckmann et al., NSDI'18) is that for one fixed time.

    Args:
        used: float64 [kinds, buckets], things used again at that age.
        reached: float64 [kinds, buckets], things that reached that age without a use.

    Returns:
        float64 [kinds, buckets], per second.
    """
    pooled = _chance(used.sum(0), reached.sum(0), _PRIOR)
    chance = np.minimum(_chance(used, reached, pooled), _MOST_CHANCE)
    left = np.cumprod(1 - chance, axis=1)  # share not used by the end of each bucket
    before = np.concatenate([np.ones((len(left), 1)), left[:, :-1]], axis=1)
    waited = np.cumsum(before * _WIDTHS * (1 - chance / 2), axis=1)
    start = np.concatenate([np.zeros((len(left), 1)), waited[:, :-1]], axis=1)
    # From the start of bucket i to the end of bucket j: uses over time. Both are scaled by the share that reached i.
    # Where j comes before i there are no uses, or less than none, so j = i is better.
    rate = (before[:, :, None] - left[:, None, :]) / np.maximum(waited[:, None, :] - start[:, :, None], 1e-300)
    density: Floats = rate.max(axis=2)
    return density


def _chance(used: Floats, reached: Floats, prior: Floats) -> Floats:
    chance: Floats = (used + _PRIOR_WEIGHT * prior) / (np.maximum(reached, used) + _PRIOR_WEIGHT)
    return chance


class ReuseLog:
    """A sample of last uses and what became of them.

    Sightings are numbered; of all only every ``stride``-th is kept. When there is no place left, the older half goes if
    what is kept goes back far enough, else every second one.

    Args:
        size: Sightings to keep; an even number.
        horizon: Seconds that they shall go back to.
    """

    def __init__(self, size: int = 16384, horizon: float = 3600.0) -> None:
        self.size, self.horizon = size, horizon
        self._next = 0
        self._first = 0  # number of the oldest that is kept
        self._stride = 1
        self._count = 0
        self._since = np.zeros(size)
        self._age = np.full(size, np.inf)  # at its end; inf: nothing yet
        self._used = np.zeros(size, np.bool_)
        self._kind = np.zeros(size, np.int64)
        self._density = reuse_density(np.zeros((KINDS, len(EDGES))), np.zeros((KINDS, len(EDGES))))
        self._due = 0

    def see(self, kind: int, now: float) -> int:
        """A thing is as good as new at ``now``: its number in the sample, or -1 if it is not taken."""
        number = self._next
        self._next += 1
        if number % self._stride:
            return -1
        if self._count == self.size:
            self._thin(now)
            if number % self._stride:
                return -1
        at, self._count = self._count, self._count + 1
        self._since[at], self._age[at], self._used[at], self._kind[at] = now, np.inf, False, kind
        return number

    def renew(self, number: int, now: float) -> None:
        """Its age counts from ``now``, without a use: whoever used it last is still at it."""
        at = self._place(number)
        if at >= 0:
            self._since[at] = now

    def use(self, number: int, now: float) -> None:
        """It was used again."""
        at = self._place(number)
        if at >= 0 and self._age[at] == np.inf:
            self._age[at], self._used[at] = now - self._since[at], True

    def density(self, now: float) -> Floats:
        """float64 [kinds, buckets], see ``reuse_density``; learned anew when an eighth of the sample is new."""
        if self._next >= self._due:
            self._due = self._next + max(16, self._count * self._stride // 8)
            self._density = reuse_density(*self.curves(now))
        return self._density

    def curves(self, now: float) -> tuple[Floats, Floats]:
        """``used`` and ``reached`` of ``reuse_density``."""
        n = self._count
        ages = np.where(np.isinf(self._age[:n]), np.maximum(now - self._since[:n], 0.0), self._age[:n])
        cell = self._kind[:n] * len(EDGES) + buckets(ages)
        size = KINDS * len(EDGES)
        used = np.bincount(cell[self._used[:n]], minlength=size).reshape(KINDS, -1).astype(np.float64)
        ended = np.bincount(cell, minlength=size).reshape(KINDS, -1)
        reached = np.cumsum(ended[:, ::-1], axis=1)[:, ::-1].astype(np.float64)
        return used, reached

    def _place(self, number: int) -> int:
        if number < self._first or number % self._stride:
            return -1
        return (number - self._first) // self._stride

    def _thin(self, now: float) -> None:
        half = self.size // 2
        if now - self._since[half] >= self.horizon:
            kept = slice(half, None)
            self._first += half * self._stride
        else:
            self._stride *= 2
            skip = self._first % self._stride != 0
            kept = slice(int(skip), None, 2)
            self._first += (self._stride // 2) * skip
        for array in (self._since, self._age, self._used, self._kind):
            array[:half] = array[kept]
        self._count = half
