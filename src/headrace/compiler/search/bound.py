"""What no program can beat: the roofline of a step, counted from its graphs; and of a candidate, from its schedule.

Williams, Waterman, Patterson, *Roofline*, CACM 2009. Weights and the positions of states that a step needs are read at
least once; each multiply-add is done once, at the rate of the instruction that does most of its type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.compiler.codegen.nest import LevelKind
from headrace.compiler.ir import BITS, DType, Graph, Kind, Node, Op, Part, selected_axes
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.facts import Contraction, Facts
from headrace.compiler.schedule.plan import PartPlan, StagePlan
from headrace.compiler.schedule.tiles import row_variants

GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine can do at most, on all threads. A multiply-add is two operations.

    Attributes:
        memory: Bytes read from memory a second.
        int8: Operations a second on bytes.
        bf16: On bfloat16.
        float32: On float32.
        cache: Bytes that may still be in a cache from the step before; 0 counts all of it as read from memory.
    """

    memory: float
    int8: float
    bf16: float
    float32: float
    cache: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch.

    Attributes:
        name: Such as ``decode_b8``.
        rows: Of each sequence how many tokens it has, and how many are computed now.
    """

    name: str
    rows: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        """Computed in the step."""
        return sum(count for _, count in self.rows)

    @property
    def pairs(self) -> int:
        """Of a token and a position that it looks at."""
        return sum(count * start + count * (count + 1) // 2 for start, count in self.rows)

    @property
    def positions(self) -> int:
        """That some token looks at."""
        return sum(start + count for start, count in self.rows)


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes and operations.

    Attributes:
        bytes: Read from memory at least.
        int8: Operations.
        bf16: Operations.
        float32: Operations.
    """

    bytes: float = 0.0
    int8: float = 0.0
    bf16: float = 0.0
    float32: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes,
            self.int8 + other.int8,
            self.bf16 + other.bf16,
            self.float32 + other.float32,
        )

    def times(self, count: float) -> Work:
        """So many of it."""
        return Work(self.bytes * count, self.int8 * count, self.bf16 * count, self.float32 * count)

    def seconds(self, rates: Rates) -> float:
        """The least that it takes: reading and computing go on at once; types of products share their units."""
        computing = self.int8 / rates.int8 + self.bf16 / rates.bf16 + self.float32 / rates.float32
        return max(max(0.0, self.bytes - rates.cache) / rates.memory, computing)


def step_work(parts: Iterable[Part], load: Workload) -> Work:
    """What a step of a program must do.

    Args:
        parts: The graphs.
        load: The batch.
    """
    total = Work()
    for part in parts:
        total += part_work(part.graph, load).times(len(part.repeats))
    return total


def part_work(graph: Graph, load: Workload) -> Work:
    """What one run of a part must do."""
    facts = Facts(graph)
    needed = {at for root in facts.roots for at in facts.cone(root, frozenset())}
    total = Work(sum(_bytes(facts, at, load) for at in sorted(needed) if facts.node(at).op is Op.INPUT))
    for at, found in facts.contractions.items():
        if at in needed and not facts.constant[at]:
            total += _products(facts, found, _count(facts, found, load))
    return total


def stage_work(plan: PartPlan, stage: StagePlan, load: Workload) -> Work:
    """What a scheduled stage does at least, in one run: as many products as its tiles have places, used or not, and
    its weights as they lie in memory."""
    facts = plan.facts
    total = Work()
    for nest in stage.nests():
        for at in sorted(nest.nodes):
            node = facts.node(at)
            if node.op is Op.INPUT and at in plan.layouts and _streamed(facts, at):
                alone = replace(plan.layouts[at], records=())
                total += Work(alone.nbytes(facts.graph.types[at].dtype, _extents(facts.graph)))
        for found in nest.contractions:
            wasted = _padding(plan, stage, nest, found, load)
            total += _products(facts, found, _count(facts, found, load) * wasted)
    return total


def written_out(plan: PartPlan, nest: Nest) -> int:
    """Products that a nest's code has one by one, in its widest variant."""
    counts = [level.count for level in plan.loops[nest].levels if level.kind is LevelKind.UNROLL]
    return len(nest.contractions) * math.prod(counts)


def rates_of(figures: Mapping[str, float | None], cache: int = 0) -> Rates:
    """Rates from a table of giga-operations and gigabytes a second.

    Where an instruction is missing, its products are done by those of a wider type; a table without any gives no
    bound.

    Args:
        figures: ``memory``, ``int8``, ``bf16``, ``float32``.
        cache: See ``Rates``.
    """
    float32 = (figures.get("float32") or math.inf) * GIGA
    bf16 = (figures.get("bf16") or 0) * GIGA or float32
    int8 = (figures.get("int8") or 0) * GIGA or bf16
    return Rates((figures.get("memory") or math.inf) * GIGA, max(int8, bf16), max(bf16, float32), float32, cache)


def _extents(graph: Graph) -> dict[str, int]:
    return {name: axis.extent for name, axis in graph.axes.items() if isinstance(axis.extent, int)}


def _static(graph: Graph, axes: Iterable[str]) -> int:
    extents = _extents(graph)
    return math.prod(extents.get(axis, 1) for axis in axes)


def _bytes(facts: Facts, at: int, load: Workload) -> float:
    """What is read of an input."""
    graph, kind = facts.graph, facts.graph.types[at]
    declared = graph.inputs[str(facts.node(at).attrs[0])]
    size = BITS[kind.dtype] / 8
    if declared.kind is Kind.STATE:
        reads = [facts.node(c) for c in facts.consumers[at] if facts.node(c).op is Op.GATHER]
        selected = {axis for read in reads for axis in selected_axes(read)}
        return size * load.positions * _static(graph, set(kind.axes) - selected)
    if declared.kind is not Kind.WEIGHT:
        return 0.0  # arguments are small, and values of other parts still in a cache
    if _streamed(facts, at):
        return size * _static(graph, kind.axes)
    rows = min(load.tokens, max(_static(graph, kind.axes) // max(1, _row(facts, at)), 1))
    return size * rows * _row(facts, at)


def _streamed(facts: Facts, at: int) -> bool:
    """Whether all of a weight is read: not just rows of it that a step names."""
    declared = facts.graph.inputs[str(facts.node(at).attrs[0])]
    if declared.kind is not Kind.WEIGHT:
        return False
    readers = [facts.node(c) for c in facts.consumers[at]]
    return not readers or any(not _by_step(facts, reader, at) for reader in readers)


def _by_step(facts: Facts, reader: Node, at: int) -> bool:
    return reader.op is Op.GATHER and reader.args[0] == at and any(not facts.constant[i] for i in reader.args[1:])


def _row(facts: Facts, at: int) -> int:
    """Elements of a weight that one index selects."""
    selected = {axis for c in facts.consumers[at] for axis in selected_axes(facts.node(c))}
    return _static(facts.graph, set(facts.graph.types[at].axes) - selected)


def _count(facts: Facts, found: Contraction, load: Workload) -> float:
    """Multiply-adds of a contraction."""
    graph = facts.graph
    axes = facts.axes[found.left] | facts.axes[found.right] | {found.axis}
    positions = _positions(facts, found.right)
    if positions:
        return load.pairs * _static(graph, axes - positions)
    symbolic = [axis for axis in axes if isinstance(graph.axes[axis].extent, str)]
    # The rows of logits are those drawn from: one a sequence.
    rows = {"R": len(load.rows)}
    return _static(graph, axes) * math.prod(rows.get(str(graph.axes[a].extent), load.tokens) for a in symbolic[:1])


def _positions(facts: Facts, at: int) -> set[str]:
    """The axes that walk over a state's positions; empty if the value is no state."""
    at = facts.behind(at)
    node = facts.node(at)
    if node.op is not Op.GATHER or facts.node(node.args[0]).op is not Op.INPUT:
        return set()
    declared = facts.graph.inputs[str(facts.node(node.args[0]).attrs[0])]
    return set(facts.axes[at]) - set(declared.type.axes) if declared.kind is Kind.STATE else set()


def _products(facts: Facts, found: Contraction, count: float) -> Work:
    types = {facts.graph.types[facts.behind(side)].dtype for side in (found.left, found.right)}
    if types <= {DType.I8, DType.U8, DType.U4, DType.I32}:
        return Work(int8=2 * count)
    if types == {DType.BF16}:
        return Work(bf16=2 * count)
    return Work(float32=2 * count)


def _padding(plan: PartPlan, stage: StagePlan, nest: Nest, found: Contraction, load: Workload) -> float:
    """Products that are computed over those that are needed: places of a tile or a vector that hold nothing."""
    loops, extents = plan.loops[nest], _extents(plan.facts.graph)
    lane = extents.get(loops.lane, 0)
    ratio = 16 * -(-lane // 16) / lane if lane else 1.0
    if not loops.row_axis or _positions(plan.facts, found.right):
        return ratio
    rows = load.tokens if plan.facts.graph.axes[loops.row_axis].extent != "R" else len(load.rows)
    done = sum(_rows_done(min(stage.row_tile, rows - at), plan, nest) for at in range(0, rows, stage.row_tile))
    return ratio * done / rows


def _rows_done(rows: int, plan: PartPlan, nest: Nest) -> int:
    """Rows that the variants of a nest compute for so many."""
    sizes: Sequence[int] = row_variants(plan.tiles[nest])
    done = rows // sizes[0] * sizes[0]
    left = rows - done
    while left > 0:
        fit = next((n for n, smaller in zip(sizes, [*sizes[1:], 0], strict=True) if left > smaller), sizes[-1])
        done, left = done + fit, left - fit
    return done
