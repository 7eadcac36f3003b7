"""Where each value of a loop nest is computed: in which loops, and before or after what.

A schedule gives the loops of a nest in one order, from outer to inner. A value is computed in exactly those loops that
it depends on, so that whatever does not change in a loop is computed outside of it; if its consumers are elsewhere, it
is kept in an array over the loops that they do not share. Loops over one level that need not wait for each other are
one loop::

    levels  kb, r, ki            y[r] = sum kb ( s[kb] * sum ki ( c[r kb ki] * q[kb ki] ) )

    for kb
        for ki   q[ki] = …                    does not depend on r
        s = …
        for r
            for ki   d += c * q[ki]           sum ki
            y[r] += s * d                     sum kb: kept over r
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum


class LevelKind(StrEnum):
    """What becomes of a level of iteration."""

    TASK = "task"  # the caller's: a task's share of a parallel axis
    LOOP = "loop"
    UNROLL = "unroll"
    LANES = "lanes"  # sixteen neighbours in a vector
    DOT = "dot"  # a group whose products one instruction adds


@dataclass(frozen=True, slots=True)
class Level:
    """One level of iteration over an axis, whose index is the sum of ``stride * variable`` over its levels.

    Attributes:
        axis: The axis.
        kind: What becomes of it.
        stride: How far one step goes.
        count: How many steps; 0 if known at run time alone.
        variable: In C.
        steps: How many steps, in C, where ``count`` does not say (then it is the most).
        index: Its part of the index, in C, where that is not the variable.
    """

    axis: str
    kind: LevelKind
    stride: int
    count: int
    variable: str
    steps: str = ""
    index: str = ""

    @property
    def loops(self) -> bool:
        """Whether it is a loop in the code."""
        return self.kind in (LevelKind.LOOP, LevelKind.UNROLL)


Path = tuple[Level, ...]
# A loop of the code: levels from outer to inner, each with its place in time among its scope's loops.
Scope = tuple[tuple[Level, int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is computed, or where it is to be had.

    Attributes:
        path: The loops.
        times: One more than loops: the time of each loop in its scope (odd), then the time of the value (even).
    """

    path: Path
    times: tuple[int, ...]

    def scope(self, depth: int) -> Scope:
        """The first ``depth`` loops."""
        return tuple(zip(self.path[:depth], self.times[:depth], strict=True))


@dataclass(frozen=True, slots=True)
class Item:
    """A value to place.

    Attributes:
        path: The loops that its result depends on.
        inside: The loops that it is computed in: more than ``path`` for a fold, over what it folds.
        needs: The values that it reads.
    """

    path: Path
    inside: Path
    needs: tuple[int, ...]

    @property
    def folds(self) -> bool:
        """Whether there are loops that only its computation has."""
        return self.path != self.inside


@dataclass(slots=True)
class Nest:
    """The result.

    Attributes:
        computed: Where each value is computed.
        available: Where it is to be had: for a fold, after its loops.
        kept: How many of the outer loops of its path a value's array does not span (all: a plain variable).
    """

    computed: dict[int, Place] = field(default_factory=dict)
    available: dict[int, Place] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)


def path_of(levels: Sequence[Level], axes: Set[str]) -> Path:
    """The loops that a value with these axes depends on."""
    return tuple(level for level in levels if level.loops and level.axis in axes)


def arrange(items: Mapping[int, Item]) -> Nest:
    """Place values: as early as what they need allows, then as late as whoever reads them allows.

    The first pass shares loops; the second lets a value live no longer than it must.

    Args:
        items: By number; a value's needs have smaller numbers.
    """
    nest = Nest()
    for at in sorted(items):
        _settle(nest, items[at], at, _earliest(nest, items[at]))
    readers: dict[int, list[int]] = {}
    for at, item in items.items():
        for need in item.needs:
            readers.setdefault(need, []).append(at)
    for at in sorted(items, reverse=True):
        if not items[at].folds and at in readers:
            place = _latest(nest, items[at], readers[at])
            if place is not None:
                _settle(nest, items[at], at, place)
    for at, item in items.items():
        shared = len(nest.available[at].path)
        nest.kept[at] = min([shared, *(_together(nest.available[at], nest.computed[r]) for r in readers.get(at, []))])
        if not item.folds and nest.kept[at] == shared:
            nest.kept[at] = len(item.path)
    return nest


def _settle(nest: Nest, item: Item, at: int, place: Place) -> None:
    nest.computed[at] = nest.available[at] = place
    if item.folds:
        shared = _shared(item.path, item.inside)
        after = (*place.times[:shared], place.times[shared] + 1)
        nest.available[at] = Place(item.inside[:shared], after)


def _earliest(nest: Nest, item: Item) -> Place:
    times: list[int] = []
    close = [nest.available[need] for need in item.needs]  # in the same loops so far
    for depth in range(len(item.inside) + 1):
        last = depth == len(item.inside)
        time = 0 if last else 1
        for place in close:
            if not last and depth < len(place.path) and place.path[depth] == item.inside[depth]:
                time = max(time, place.times[depth])
            else:
                time = max(time, _after(place.times[depth], last))
        times.append(time)
        if not last:
            close = [p for p in close if p.path[depth : depth + 1] == (item.inside[depth],) and p.times[depth] == time]
    return Place(item.inside, tuple(times))


def _latest(nest: Nest, item: Item, readers: Sequence[int]) -> Place | None:
    """The place just before the first reader, if all readers are in the same loops over what the value depends on."""
    depth = len(item.path)
    places = [nest.computed[reader] for reader in readers]
    loops = {place.times[:depth] for place in places if place.path[:depth] == item.path}
    if len(loops) != 1 or any(place.path[:depth] != item.path for place in places):
        return None
    time = min(place.times[depth] - place.times[depth] % 2 for place in places)
    return Place(item.path, (*loops.pop(), time))


def _together(value: Place, reader: Place) -> int:
    """How many outer loops a value's place and its reader's have in common."""
    depth = 0
    while depth < min(len(value.path), len(reader.path)) and value.scope(depth + 1) == reader.scope(depth + 1):
        depth += 1
    return depth


def _after(time: int, statement: bool) -> int:
    """The first time not before ``time``, even for a statement and odd for a loop; a loop's own time is over at + 1."""
    ready = time + time % 2
    return ready if statement else ready + 1


def _shared(a: Path, b: Path) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count
