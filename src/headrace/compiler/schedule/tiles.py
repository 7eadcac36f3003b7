"""Loops for nests: in which order, how far unrolled; and the memory layouts that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.compiler.codegen.layout import Layout, Piece
from headrace.compiler.codegen.nest import Level, LevelKind
from headrace.compiler.ir import DType, Op
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.facts import Contraction, Facts, folded
from headrace.compiler.schedule.stages import columns, lane_axis, result_axes, row_axis

LANES = 16
LONGEST_UNROLL = 16
SLAB_PAGES = 16  # pages of state whose like parts lie side by side
MOST_VECTORS = 4
STREAM = 2560
FEW_ROWS = 8  # so few that memory may be what a load is waited for


@dataclass(frozen=True, slots=True)
class Tile:
    """The choices of a nest: above all how much of its result is held in registers at once. None changes a result.

    Attributes:
        rows: Rows (tokens) of the widest variant; narrower ones are made for what is left over.
        vectors: Vectors of sixteen columns.
        variants: Rows of the narrower variants, largest first; the last is 1.
        rows_outside: Whether the loop over rows is outside of the one over vectors.
        groups_unrolled: Whether the loop over groups inside of a block is unrolled, inside of the rows; else it is a
            loop outside of them.
        blocks: Turns of the outermost loop over what is folded that are written out, where that divides them.
        stream: Bytes that weights are fetched ahead; 0: they are not.
        few_rows: Rows up to which they are.
        pages: Pages of state that the next one is fetched ahead; 0: it is not.
    """

    rows: int = 1
    vectors: int = 1
    variants: tuple[int, ...] = (8, 4, 2, 1)
    rows_outside: bool = False
    groups_unrolled: bool = True
    blocks: int = 1
    stream: int = STREAM
    few_rows: int = FEW_ROWS
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Loops:
    """A nest's iteration.

    Attributes:
        levels: From outer to inner.
        row_axis: The axis of its rows.
        lane: The axis whose neighbours share a vector.
        tasks: Task axis to how many of its elements one task takes.
    """

    levels: tuple[Level, ...]
    row_axis: str
    lane: str
    tasks: Mapping[str, int]


def loops_of(facts: Facts, nest: Nest, tile: Tile, lead: Nest | None, whole: bool) -> Loops:
    """The loops of a nest.

    Args:
        facts: The graph.
        nest: What is computed.
        tile: Sizes.
        lead: The first nest of its group; None in a prologue.
        whole: Whether a task has all of the lane axis.
    """
    axes = facts.graph.axes
    result = result_axes(facts, nest)
    task_axes = columns(facts, lead) if lead is not None else ()
    lane = lane_axis(facts, nest)
    rows = row_axis(facts, nest, task_axes)
    inner = [a for a in _by_share(facts, nest) if a not in (*task_axes, lane, rows)]
    vectors, lane_task = _lane(facts, nest, lane, tile, whole or lead is None)
    group = {x.axis: _group(facts, x) for x in nest.contractions}
    folds = [a for a in _folds_outside_in(facts, nest) if a != lane and a not in result]
    levels = [Level(a, LevelKind.TASK, 1, _static(facts, a), f"{a}_task") for a in task_axes]
    if lane_task:
        levels.append(Level(lane, LevelKind.TASK, lane_task, -(-_static(facts, lane) // lane_task), f"{lane}_task"))
    elif lane and vectors * LANES < _static(facts, lane):
        levels.append(_loop(facts, lane, LANES * max(1, vectors)))
    laned = _fold_lanes(facts, nest, folds, group, lane)
    looped = [a for a in folds if not (tile.groups_unrolled and _unrolled(facts, folds, group, a))]
    row_like = [a for a in inner if nest.contractions]
    levels += [_loop(facts, a, 1) for a in inner if not nest.contractions]
    loops = [_loop(facts, a, LANES if a in laned else group.get(a, 1)) for a in looped]
    levels += [part for n, x in enumerate(loops) for part in (_split(nest, x, tile.blocks) if n == 0 else (x,))]
    held = [Level(lane, LevelKind.UNROLL, LANES, vectors, f"{lane}_vector")] if vectors else []
    if rows:
        place = "hr_smaller(row0 + row, row1 - 1)"
        held.insert(0 if tile.rows_outside else 1, Level(rows, LevelKind.UNROLL, 1, tile.rows, "row", "R", place))
    levels += held
    levels += [_row_like(facts, a) for a in row_like]
    levels += [
        Level(a, LevelKind.UNROLL, group.get(a, 1), axes[a].extent // group.get(a, 1), f"{a}_group")  # type: ignore[operator]
        for a in folds
        if a not in looped
    ]
    if lane:
        levels.append(Level(lane, LevelKind.LANES, 1, LANES, "lane"))
    levels += [Level(a, LevelKind.LANES, 1, LANES, "lane") for a in looped if a in laned]
    levels += [Level(a, LevelKind.DOT, 1, size, "member") for a, size in group.items() if size > 1]
    tasks = dict.fromkeys(task_axes, 1) | ({lane: lane_task} if lane_task else {})
    return Loops(tuple(levels), rows, lane, tasks)


def _static(facts: Facts, axis: str) -> int:
    extent = facts.graph.axes[axis].extent
    return extent if isinstance(extent, int) else 0


def _lane(facts: Facts, nest: Nest, lane: str, tile: Tile, whole: bool) -> tuple[int, int]:
    """Vectors to unroll (0: a loop over single vectors), and elements of a task (0: all)."""
    if not lane:
        return 0, 0
    all_vectors = -(-_static(facts, lane) // LANES)
    folded_here = lane in folded(facts, nest.nodes)
    if whole and weighs(facts, nest) and not folded_here:
        return 0, 0  # a vector's weights fill many registers
    if whole and all_vectors <= MOST_VECTORS:
        return all_vectors, 0
    vectors = min(tile.vectors, all_vectors)
    while all_vectors % vectors:
        vectors -= 1
    if whole:
        return (vectors if vectors > 1 and folded_here and nest.contractions else 0), 0
    return vectors, vectors * LANES


def weighs(facts: Facts, nest: Nest) -> bool:
    """Whether a nest contracts with weights."""
    return any(facts.constant[found.right] for found in nest.contractions)


def _row_like(facts: Facts, axis: str) -> Level:
    """An axis that a contraction's other factor does not have, such as the heads that share keys."""
    extent = _static(facts, axis)
    return Level(axis, LevelKind.UNROLL, 1, extent, axis) if 0 < extent <= LONGEST_UNROLL else _loop(facts, axis, 1)


def _loop(facts: Facts, axis: str, stride: int) -> Level:
    extent = facts.graph.axes[axis].extent
    if isinstance(extent, str):
        return Level(axis, LevelKind.LOOP, stride, 0, f"{axis}_i", f"hr_steps(size_{extent}, {stride})")
    return Level(axis, LevelKind.LOOP, stride, -(-extent // stride), f"{axis}_i")


def _split(nest: Nest, level: Level, turns: int) -> tuple[Level, ...]:
    """A loop with so many of its turns written out, in the same order, if it has a known number of them."""
    if turns <= 1 or not nest.contractions or level.steps or level.count % turns or level.count <= turns:
        return (level,)
    outer = replace(level, stride=level.stride * turns, count=level.count // turns)
    return outer, Level(level.axis, LevelKind.UNROLL, level.stride, turns, f"{level.axis}_turn")


def _fold_lanes(facts: Facts, nest: Nest, folds: Sequence[str], group: Mapping[str, int], lane: str) -> list[str]:
    """Folds that run in vectors themselves: nothing that they fold is in vectors already."""
    found: list[str] = []
    for axis in reversed(folds):  # the innermost first
        long = group.get(axis, 1) == 1 and _static(facts, axis) >= LANES
        taken = {lane, *found}
        if long and not any(axis in _spread(facts, at) and taken & _spread(facts, at) for at in nest.nodes):
            found.append(axis)
    return found


def _spread(facts: Facts, at: int) -> set[str]:
    """The axes that code for a value runs over."""
    node = facts.node(at)
    return set(facts.axes[at]) | ({str(node.attrs[1])} if node.op is Op.FOLD else set())


def _by_share(facts: Facts, nest: Nest) -> list[str]:
    """The results' axes, those that most of them have first."""
    count = {a: sum(a in facts.axes[root] for root in nest.roots) for a in result_axes(facts, nest)}
    return sorted(count, key=lambda a: (-count[a], a))


def _folds_outside_in(facts: Facts, nest: Nest) -> list[str]:
    """Folded axes, an axis before those that are folded for each of its elements."""
    order: list[str] = []
    for at in sorted(nest.nodes, reverse=True):
        if facts.node(at).op is Op.FOLD and (axis := str(facts.node(at).attrs[1])) not in order:
            order.append(axis)
    return order


def _unrolled(facts: Facts, folds: Sequence[str], group: Mapping[str, int], axis: str) -> bool:
    inside = any(group.get(a, 1) == 1 for a in folds if a != axis)
    return group.get(axis, 1) > 1 and inside and _static(facts, axis) // group[axis] <= LONGEST_UNROLL


def _group(facts: Facts, found: Contraction) -> int:
    """How many products one instruction adds."""
    types = {facts.graph.types[facts.behind(side)].dtype for side in (found.left, found.right)}
    size = 1
    if types == {DType.BF16}:
        size = 2
    elif DType.I8 in types and types & {DType.U8, DType.U4}:
        size = 4
    extent = facts.graph.axes[found.axis].extent
    return size if isinstance(extent, int) and extent % size == 0 else 1


def weight_layout(facts: Facts, loops: Loops, at: int) -> Layout:
    """A weight in the order in which its reader's loops come to it, each vector and group together."""
    axes = facts.graph.types[at].axes
    mine = [x for x in loops.levels if x.axis in axes and x.axis != loops.row_axis]
    pieces = [Piece(x.axis, x.stride, x.count) for x in mine if x.count > 1]
    missing = [Piece(a, 1, _static(facts, a)) for a in axes if a not in {p.axis for p in pieces}]
    if facts.graph.types[at].dtype is not DType.U4:
        return Layout((*missing, *pieces))
    return _halved((*missing, *pieces))


def _halved(pieces: tuple[Piece, ...]) -> Layout:
    """Two elements a byte: the lower and the upper half of the innermost loop over groups."""
    grouped = [n for n, p in enumerate(pieces) if p.extent % 2 == 0 and p.divisor > 1]
    even = [n for n, p in enumerate(pieces) if p.extent % 2 == 0]
    if not (grouped or even):
        return Layout(pieces)  # a byte each
    at = max(grouped or even)
    split = pieces[at]
    half = Piece(split.axis, split.divisor, split.extent // 2)
    nibble = Piece(split.axis, split.divisor * split.extent // 2, 2)
    return Layout((*pieces[:at], half, *pieces[at + 1 :]), nibble)


def state_layout(facts: Facts, loops: Loops, at: int, position: str, page: str, slot: str, page_tokens: int) -> Layout:
    """A state's pages in the order in which its reader's loops come to them.

    Outermost is the slab of ``SLAB_PAGES`` pages. Which of its pages it is stands where the reader walks over
    positions, so that a reader that comes to neighbouring pages reads on and on (docs/decisions/pages.md).

    Args:
        facts: The graph.
        loops: Of the reader.
        at: The read.
        position: The axis of the reader that walks over positions.
        page: The state's axis of pages.
        slot: Its axis of places in a page.
        page_tokens: Places in a page.
    """
    axes = set(facts.graph.types[at].axes)
    beside = Piece(page, 1, SLAB_PAGES)
    pieces = [Piece(page, SLAB_PAGES, 0)]
    for level in loops.levels:
        if level.axis == position and beside not in pieces:
            pieces.append(beside)
        if level.axis == position and level.stride < page_tokens:
            pieces.append(Piece(slot, level.stride, min(level.count, page_tokens // level.stride)))
        elif level.axis in axes and level.count > 1:
            pieces.append(Piece(level.axis, level.stride, level.count))
    return Layout(tuple(pieces))


def kept_layout(facts: Facts, at: int, rows: str, outer: Sequence[str], lane: str, sizes: Mapping[str, int]) -> Layout:
    """A kept value: its rows, then the axes that tasks divide, then the rest, lanes last.

    Args:
        facts: The graph.
        at: The value.
        rows: Its axis of rows.
        outer: Axes that tasks divide.
        lane: The axis whose neighbours share a vector.
        sizes: The largest value of each symbol that may stand inside.
    """
    extents = {a: facts.graph.axes[a].extent for a in facts.axes[at]}
    fixed = {a: e if isinstance(e, int) else sizes.get(e, 0) for a, e in extents.items()}
    rest = sorted(
        (a for a in fixed if a != rows and a not in outer), key=lambda a: (a == lane, fixed[a] % LANES == 0, a)
    )
    order = [rows] * (rows in fixed) + [a for a in outer if a in fixed] + rest
    return Layout(tuple(Piece(a, 1, 0 if a == rows else fixed[a] + _padding(fixed[a], a == lane)) for a in order))


def _padding(extent: int, lanes: bool) -> int:
    """Room for the last vector, so that it can be stored whole."""
    return -extent % LANES if lanes else 0


def row_variants(tile: Tile) -> list[int]:
    """Row counts for which a nest is made, largest first."""
    return [tile.rows, *(n for n in tile.variants if n < tile.rows)]
