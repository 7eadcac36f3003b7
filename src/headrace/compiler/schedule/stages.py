"""Stages: nests that run between two waits of all threads.

A stage walks over tiles of rows (tokens). For each tile a thread first computes the *prologue*, nests that need a row
alone, into memory of its own; it does so again for every tile that it touches, which is cheaper than waiting for each
other. Then it takes *groups*: each a chain of nests over a share of the columns, the later reading what the earlier
left in the thread's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.compiler.ir import Op
from headrace.compiler.schedule.cones import Nest, comes_before
from headrace.compiler.schedule.facts import Facts, folded

# The most columns that one task takes so that a nest after a contraction may look across them.
LONGEST_WHOLE = 128


@dataclass(frozen=True)
class Group:
    """Nests that run one after the other in a task.

    Attributes:
        nests: In order.
        axes: What tasks divide among themselves, besides rows and lanes.
    """

    nests: tuple[Nest, ...]
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """What runs between two waits.

    Attributes:
        prologue: Nests that each thread computes for the rows of its tile.
        groups: What the tasks of a tile are.
        ragged: Whether all rows of a tile must be of one segment.
    """

    prologue: tuple[Nest, ...]
    groups: tuple[Group, ...]
    ragged: bool


def divide(facts: Facts, nests: Sequence[Nest], apart: Callable[[Nest], bool] = lambda nest: False) -> list[Stage]:
    """The stages, as few as reads and writes allow.

    Args:
        facts: The graph.
        nests: Each after those that it reads from.
        apart: Prologues that are computed once, in a stage before that of whoever reads them, and not by each thread.
    """
    made = {root: nest for nest in nests for root in nest.roots}
    level: dict[Nest, int] = {}
    owner: dict[Nest, Nest] = {}  # the first nest of the group that a nest belongs to
    row_of: dict[Nest, str] = {}
    for nest in nests:
        sources = {made[at]: elsewhere for at, elsewhere in nest.reads.items()}
        follows = [s for s, elsewhere in sources.items() if _may_follow(facts, nest, owner.get(s), elsewhere)]
        lead = owner[follows[0]] if follows else _partner(facts, nest, nests, owner)
        mine = lead is None and not nest.contractions and apart(nest)
        rows = row_axis(facts, nest, columns(facts, lead or nest))
        levels = [
            level[s] + (_waits(s, mine, owner, lead, apart) or _crosses(facts, nest, rows, elsewhere, s, row_of[s]))
            for s, elsewhere in sources.items()
        ]
        levels += [level[w] + 1 for w in nests if w in level and comes_before(facts, w, nest)]
        level[nest] = max(levels, default=0)
        while rows and any(level[n] == level[nest] and row_of[n] not in ("", rows) for n in row_of):
            level[nest] += 1
        row_of[nest] = rows
        if lead is not None and level[nest] == level[lead]:
            owner[nest] = lead
        elif nest.contractions:
            owner[nest] = nest
    return [_stage(facts, [n for n in nests if level[n] == at], owner) for at in sorted(set(level.values()))]


def _crosses(facts: Facts, nest: Nest, rows: str, elsewhere: frozenset[str], source: Nest, source_rows: str) -> bool:
    """Whether a nest reads other rows than its own, which other threads may still be at; or what all rows make."""
    if not source_rows:
        return any(not isinstance(facts.graph.axes[axis].extent, int) for axis in folded(facts, source.nodes))
    return rows != source_rows or rows in elsewhere | folded(facts, nest.nodes)


def row_axis(facts: Facts, nest: Nest, task_axes: Sequence[str]) -> str:
    """The axis of rows: one of unknown length that all results have and no task divides."""
    shared = frozenset.intersection(*(facts.axes[root] for root in nest.roots)) - folded(facts, nest.nodes)
    found = [a for a in sorted(shared) if not isinstance(facts.graph.axes[a].extent, int) and a not in task_axes]
    return found[0] if found else ""


def _waits(source: Nest, mine: bool, owner: dict[Nest, Nest], lead: Nest | None, apart: Callable[[Nest], bool]) -> bool:
    """Whether a nest must wait for one that it reads: one of another group, or one that is computed once.

    Args:
        source: What it reads.
        mine: Whether the nest itself is computed once: such nests share a stage.
        owner: The group of each nest that has one.
        lead: The nest's own group, if it has one.
        apart: See ``divide``.
    """
    if source in owner:
        return owner[source] is not lead
    return apart(source) and not mine


def columns(facts: Facts, nest: Nest) -> tuple[str, ...]:
    """The axes that tasks of a contraction divide among themselves: all of the result's that rows do not need alone."""
    if not nest.contractions:
        return ()
    wide = facts.axes[nest.contractions[-1].right] & result_axes(facts, nest)
    return tuple(sorted(wide - {lane_axis(facts, nest)} - folded(facts, nest.nodes)))


def result_axes(facts: Facts, nest: Nest) -> frozenset[str]:
    """The axes of what a nest computes."""
    return frozenset().union(*(facts.axes[root] for root in nest.roots))


def lane_axis(facts: Facts, nest: Nest) -> str:
    """The axis whose neighbours share a vector: of a contraction, one of the columns; else a result's longest."""
    extents = {name: axis.extent for name, axis in facts.graph.axes.items() if isinstance(axis.extent, int)}
    choices = result_axes(facts, nest)
    if nest.contractions:
        choices &= facts.axes[nest.contractions[-1].right] - facts.axes[nest.contractions[-1].left]
    fitting = [axis for axis in sorted(choices) if axis in extents]
    strided = _strided(facts, nest)
    inside = folded(facts, nest.nodes) | _folded_next(facts, nest)
    return max(fitting, key=lambda x: (extents[x] % 16 == 0, x not in strided, x in inside, extents[x]), default="")


def _folded_next(facts: Facts, nest: Nest) -> set[str]:
    """The axes that the nearest folds after a contraction fold."""
    seen: set[int] = set()
    stack = list(nest.roots) if nest.contractions else []
    while stack:
        new = [x for x in facts.consumers[stack.pop()] if x not in seen]
        seen |= set(new)
        stack += [x for x in new if facts.node(x).op is not Op.FOLD]
    return folded(facts, seen)


def _strided(facts: Facts, nest: Nest) -> set[str]:
    """Axes whose neighbours do not lie side by side where the nest reads: they are multiplied in an index."""
    found = set()
    for at in nest.nodes:
        node = facts.node(at)
        if node.op is Op.MUL:
            found |= {str(facts.node(x).attrs[0]) for x in node.args if facts.node(x).op is Op.IOTA}
    return found


def whole_lane(facts: Facts, nests: Sequence[Nest]) -> bool:
    """Whether the first nest's tasks must have all of its lane axis: it is folded, read across, or not all have it."""
    lane = lane_axis(facts, nests[0])
    if any(lane_axis(facts, nest) != lane for nest in nests[1:]):
        return True
    across = any(lane in elsewhere for nest in nests[1:] for elsewhere in nest.reads.values())
    return across or any(lane in folded(facts, nest.nodes) for nest in nests)


def needs_segments(facts: Facts, nest: Nest) -> bool:
    """Whether a nest reads the same state for all rows of a tile, which then must be of one segment."""
    return any(at in facts.segments for at in nest.nodes) and bool(nest.contractions)


def _may_follow(facts: Facts, nest: Nest, lead: Nest | None, elsewhere: frozenset[str]) -> bool:
    """Whether a nest may run in the task of a group: it has the task's axes, and reads them at its own place."""
    if lead is None:
        return False
    task, mine, lane = set(columns(facts, lead)), result_axes(facts, nest), lane_axis(facts, lead)
    if not lane or task & folded(facts, nest.nodes):
        return False
    if nest.contractions:
        split = {lane} - folded(facts, lead.nodes) | task
        return set(columns(facts, nest)) == task and not split & folded(facts, nest.nodes) and not elsewhere
    across = lane in elsewhere | folded(facts, nest.nodes) and lane not in folded(facts, lead.nodes)
    extent = facts.graph.axes[lane].extent
    short = isinstance(extent, int) and extent <= LONGEST_WHOLE
    return task <= mine and not task & elsewhere and lane in mine and (short or not across)


def _partner(facts: Facts, nest: Nest, nests: Sequence[Nest], owner: Mapping[Nest, Nest]) -> Nest | None:
    """The lead of a group whose tasks a contraction may share, since something follows both of them."""
    if not nest.contractions:
        return None
    for lead in (n for n in dict.fromkeys(owner.values()) if columns(facts, n) == columns(facts, nest)):
        mates = {root for n in owner if owner[n] is lead for root in n.roots}
        for reader in (n for n in nests if mates & n.reads.keys() and set(nest.roots) & n.reads.keys()):
            alike = lane_axis(facts, lead) == lane_axis(facts, nest)
            elsewhere = frozenset().union(*(reader.reads[at] for at in (*mates, *nest.roots) if at in reader.reads))
            if alike and not reader.contractions and _may_follow(facts, reader, lead, elsewhere):
                return lead
    return None


def _stage(facts: Facts, nests: list[Nest], owner: dict[Nest, Nest]) -> Stage:
    leads = [nest for nest in nests if owner.get(nest) is nest]
    groups = tuple(Group(tuple(n for n in nests if owner.get(n) is lead), columns(facts, lead)) for lead in leads)
    prologue = tuple(n for n in nests if n not in owner)
    return Stage(prologue, groups, any(needs_segments(facts, n) for n in nests))
