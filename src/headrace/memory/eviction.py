"""What goes first when memory is full: what is worth least, as pure functions, and the queue of what may go.

Value = chance of a use soon x time to compute it again / bytes. The chance comes from ``reuse``; the time from
``RecomputeCost``, whose numbers the owner of the tree measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import numpy as np

from headrace.memory.reuse import Floats, Ints

T = TypeVar("T")

# An oldest candidate of less than this share of the mean value goes without more ado. Where memory is ample the
# candidates differ by less than what can be learned about them, and age is the better guide. In that mean a value
# counts as no more than most are: a few that are used all the time say nothing of the rest.
NEXT_TO_NOTHING = 0.8
MOST = 0.9
MOST_SEEN = 1024  # candidates that are looked at for one plan
PLANNED_SHARE = 16  # one in so many of them goes before others are looked at


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """Seconds to compute tokens, or anything proportional.

    Attributes:
        per_token: Of a token.
        per_pair: Of a (query, key) pair of attention.
    """

    per_token: float = 1.0
    per_pair: float = 0.0

    def of(self, first: int, last: int) -> float:
        """Of the tokens at ``first`` to ``last - 1``, behind all before them."""
        return self.per_token * (last - first) + self.per_pair * (last * last - first * first) / 2


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pieces that may go.

    Attributes:
        ages: float64 [n], seconds since the last use.
        values: float64 [n], what a byte of each is worth.
    """

    ages: Floats
    values: Floats


Policy = Callable[[Candidates, int], Ints]


def oldest_first(candidates: Candidates, most: int) -> Ints:
    """Least recently used first: indices of up to ``most`` candidates, in the order in which they go."""
    return _smallest(-candidates.ages, most)


def least_value_first(candidates: Candidates, most: int) -> Ints:
    """Indices of up to ``most`` candidates that are worth least, in the order in which they go.

    First come the oldest as long as they are worth next to nothing; if the very oldest is worth more, it goes by value.
    """
    high = int(MOST * (len(candidates.values) - 1))
    most_usual = np.partition(candidates.values, high)[high]
    worthless = NEXT_TO_NOTHING * np.minimum(candidates.values, most_usual).mean()
    if candidates.values[candidates.ages.argmax()] >= worthless:
        # Of equal values the older goes first.
        return _smallest(candidates.values * (1 + 1e-6 / (1 + candidates.ages)), most)
    oldest = oldest_first(candidates, most)
    kept = np.flatnonzero(candidates.values[oldest] >= worthless)
    return oldest[: max(1, int(kept[0]))] if len(kept) else oldest


def _smallest(keys: Floats, most: int) -> Ints:
    if most < len(keys):
        chosen = np.argpartition(keys, most - 1)[:most]
        return np.asarray(chosen[np.argsort(keys[chosen], kind="stable")], np.int64)
    return np.argsort(keys, kind="stable")


class EvictionQueue(Generic[T]):
    """Pieces that may go, in no order: the few that go next are chosen from their values at that moment.

    Values change with time alone, so an order that is kept would have to be kept up. Of many pieces a part is looked
    at, another one each time.

    Args:
        policy: Chooses.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._items: list[T | None] = []
        self._free: list[int] = []
        self._times = np.zeros(64)
        self._kinds = np.zeros(64, np.int64)
        self._costs = np.full(64, np.nan)  # NaN: nothing there
        self._view()
        self._plan: list[int] = []  # places, the next at the end
        self._planned: set[int] = set()  # those of them where still the same stands
        self._turn = 0

    def __len__(self) -> int:
        return len(self._items) - len(self._free)

    def put(self, item: T, time: float, kind: int, cost: float) -> int:
        """Add a piece: last used at ``time``, of a kind of ``reuse``, ``cost`` a byte to compute again; its place."""
        if self._free:
            place = self._free.pop()
            self._items[place] = item
        else:
            place = len(self._items)
            self._items.append(item)
            if place == len(self._times):
                self._double()
        self.change(place, time, kind, cost)
        return place

    def change(self, place: int, time: float, kind: int, cost: float) -> None:
        """A piece was used, or is another one now."""
        self._set_time[place], self._set_kind[place], self._set_cost[place] = time, kind, cost
        self._planned.discard(place)

    def remove(self, place: int) -> None:
        """A piece is gone, or may not go any more."""
        self._items[place] = None
        self._set_cost[place] = math.nan
        self._planned.discard(place)
        self._free.append(place)

    def next(self, now: float, density: Callable[[Ints, Floats], Floats]) -> T | None:
        """The piece that goes next, which stays in the queue until it is removed; None if there is none.

        Args:
            now: The time.
            density: Expected uses a second, from kinds and ages.
        """
        while True:
            if not self._plan:
                if not len(self):
                    return None
                self._make_plan(now, density)
            while self._plan:
                place = self._plan.pop()
                if place in self._planned:
                    return self._items[place]

    def items(self) -> list[T]:
        """All pieces."""
        return [item for item in self._items if item is not None]

    def _make_plan(self, now: float, density: Callable[[Ints, Floats], Floats]) -> None:
        places = self._look()
        ages = np.maximum(now - self._times[places], 0.0)
        values = density(self._kinds[places], ages) * self._costs[places]
        chosen = places[self.policy(Candidates(ages, values), max(1, len(places) // PLANNED_SHARE))]
        self._plan = chosen[::-1].tolist()
        self._planned = set(self._plan)

    def _look(self) -> Ints:
        """Places of pieces, all or a part."""
        size = len(self._items)
        step = max(1, size // MOST_SEEN)
        for _ in range(step):
            self._turn = (self._turn + 1) % step
            places: Ints = self._turn + step * np.flatnonzero(~np.isnan(self._costs[self._turn : size : step]))
            if len(places):
                return places
        raise RuntimeError("the eviction queue lost a piece")

    def _double(self) -> None:
        more = len(self._times)
        self._times = np.concatenate([self._times, np.zeros(more)])
        self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int64)])
        self._costs = np.concatenate([self._costs, np.full(more, np.nan)])
        self._view()

    def _view(self) -> None:
        # The same memory: a number is written about twice as fast through these.
        self._set_time = cast("memoryview[float]", self._times.data)
        self._set_cost = cast("memoryview[float]", self._costs.data)
        self._set_kind = self._kinds.data
