"""What a program's schedule lets one choose, as genes; and a genome as a schedule.

A block is a stage of the default schedule. Its genes are the loops of its nests, the rows of its tiles, and whether
what each thread computes for itself is computed once, in a stage before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.compiler.codegen.layout import Layout, Piece
from headrace.compiler.ir import Kind, Op, Part
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.facts import Facts
from headrace.compiler.schedule.plan import PartPlan, StagePlan, default_tile, plan_part
from headrace.compiler.schedule.stages import Stage
from headrace.compiler.schedule.tiles import LANES, Tile
from headrace.compiler.search.genes import DEFAULT, Gene, GeneSpace, Genome, gene

ROWS = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 24)
VECTORS = (1, 2, 3, 4, 6, 8)
MOST_HELD = 32  # vectors of results; beyond it, no processor has registers for half of them
VARIANTS = ((8, 4, 2, 1), (6, 4, 3, 2, 1), (4, 2, 1), (2, 1), (1,))
BLOCKS = (1, 2, 3, 4)
STREAMS = (0, 512, 1024, 2560, 4096, 8192)
FEW = (1, 2, 4, 8)
PAGES = (0, 1, 2, 4)
ROW_TILES = (8, 16, 24, 32, 48, 64, 96, 128, 256, 512)
RAGGED_TILES = (2, 4, 8, 12, 16, 32)

FORMS = ("weight", "bias", "codes", "scales", "mins", "*")  # parts of names that many weights have

Planned = Sequence[tuple[Part, PartPlan]]


@dataclass(frozen=True, slots=True)
class Program:
    """What is scheduled.

    Attributes:
        parts: The graphs.
        maxima: The largest value of each symbol that may stand inside of an array.
        page_tokens: Tokens of a page of state.
    """

    parts: tuple[Part, ...]
    maxima: Mapping[str, int]
    page_tokens: int


def schedule(program: Program, genome: Genome = DEFAULT) -> list[tuple[Part, PartPlan]]:
    """Each part with its plan.

    Args:
        program: What to schedule.
        genome: The choices. A gene of a nest that there is not counts for nothing.
    """
    values = genome.as_dict()
    found = []
    for part in program.parts:
        chosen = _Chosen(part.name, values)
        plan = plan_part(
            part.graph,
            program.maxima,
            program.page_tokens,
            len(part.repeats),
            chosen.tile,
            chosen.row_tile,
            chosen.ragged_tile(),
            chosen.apart,
        )
        found.append((part, plan))
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A genome's choices for one part."""

    part: str
    values: Mapping[str, int]

    def tile(self, facts: Facts, nest: Nest) -> Tile:
        """Sizes of a nest."""
        tile = default_tile(facts, nest)
        return Tile(
            self._of(nest, "rows", tile.rows),
            self._of(nest, "vectors", tile.vectors),
            VARIANTS[self._of(nest, "variants", _variant(tile))],
            bool(self._of(nest, "rows_outside", tile.rows_outside)),
            bool(self._of(nest, "groups_unrolled", tile.groups_unrolled)),
            self._of(nest, "blocks", tile.blocks),
            self._of(nest, "stream", tile.stream),
            self._of(nest, "few_rows", tile.few_rows),
            self._of(nest, "pages", tile.pages),
        )

    def row_tile(self, stage: Stage) -> int:
        """Rows of a stage's tiles."""
        nests = [*stage.prologue, *(nest for group in stage.groups for nest in group.nests)]
        return next((self.values[k] for k in (f"{self.part}/{n.name}.row_tile" for n in nests) if k in self.values), 48)

    def ragged_tile(self) -> int:
        """Rows of tiles of one segment: the same in the whole program, for a step cuts its rows once."""
        return self.values.get("ragged_tile", 8)

    def apart(self, nest: Nest) -> bool:
        """Whether a nest is computed once rather than by each thread."""
        return bool(self.values.get(f"{self.part}/{nest.name}.apart", 0))

    def _of(self, nest: Nest, what: str, default: int) -> int:
        return self.values.get(f"{self.part}/{nest.name}.{what}", default)


def _variant(tile: Tile) -> int:
    return VARIANTS.index(tile.variants)


def gene_space(program: Program) -> GeneSpace:
    """The genes of a program."""
    genes: list[Gene] = []
    planned = schedule(program)
    ragged = [block_name(part, n) for part, plan in planned for n, stage in enumerate(plan.stages) if stage.ragged]
    for part, plan in planned:
        for n, stage in enumerate(plan.stages):
            genes += _of_stage(part, plan, block_name(part, n), stage)
    if ragged:
        genes += gene("ragged_tile", ragged[0], "attention", RAGGED_TILES, 8, "{} rows a tile")
    return GeneSpace(genes)


def block_name(part: Part, stage: int) -> str:
    """The block of a stage of the default schedule."""
    return f"{part.name}/{stage}"


def blocks_of(program: Program, planned: Planned) -> list[tuple[str, ...]]:
    """For each part the block of each stage of any schedule: that of the default stage which its first nest is from."""
    found = []
    for (part, default), (_, plan) in zip(schedule(program), planned, strict=True):
        home = {nest.name: block_name(part, n) for n, stage in enumerate(default.stages) for nest in stage.nests()}
        found.append(tuple(home[stage.nests()[0].name] for stage in plan.stages))
    return found


def _of_stage(part: Part, plan: PartPlan, block: str, stage: StagePlan) -> Iterable[Gene]:
    for nest in stage.nests():
        yield from _of_nest(part, plan, block, nest)
    first = f"{part.name}/{stage.nests()[0].name}"
    place = f"{part.name}: {_about(plan.facts, stage.nests())}"
    if not stage.ragged and stage.row_axis:
        yield from gene(f"{first}.row_tile", block, place, ROW_TILES, stage.row_tile, "{} rows a tile")
    if stage.groups:
        for nest in stage.prologue:
            words = ("computed by each thread that needs it", "computed once, in a stage of its own")
            name = f"{part.name}/{nest.name}.apart"
            yield from gene(name, block, f"{place}, prologue {nest.name}", (0, 1), 0, words)


def _of_nest(part: Part, plan: PartPlan, block: str, nest: Nest) -> Iterable[Gene]:
    facts, loops, tile = plan.facts, plan.loops[nest], plan.tiles[nest]
    name = f"{part.name}/{nest.name}"
    place = f"{part.name}: {_about(facts, [nest])} ({nest.name})"
    vectors = next((x.count for x in loops.levels if x.variable == f"{loops.lane}_vector"), 1)
    if not nest.contractions:
        yield from gene(f"{name}.rows", block, place, (1, 2, 4), tile.rows, "{} rows at once")
        return
    lanes = facts.graph.axes[loops.lane].extent if loops.lane else 0
    divided = loops.tasks.get(loops.lane, 0) and isinstance(lanes, int)
    if divided:
        most = -(-int(lanes) // LANES)
        fitting = [v for v in VECTORS if most % v == 0]
        yield from gene(f"{name}.vectors", block, place, fitting, tile.vectors, "{} vectors at once")
    if loops.row_axis:
        held = MOST_HELD // (len(nest.contractions) * (1 if divided else max(1, vectors)))
        rows = [r for r in ROWS if r <= held]
        yield from gene(f"{name}.rows", block, place, rows, tile.rows, "{} rows at once")
        words = tuple("rest in " + ", ".join(map(str, sizes)) for sizes in VARIANTS)
        yield from gene(f"{name}.variants", block, place, range(len(VARIANTS)), _variant(tile), words)
        if divided or vectors > 1:
            order = ("vectors outside of rows", "rows outside of vectors")
            yield from gene(f"{name}.rows_outside", block, place, (0, 1), int(tile.rows_outside), order)
    yield from _of_folds(plan, block, place, name, nest)


def _of_folds(plan: PartPlan, block: str, place: str, name: str, nest: Nest) -> Iterable[Gene]:
    facts, tile = plan.facts, plan.tiles[nest]
    grouped = any(x.variable.endswith("_group") for x in plan.loops[nest].levels)
    inputs = [facts.graph.inputs[str(facts.node(at).attrs[0])] for at in nest.nodes if facts.node(at).op is Op.INPUT]
    if grouped:
        words = ("a block's groups in a loop", "a block's groups written out")
        yield from gene(f"{name}.groups_unrolled", block, place, (0, 1), int(tile.groups_unrolled), words)
    looped = next((x for x in plan.loops[nest].levels if x.kind == "loop" and not x.steps), None)
    if looped is not None:
        turns = [b for b in BLOCKS if looped.count % b == 0]
        yield from gene(f"{name}.blocks", block, place, turns, tile.blocks, "{} blocks a turn")
    if any(declared.kind is Kind.WEIGHT for declared in inputs):
        yield from gene(f"{name}.stream", block, place, STREAMS, tile.stream, "weights fetched {} bytes ahead")
        yield from gene(f"{name}.few_rows", block, place, FEW, tile.few_rows, "fetched ahead for up to {} rows")
    if any(declared.kind is Kind.STATE for declared in inputs):
        yield from gene(f"{name}.pages", block, place, PAGES, tile.pages, "pages fetched {} ahead")


def _about(facts: Facts, nests: Sequence[Nest]) -> str:
    """What nests work with, for people: weights and states that they read, else what they feed."""
    names: dict[str, None] = {}
    for nest in nests:
        for at in sorted(nest.nodes):
            node = facts.node(at)
            if node.op is Op.INPUT:
                declared = facts.graph.inputs[str(node.attrs[0])]
                if declared.kind in (Kind.WEIGHT, Kind.STATE):
                    names[_short(declared.state or declared.name)] = None
        for n in nest.writes:
            names[_short(facts.graph.writes[n].state)] = None
    return ", ".join(names) or "activations"


def _short(name: str) -> str:
    """The part of a weight's name that tells it from others in its layer."""
    words = [word for word in re.sub(r"#\d+$", "", name).split(".") if word not in FORMS]
    return words[-1] if words else name


class Interface:
    """What blocks share: layouts of states, and of values that go from one block to another.

    Blocks of schedules that agree in it may be put together.

    Args:
        program: The program, whose default schedule is what others are compared with.
    """

    def __init__(self, program: Program) -> None:
        self._crossing: list[tuple[int, ...]] = []
        default = schedule(program)
        for _, plan in default:
            home = {nest: n for n, stage in enumerate(plan.stages) for nest in stage.nests()}
            outputs = {node for node, _ in plan.facts.graph.outputs.values()}
            found = []
            for nest, block in home.items():
                for at in nest.roots:
                    readers = {home[other] for other in home if at in other.reads}
                    if at in plan.kept and (at in outputs or readers - {block}):
                        found.append(at)
            self._crossing.append(tuple(found))
        self._default = self._of(default)

    def fits(self, planned: Planned) -> bool:
        """Whether the blocks of a schedule may be put together with those of the default one."""
        return self._of(planned) == self._default

    def _of(self, planned: Planned) -> list[object]:
        found: list[object] = []
        for (_, plan), crossing in zip(planned, self._crossing, strict=True):
            found.append({name: merged(layout) for name, layout in plan.state_layouts.items()})
            found.append([(plan.kept[at].local, merged(plan.kept[at].layout)) for at in crossing])
        return found


def merged(layout: Layout) -> Layout:
    """The layout with the fewest digits that puts every element in the same place."""
    pieces: list[Piece] = []
    records: list[tuple[int, int]] = []
    given = dict(layout.records)
    for at, piece in enumerate(layout.pieces):
        last = pieces[-1] if pieces and at not in given else None  # a record's step is not the others' product
        if last and last.axis == piece.axis and piece.extent and last.divisor == piece.divisor * piece.extent:
            pieces[-1] = Piece(piece.axis, piece.divisor, last.extent * piece.extent)
        else:
            pieces.append(piece)
        if at + 1 in given:
            records.append((len(pieces), given[at + 1]))
    return replace(layout, pieces=tuple(pieces), records=tuple(records))
