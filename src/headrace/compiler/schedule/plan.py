"""A part's schedule: what is kept where, which nests make which stages, which loops they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.compiler.codegen.layout import Layout, plain
from headrace.compiler.ir import Graph, Kind, Op, selected_axes
from headrace.compiler.schedule.buffers import keep
from headrace.compiler.schedule.cones import Nest, form, repeated
from headrace.compiler.schedule.facts import Facts
from headrace.compiler.schedule.records import Share, in_records
from headrace.compiler.schedule.stages import Stage, columns, divide, lane_axis, row_axis, whole_lane
from headrace.compiler.schedule.tiles import (
    LANES,
    MOST_VECTORS,
    SLAB_PAGES,
    Loops,
    Tile,
    kept_layout,
    loops_of,
    state_layout,
    weighs,
    weight_layout,
)

ROW_TILE = 48
# Of 32 vector registers, those that hold sums.
ACCUMULATORS = 24
MOST_ROWS = 8
TURNS = 8  # of a loop over positions: those of a page, two at a time
RAGGED_TILE = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a kept value is.

    Attributes:
        layout: Its elements.
        local: Whether it is in a thread's own memory.
        why: The rule that keeps it.
        unread: Whether it only goes to a state, or to where outputs go.
    """

    layout: Layout
    local: bool
    why: str
    unread: bool = False


@dataclass(frozen=True)
class StagePlan:
    """A stage with its tile.

    Attributes:
        prologue: See ``Stage``.
        groups: The nests of each group.
        ragged: See ``Stage``.
        row_axis: The axis of its rows.
        row_tile: Rows of a tile; the most, if it is ragged.
    """

    prologue: tuple[Nest, ...]
    groups: tuple[tuple[Nest, ...], ...]
    ragged: bool
    row_axis: str
    row_tile: int

    def nests(self) -> list[Nest]:
        """All of its nests, in order."""
        return [*self.prologue, *(nest for group in self.groups for nest in group)]


@dataclass(frozen=True)
class PartPlan:
    """A part's schedule.

    Attributes:
        facts: The graph.
        stages: What runs between waits.
        loops: Of each nest.
        tiles: Of each nest.
        layouts: Of each input's node.
        shares: Of those weights that lie in records with others.
        state_layouts: Of each state.
        kept: Of each kept value.
        page_tokens: Tokens of a page of state.
    """

    facts: Facts
    stages: tuple[StagePlan, ...]
    loops: Mapping[Nest, Loops]
    tiles: Mapping[Nest, Tile]
    layouts: Mapping[int, Layout]
    shares: Mapping[int, Share]
    state_layouts: Mapping[str, Layout]
    kept: Mapping[int, Memory]
    page_tokens: int


def default_tile(facts: Facts, nest: Nest) -> Tile:
    """Sizes that are sound everywhere; a search finds better ones."""
    if not nest.contractions:
        return Tile()
    if weighs(facts, nest):
        return Tile(MOST_ROWS)
    found = nest.contractions[-1]
    extents = {axis: facts.graph.axes[axis].extent for root in nest.roots for axis in facts.axes[root]}
    beside = max((e for a, e in extents.items() if a not in facts.axes[found.right] and isinstance(e, int)), default=1)
    lane = extents.get(lane_axis(facts, nest), 1)
    vectors = -(-lane // LANES) if isinstance(lane, int) else 1
    held = vectors if vectors <= MOST_VECTORS else min(2, vectors)  # a task may need all of them at once
    rows = max(1, min(MOST_ROWS, ACCUMULATORS // (beside * held * len(nest.contractions))))
    return Tile(rows, held, rows_outside=held < vectors, blocks=TURNS, few_rows=1)


def plan_part(
    graph: Graph,
    maxima: Mapping[str, int],
    page_tokens: int,
    repeats: int = 1,
    tile_for: Callable[[Facts, Nest], Tile] = default_tile,
    row_tile: int | Callable[[Stage], int] = ROW_TILE,
    ragged_tile: int = RAGGED_TILE,
    apart: Callable[[Nest], bool] = lambda nest: False,
) -> PartPlan:
    """Schedule a graph.

    Args:
        graph: What to compute.
        maxima: The largest value of each symbol that may stand inside of an array.
        page_tokens: Tokens of a page of state.
        repeats: How often the graph runs in a step, each time with its own share of a page.
        tile_for: Sizes for each nest.
        row_tile: Rows of a tile, of all stages or of each.
        ragged_tile: Most rows of a tile whose rows must be of one segment.
        apart: Which nests that need a row alone are computed in a stage of their own (see ``divide``).
    """
    facts = Facts(graph)
    kept, nests = _nests(facts)
    stages = divide(facts, nests, apart)
    tiles = {nest: tile_for(facts, nest) for nest in nests}
    loops: dict[Nest, Loops] = {}
    for stage in stages:
        for nest in stage.prologue:
            loops[nest] = loops_of(facts, nest, tiles[nest], None, True)
        for group in stage.groups:
            lead, whole = group.nests[0], whole_lane(facts, group.nests)
            for nest in group.nests:
                tile = replace(tiles[nest], vectors=tiles[lead].vectors)  # of a task's columns
                loops[nest] = loops_of(facts, nest, tile, lead, whole)
    states = _interleaved(_states(facts, loops, page_tokens), repeats)
    layouts, shares = in_records(facts, stages, loops, _layouts(facts, loops, states, maxima))
    return PartPlan(
        facts,
        tuple(_stage(facts, stage, row_tile, ragged_tile) for stage in stages),
        loops,
        tiles,
        layouts,
        shares,
        states,
        {at: _memory(facts, at, why, stages, loops, maxima) for at, why in kept.items()},
        page_tokens,
    )


def _nests(facts: Facts) -> tuple[dict[int, str], list[Nest]]:
    kept = keep(facts)
    while True:
        nests = form(facts, kept)
        again = repeated(facts, nests) - set(kept)
        if not again:
            return kept, nests
        kept = dict(sorted((kept | dict.fromkeys(again, "shared")).items()))


def _stage(facts: Facts, stage: Stage, row_tile: int | Callable[[Stage], int], ragged_tile: int) -> StagePlan:
    nests = [*stage.prologue, *(nest for group in stage.groups for nest in group.nests)]
    task_axes = stage.groups[0].axes if stage.groups else ()
    rows = max((row_axis(facts, nest, task_axes) for nest in nests), default="")  # those that have rows have these
    wanted = row_tile if isinstance(row_tile, int) else row_tile(stage)
    tile = ragged_tile if stage.ragged else wanted
    return StagePlan(stage.prologue, tuple(group.nests for group in stage.groups), stage.ragged, rows, tile)


def _states(facts: Facts, loops: Mapping[Nest, Loops], page_tokens: int) -> dict[str, Layout]:
    """The layout of each state's pages, from the nest that contracts with it."""
    found: dict[str, Layout] = {}
    for nest, mine in loops.items():
        for contraction in nest.contractions:
            source = _state_source(facts, contraction.right)
            if source is None:
                continue
            gather, read = source
            page, slot = sorted(selected_axes(facts.node(gather)))
            position = next(a for a in (mine.lane, contraction.axis) if a not in facts.graph.types[read].axes)
            name = facts.graph.inputs[str(facts.node(read).attrs[0])].state
            found[name] = state_layout(facts, mine, read, position, page, slot, page_tokens)
    for name, kind in facts.graph.states.items():  # others as they are declared
        extents = {a: facts.graph.axes[a].extent for a in kind.axes}
        pages, *rest = plain(_symbol_first(kind.axes, extents), extents).pieces
        slabs = replace(pages, divisor=SLAB_PAGES), replace(pages, extent=SLAB_PAGES)
        found.setdefault(name, Layout((*slabs, *rest)))
    return found


def _interleaved(states: Mapping[str, Layout], repeats: int) -> dict[str, Layout]:
    """The layouts in slabs that hold all states of all repetitions, one after the other."""
    slab = repeats * sum(layout.strides()[0] for layout in states.values())
    return {name: replace(layout, records=((1, slab),)) for name, layout in states.items()}


def _state_source(facts: Facts, at: int) -> tuple[int, int] | None:
    """The gather behind a value and the state that it reads."""
    at = facts.behind(at)
    node = facts.node(at)
    if node.op is not Op.GATHER or facts.node(node.args[0]).op is not Op.INPUT:
        return None
    declared = facts.graph.inputs[str(facts.node(node.args[0]).attrs[0])]
    return (at, node.args[0]) if declared.kind is Kind.STATE else None


def _layouts(
    facts: Facts, loops: Mapping[Nest, Loops], states: Mapping[str, Layout], maxima: Mapping[str, int]
) -> dict[int, Layout]:
    found: dict[int, Layout] = {}
    extents = {name: maxima.get(str(axis.extent), axis.extent) for name, axis in facts.graph.axes.items()}
    for at, node in enumerate(facts.graph.nodes):
        if node.op is not Op.INPUT:
            continue
        declared = facts.graph.inputs[str(node.attrs[0])]
        readers = [nest for nest in loops if at in nest.nodes and nest.contractions]
        if declared.kind is Kind.STATE:
            found[at] = states[declared.state]
        elif declared.kind is Kind.WEIGHT and readers:
            found[at] = weight_layout(facts, loops[readers[0]], at)
        else:
            found[at] = plain(_symbol_first(declared.type.axes, extents), extents)
    return found


def _symbol_first(axes: Sequence[str], extents: Mapping[str, int | str]) -> list[str]:
    return sorted(axes, key=lambda a: (isinstance(extents[a], int), a))


def _memory(
    facts: Facts, at: int, why: str, stages: Sequence[Stage], loops: Mapping[Nest, Loops], maxima: Mapping[str, int]
) -> Memory:
    maker = next(nest for nest in loops if at in nest.roots)
    readers = [nest for nest in loops if at in nest.reads]
    output = any(node == at for node, _ in facts.graph.outputs.values())
    rows = loops[maker].row_axis
    if not readers and not output:
        return Memory(Layout(()), True, why, unread=True)
    if output:
        extents = {a: maxima.get(str(axis.extent), axis.extent) for a, axis in facts.graph.axes.items()}
        return Memory(plain(_symbol_first(facts.graph.types[at].axes, extents), extents), False, why)
    local = any(_share_task(stage, maker, readers) for stage in stages)
    axes = columns(facts, maker) if maker.contractions else ()
    if local:
        full = kept_layout(facts, at, rows, (), loops[maker].lane, maxima)
        inner = tuple(p for p in full.pieces if p.axis not in axes)
        return Memory(Layout(inner), True, why)
    return Memory(kept_layout(facts, at, rows, axes, loops[maker].lane, maxima), False, why)


def _share_task(stage: Stage, maker: Nest, readers: Sequence[Nest]) -> bool:
    """Whether all readers are in the maker's task, or in a stage whose prologue the maker is in."""
    nests = [*stage.prologue, *(nest for group in stage.groups for nest in group.nests)]
    if maker in stage.prologue:
        return all(nest in nests for nest in readers)
    return any(maker in group.nests and all(nest in group.nests for nest in readers) for group in stage.groups)
