"""A program's parts as one C file: nests to functions, stages to loops over tasks, parts to a step."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.compiler.codegen.cone import Ahead, Buffer, CannotEmit, Cone, Store
from headrace.compiler.codegen.emit import emit
from headrace.compiler.codegen.layout import Layout
from headrace.compiler.codegen.limits import Bounds, limit_lines, limit_name, limits_of, without_groups, zero_behind
from headrace.compiler.codegen.nest import Level, LevelKind
from headrace.compiler.ir import DType, Kind, Op, Part
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.plan import PartPlan, StagePlan
from headrace.compiler.schedule.tiles import Tile

ALIGNMENT = 64
PROLOGUE_ROWS = 8


@dataclass(frozen=True, slots=True)
class Array:
    """A piece of memory that a program wants, or is given.

    Attributes:
        name: Its own; of a weight or state with a ``*`` for the repetition.
        dtype: Its elements.
        axes: Its axes, sorted.
        layout: Where they lie.
        rows: The symbol that says how long the outermost axis is; empty if that is known.
        repeats: What replaces the ``*``, repetition by repetition.
        record: The weights that lie in records with it, itself too, if it shares such.
        offset: Bytes of a record before its own.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    layout: Layout
    rows: str = ""
    repeats: tuple[str, ...] = ("",)
    record: tuple[str, ...] = ()
    offset: int = 0


@dataclass(slots=True)
class Inventory:
    """All arrays of a program, each kind with its own table of pointers."""

    weights: dict[str, Array] = field(default_factory=dict)
    arguments: dict[str, Array] = field(default_factory=dict)
    states: dict[str, Array] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    scratch: int = 0  # bytes a thread
    turns: dict[str, int] = field(default_factory=dict)  # which of its two buffers a value is in

    def slot(self, table: dict[str, Array], array: Array) -> int:
        """The number of an array in its table, entered if it is new; one that lies in two ways is there twice."""
        keys = (array.name, *(f"{array.name} ({n})" for n in range(2, len(table) + 2)))
        key = next(k for k in keys if k not in table or table[k].layout == array.layout)
        table.setdefault(key, array)
        return list(table).index(key)


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """C, and what to call it with.

    Attributes:
        text: The file.
        arrays: What its tables of pointers hold.
        symbols: Order of the symbols' values.
        stages: How many waits a step has at most.
        names: Of the stages, each once.
        parts: Of the parts.
    """

    text: str
    arrays: Inventory
    symbols: tuple[str, ...]
    stages: int
    names: tuple[str, ...]
    parts: tuple[str, ...]


def generate(parts: Sequence[tuple[Part, PartPlan]], maxima: Mapping[str, int]) -> ProgramSource:
    """The C file of a program.

    Args:
        parts: Each part with its plan.
        maxima: The largest value of each symbol that stands inside of an array.
    """
    arrays = Inventory()
    symbols = symbols_of(parts)
    functions: list[str] = []
    calls: list[str] = []
    names: list[str] = []
    parts_done: list[str] = []
    stages = 0
    for part, plan in parts:
        writer = PartWriter(part, plan, arrays, maxima)
        functions += writer.functions()
        stages += 2 * len(plan.stages) * len(part.repeats)  # for a prologue, and for the tasks
        writer.close()
        calls += _calls(part, writer.stage_names(), len(names), len(parts_done))
        parts_done.append(part.name)
        names += writer.stage_names()
    text = "\n".join([*head(symbols), *functions, *_entry(calls), ""])
    return ProgramSource(text, arrays, symbols, stages, tuple(names), tuple(parts_done))


def symbols_of(parts: Sequence[tuple[Part, PartPlan]]) -> tuple[str, ...]:
    """The symbols of a program, in the order in which a step has their values."""
    extents = {axis.extent for part, _ in parts for axis in part.graph.axes.values()}
    return tuple(sorted(extent for extent in extents if isinstance(extent, str)))


def head(symbols: Sequence[str]) -> list[str]:
    """What stands above the functions."""
    includes = ["#include <time.h>", '#include "headrace.h"', '#include "headrace_pool.h"', ""]
    sizes = [f"#define size_{name} (s->sizes[{n}])" for n, name in enumerate(symbols)]
    return [*includes, *STEP.strip().split("\n"), "", *sizes, ""]


STEP = """
#ifndef GRAINS
#define GRAINS 4  // shares of a stage's tasks for each thread, at least
#endif
#define GRAIN_TASKS 8  // tasks in a share where there are many
typedef struct {
    const int64_t *sizes;           // values of the symbols
    const void *const *weights;     // repetition by repetition
    const void *const *arguments;
    char *const *states;            // repetition by repetition
    char *const *buffers;
    char *scratch;                  // of all threads
    int64_t scratch_bytes;          // of one
    int64_t tiles;                  // shares of rows that are of one segment each:
    const int32_t *tile_segment;
    const int32_t *tile_begin;
    const int32_t *tile_end;
    int64_t weight_count, state_count;  // in one repetition
    int64_t threads;
    int64_t first_part, last_part;  // which parts run: from the first, to the one before the last
    int64_t *spent;                 // nanoseconds in each of the stages, of the first thread; or null
} hr_step;

// Into how many shares tasks are cut, each for one thread: neighbours read neighbouring weights. As many for each,
// and so many that threads end together.
HR_INLINE int64_t hr_shares(int64_t tasks, int64_t threads) {
    return hr_smaller(tasks, threads * hr_larger(GRAINS, tasks / (threads * GRAIN_TASKS)));
}
HR_INLINE int64_t hr_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
HR_INLINE int64_t hr_spend(int64_t *spent, int stage, int64_t since) {
    const int64_t now = hr_now();
    spent[stage] += now - since;
    return now;
}
"""


def _calls(part: Part, names: Sequence[str], first: int, number: int) -> list[str]:
    repeated = len(part.repeats) > 1
    lines = []
    for n, name in enumerate(names):
        lines.append(f"{name}(s, {'repeat' if repeated else '0'}, &at, scratch);")
        lines.append(f"if (spent) since = hr_spend(spent, {first + n}, since);")
    guard = f"if (s->first_part <= {number} && {number} < s->last_part)"
    loop = f" for (int64_t repeat = 0; repeat < {len(part.repeats)}; repeat++)" if repeated else ""
    return [f"    {guard}{loop} {{  // {part.name}", *(f"        {line}" for line in lines), "    }"]


def _entry(calls: Sequence[str]) -> list[str]:
    return [
        "static void step(void *context, int thread, int threads, hr_sync *sync) {",
        "    const hr_step *s = context;",
        "    char *const scratch = s->scratch + thread * s->scratch_bytes;",
        "    hr_cursor at = hr_begin(sync);",
        "    int64_t *const spent = thread ? 0 : s->spent;",
        "    int64_t since = spent ? hr_now() : 0;",
        *calls,
        "}",
        "",
        "void hr_run(hr_pool *pool, hr_step *s, int64_t stages) { hr_pool_run(pool, step, s, stages); }",
    ]


class PartWriter:
    """Writes a part's functions.

    Args:
        part: The part.
        plan: Its schedule.
        arrays: Where its arrays are noted.
        maxima: See ``generate``.
    """

    def __init__(self, part: Part, plan: PartPlan, arrays: Inventory, maxima: Mapping[str, int]) -> None:
        self.part = part
        self.plan = plan
        self.facts = plan.facts
        self.arrays = arrays
        self.maxima = maxima
        self.pointers: dict[int, Buffer] = {}  # inputs and kept values
        self.setup: dict[int, str] = {}  # how their pointers are found
        self.local: dict[int, Layout] = {}  # kept values in a thread's own memory
        self.common: dict[int, str] = {}  # of these, where those lie that a prologue computes for all threads
        self.results: dict[int, list[Buffer]] = {}  # where kept values go
        self.places: dict[str, str] = {}  # how the pointers of results are found
        self._inputs()
        self._kept()

    def stage_names(self) -> list[str]:
        """The stages' functions."""
        return [f"{_c(self.part.name)}_{n}" for n in range(len(self.plan.stages))]

    def functions(self, stages: Collection[int] | None = None) -> list[str]:
        """The functions of some stages, by their numbers; of all by default."""
        lines: list[str] = []
        for n, (name, stage) in enumerate(zip(self.stage_names(), self.plan.stages, strict=True)):
            if stages is None or n in stages:
                for nest in stage.nests():
                    lines += self.nest(nest, stage)
                lines += self.stage(name, stage)
        return lines

    # -- arrays

    def _inputs(self) -> None:
        graph = self.facts.graph
        for at, node in enumerate(graph.nodes):
            if node.op is not Op.INPUT:
                continue
            declared = graph.inputs[str(node.attrs[0])]
            layout = self.plan.layouts[at]
            name = declared.state or declared.name
            if declared.kind is Kind.VALUE:
                continue
            array = self._array(name, declared.type.dtype, declared.type.axes, layout)
            if share := self.plan.shares.get(at):
                record = tuple(str(self.facts.node(x).attrs[0]) for x in share.members)
                array = replace(array, record=record, offset=share.offset)
            table = {Kind.WEIGHT: self.arrays.weights, Kind.STATE: self.arrays.states}.get(
                declared.kind, self.arrays.arguments
            )
            slot = self.arrays.slot(table, array)
            self.pointers[at] = Buffer(
                f"in_{_c(name)}",
                array.dtype,
                layout,
                padded=declared.kind is not Kind.STATE,
                streamed=declared.kind is Kind.WEIGHT,
                pages=self.plan.page_tokens if declared.kind is Kind.STATE else 0,
            )
            kind = {Kind.WEIGHT: "weight", Kind.STATE: "state"}.get(declared.kind)
            place = f"s->{kind}s[repeat * s->{kind}_count + {slot}]" if kind else f"s->arguments[{slot}]"
            self.setup[at] = place
        self._values()

    def _values(self) -> None:
        """Values that parts hand on: a part that runs several times reads and writes two buffers in turn."""
        graph = self.facts.graph
        for at, node in enumerate(graph.nodes):
            declared = graph.inputs[str(node.attrs[0])] if node.op is Op.INPUT else None
            if declared is None or declared.kind is not Kind.VALUE:
                continue
            layout = self.plan.layouts[at]
            self.pointers[at] = Buffer(f"in_{_c(declared.name)}", declared.type.dtype, layout)
            self.setup[at] = self._value_place(declared.name, declared.type.dtype, declared.type.axes, layout, False)

    def _array(self, name: str, dtype: DType, axes: tuple[str, ...], layout: Layout) -> Array:
        first = layout.pieces[0] if layout.pieces else None
        symbol = self.facts.graph.axes[first.axis].extent if first and not first.extent else ""
        return Array(name, dtype, axes, layout, str(symbol), self.part.repeats)

    def _value_place(self, name: str, dtype: DType, axes: tuple[str, ...], layout: Layout, written: bool) -> str:
        """A part that reads and writes a value does so in two buffers in turn."""
        slots = [self.arrays.slot(self.arrays.buffers, self._array(f"{name}/{n}", dtype, axes, layout)) for n in (0, 1)]
        turn = self.arrays.turns.get(name, 0)
        if not self._turns(name):
            return f"s->buffers[{slots[turn]}]"
        turn = (turn + written) % 2
        return f"s->buffers[repeat % 2 ? {slots[1 - turn]} : {slots[turn]}]"

    def _turns(self, name: str) -> bool:
        declared = self.part.graph.inputs.get(name)
        return name in self.part.graph.outputs and declared is not None and declared.kind is Kind.VALUE

    def close(self) -> None:
        """Note where the next part finds what this one wrote."""
        for name in self.part.graph.outputs:
            turns = len(self.part.repeats) if self._turns(name) else 0
            self.arrays.turns[name] = (self.arrays.turns.get(name, 0) + turns) % 2

    def _kept(self) -> None:
        stages = [stage for stage in self.plan.stages if stage.groups and not stage.ragged]
        prologues = {root for stage in stages for nest in stage.prologue for root in nest.roots}
        for at, memory in self.plan.kept.items():
            names = [name for name, (node, _) in self.part.graph.outputs.items() if node == at]
            layout, dtype = memory.layout, self.facts.graph.types[at].dtype
            axes = self.facts.graph.types[at].axes
            for n, name in enumerate(names):
                buffer = Buffer(f"k{at}_{n}" if n else f"k{at}", dtype, layout)
                self.results.setdefault(at, []).append(buffer)
                self.places[buffer.pointer] = self._value_place(name, dtype, axes, layout, True)
            if memory.unread or (names and self.facts.node(at).op is Op.INPUT):
                continue
            self.pointers[at] = Buffer(f"k{at}", dtype, layout)
            if names:
                self.setup[at] = self.places[f"k{at}"]
                continue
            self.results[at] = [self.pointers[at]]
            array = self._array(f"{self.part.name}/{at}", dtype, axes, layout)
            if memory.local:
                self.local[at] = layout
            if memory.local and at in prologues and _by_row(layout):
                self.common[at] = f"s->buffers[{self.arrays.slot(self.arrays.buffers, array)}]"
            elif not memory.local:
                self.setup[at] = f"s->buffers[{self.arrays.slot(self.arrays.buffers, array)}]"

    # -- nests

    def cone(self, nest: Nest, stage: StagePlan) -> Cone:
        """What a nest computes, and where its operands are."""
        graph = self.facts.graph
        loops = self.plan.loops[nest]
        computed = set(nest.roots)
        tile = self.plan.tiles[nest]
        ahead = Ahead(tile.stream, tile.few_rows, tile.pages)
        buffers = {at: b for at, b in self.pointers.items() if at not in computed or self.facts.node(at).op is Op.INPUT}
        uniform = dict.fromkeys(self.facts.segments, "segment") if stage.ragged else {}
        limits = {axis: f"limit_{axis}" for axis in self._limits(nest)}
        levels = tuple(_limited(level, limits) for level in loops.levels)
        ended = {at: zero_behind(self.facts, at) for at in nest.reads}
        memo = {at: f"m{at}" for at in self.memo(nest)}
        return Cone(graph, tuple(self._stores(nest)), levels, buffers, uniform, limits, ended, ahead, memo)

    def memo(self, nest: Nest) -> dict[int, int]:
        """Values of weights alone that a product's rows share and that take long to compute, with their bytes."""
        loops = self.plan.loops[nest]
        found: dict[int, int] = {}
        for at in sorted(nest.nodes):
            counts = [x.count for x in loops.levels if x.loops and x.axis in self.facts.axes[at]]
            shared = self.facts.constant[at] and self.facts.costly[at] and loops.lane in self.facts.axes[at]
            read = any(not self.facts.constant[x] for x in set(self.facts.consumers[at]) & nest.nodes)
            if nest.contractions and shared and read and loops.row_axis and all(counts):
                found[at] = math.prod(counts) * 64
        return found

    def _limits(self, nest: Nest) -> dict[str, Bounds]:
        return limits_of(self.facts, nest, self.local.keys())

    def _stores(self, nest: Nest) -> Iterable[Store]:
        for root in nest.roots:
            for into in self.results.get(root, ()):
                yield Store(root, into, {}, zero_behind(self.facts, root))
            for n in nest.writes:
                write = self.facts.graph.writes[n]
                if write.value == root:
                    yield Store(root, self._state(write.state), dict(zip(write.axes, write.indices, strict=True)))

    def _state(self, name: str) -> Buffer:
        layout = self.plan.state_layouts[name]
        kind = self.facts.graph.states[name]
        self.arrays.slot(self.arrays.states, self._array(name, kind.dtype, kind.axes, layout))
        return Buffer(f"in_{_c(name)}", kind.dtype, layout, padded=False)

    def parameters(self, nest: Nest) -> dict[str, str]:
        """The pointers that a nest uses, with how they are found; those in a thread's memory without."""
        found: dict[str, str] = {}
        reads = set(nest.nodes) | set(nest.reads) | set(nest.roots)
        for bound in (b for root in nest.roots for b in zero_behind(self.facts, root).values()):
            reads |= set(self.facts.cone(bound, frozenset(self.plan.kept)))
        for n in nest.writes:
            write = self.facts.graph.writes[n]
            reads |= {x for i in write.indices for x in self.facts.cone(i, frozenset(self.plan.kept))}
            slot = list(self.arrays.states).index(write.state)
            found[f"in_{_c(write.state)}"] = f"s->states[repeat * s->state_count + {slot}]"
        for at in sorted(reads):
            if at in self.pointers and (at in self.setup or at in self.local):
                found[self.pointers[at].pointer] = self.setup.get(at, "")
        for root in nest.roots:
            found |= {b.pointer: self.places[b.pointer] for b in self.results.get(root, ()) if b.pointer in self.places}
        return found | {f"m{at}": "" for at in self.memo(nest)}

    def arguments(self, nest: Nest) -> list[str]:
        """The numbers that a nest is called with, besides its rows."""
        loops = self.plan.loops[nest]
        tasks = [level.variable for level in loops.levels if level.kind is LevelKind.TASK]
        return [*tasks, *(f"limit_{axis}" for axis in self._limits(nest))]

    def nest(self, nest: Nest, stage: StagePlan) -> list[str]:
        """A nest for a fixed number of rows, and the function that cuts rows into such."""
        body = self._body(self.cone(nest, stage))
        pointers = "".join(f", char *const {p}" for p in self.parameters(nest))
        numbers = "".join(f", const int64_t {v}" for v in ["segment", "row0", "row1", *self.arguments(nest)])
        name = f"{_c(self.part.name)}_{nest.name}"
        memo = bool(self.memo(nest))
        known = ", const int known" if memo else ""
        lines = [f"HR_INLINE void {name}(const hr_step *s{pointers}{numbers}, const int R{known}) {{"]
        lines += [f"    {line}" for line in body]
        lines += ["}", ""]
        passed = "".join(f", {p}" for p in self.parameters(nest))
        tail = "".join(f", {v}" for v in self.arguments(nest))
        lines += [f"static void {name}_rows(const hr_step *s{pointers}{numbers}) {{"]
        lines += ["    for (int64_t row = row0; row < row1;) {", "        const int64_t left = row1 - row;"]
        variants = row_variants(self.plan.tiles[nest])
        for n, rows in enumerate(variants):
            smaller = variants[n + 1] if n + 1 < len(variants) else 0
            condition = f"if (left > {smaller}) " if smaller else ""
            start = "        " if n == 0 else "        else "
            call = f"{name}(s{passed}, segment, row, row1{tail}, {rows}"
            calls = f"{call});"
            if memo:
                calls = f"if (row > row0) {call}, 1); else {call}, 0);" if n == 0 else f"{call}, 0);"
            lines.append(f"{start}{condition}{{ {calls} row += {rows}; }}")
        return [*lines, "    }", "}", ""]

    def _body(self, cone: Cone) -> list[str]:
        try:
            return emit(cone)
        except CannotEmit:
            return emit(without_groups(cone))

    # -- stages

    def stage(self, name: str, stage: StagePlan) -> list[str]:
        """The loop over a stage's tasks."""
        pointers: dict[str, str] = {}
        for nest in stage.nests():
            pointers |= self.parameters(nest)
        lines = [f"static void {name}(const hr_step *s, const int64_t repeat, hr_cursor *at, char *const scratch) {{"]
        lines += [f"    char *const {p} = (char *){place};" for p, place in pointers.items() if place]
        shares = [self._shares(group[0]) for group in stage.groups] or ["1"]
        if stage.ragged:
            lines += [f"    const int64_t share = {' + '.join(shares)}, tiles = s->tiles;"]
            where = ["segment = s->tile_segment[tile]", "begin = s->tile_begin[tile]", "end = s->tile_end[tile]"]
        else:
            rows = f"size_{self.facts.graph.axes[stage.row_axis].extent}" if stage.row_axis else "1"
            lines += [f"    const int64_t share = {' + '.join(shares)}, tiles = hr_steps({rows}, {stage.row_tile});"]
            where = [
                "segment = 0",
                f"begin = tile * {stage.row_tile}",
                f"end = hr_smaller(begin + {stage.row_tile}, {rows})",
            ]
        common = self._common(stage)
        if common:
            lines += self._prologue(stage, rows)
        lines += [
            "    const int64_t tasks = tiles * share, claims = hr_shares(tasks, s->threads);",
            "    int64_t ready = -1;",
            "    for (int64_t claim; (claim = hr_claim(at, claims)) >= 0;)",
            "    for (int64_t task = claim * tasks / claims, to = (claim + 1) * tasks / claims; task < to; task++) {",
            "        const int64_t tile = task / share;",
            "        int64_t rest = task % share;",
            f"        const int64_t {', '.join(where)};",
        ]
        lines += self._scratch(stage, pointers)
        body: list[str] = []
        if stage.prologue:
            calls = self._run(stage.prologue, stage)
            condition = "!common && tile != ready" if common else "tile != ready"
            body += [f"if ({condition}) {{", *(f"    {c}" for c in calls), "    ready = tile;", "}"]
        for group, share in zip(stage.groups, shares, strict=bool(stage.groups)):
            body += [f"if (rest < {share}) {{", *(f"    {x}" for x in self._task(group, stage)), "    continue;", "}"]
            body += [f"rest -= {share};"]
        lines += [f"        {line}" for line in body]
        return [*lines, "        (void)rest, (void)segment, (void)end;", "    }", "}", ""]

    def _common(self, stage: StagePlan) -> list[int]:
        """What a prologue leaves, if all of it may lie where all threads see it."""
        roots = [root for nest in stage.prologue for root in nest.roots if root in self.local]
        return roots if all(root in self.common for root in roots) else []

    def _prologue(self, stage: StagePlan, rows: str) -> list[str]:
        """With many rows threads share the prologue and wait; with few each does all of it."""
        lines = [
            f"    const int common = s->threads > 1 && {rows} >= {2 * PROLOGUE_ROWS};",
            f"    for (int64_t claim; common && (claim = hr_claim(at, hr_steps({rows}, {PROLOGUE_ROWS}))) >= 0;) {{",
            f"        const int64_t segment = 0, begin = claim * {PROLOGUE_ROWS};",
            f"        const int64_t end = hr_smaller(begin + {PROLOGUE_ROWS}, {rows});",
        ]
        places = [f"char *const {self.pointers[at].pointer} = {self.common[at]};" for at in self._common(stage)]
        return [
            *lines,
            *(f"        {x}" for x in places),
            *(f"        {x}" for x in self._run(stage.prologue, stage)),
            "    }",
        ]

    def _shares(self, lead: Nest) -> str:
        """How many tasks a tile of rows is divided into, in C."""
        factors = [self._count(level) for level in self._task_levels(lead)]
        known = math.prod(int(f) for f in factors if f.isdigit())
        return " * ".join([str(known), *(f for f in factors if not f.isdigit())])

    def _task_levels(self, lead: Nest) -> list[Level]:
        return [level for level in self.plan.loops[lead].levels if level.kind is LevelKind.TASK]

    def _only(self, nest: Nest, level: Level) -> bool:
        return all(other is level or other.axis != level.axis for other in self.plan.loops[nest].levels)

    def _count(self, level: Level) -> str:
        return str(level.count) if level.count else f"size_{self.facts.graph.axes[level.axis].extent}"

    def _task(self, group: Sequence[Nest], stage: StagePlan) -> list[str]:
        lines = []
        levels = self._task_levels(group[0])
        for n, level in enumerate(levels):
            after = " * ".join(self._count(x) for x in levels[n + 1 :]) or "1"
            lines.append(f"const int64_t {level.variable} = rest / ({after}) % {self._count(level)};")
        return lines + self._run(group, stage)

    def _run(self, nests: Sequence[Nest], stage: StagePlan) -> list[str]:
        """Calls of nests, the limits of their loops first."""
        limits: dict[str, list[str]] = {}
        for nest in nests:
            levels = [level for level in self._task_levels(nest) if self._only(nest, level)]
            if rows := self.plan.loops[nest].row_axis:
                levels.append(Level(rows, LevelKind.UNROLL, 1, 1, "row", "1", "row"))
            uniform = dict.fromkeys(self.facts.segments, "segment") if stage.ragged else {}
            cone = Cone(self.facts.graph, (), tuple(levels), self.pointers, uniform)
            for axis, bounds in self._limits(nest).items():
                limits[limit_name(axis, bounds)] = limit_lines(cone, axis, bounds)
        return [*(line for lines in limits.values() for line in lines), *map(self._call, nests)]

    def _call(self, nest: Nest) -> str:
        passed = "".join(f", {p}" for p in self.parameters(nest))
        tasks = [level.variable for level in self._task_levels(nest)]
        limits = [limit_name(axis, bounds) for axis, bounds in self._limits(nest).items()]
        tail = "".join(f", {v}" for v in (*tasks, *limits))
        return f"{_c(self.part.name)}_{nest.name}_rows(s{passed}, segment, begin, end{tail});"

    def _scratch(self, stage: StagePlan, pointers: Mapping[str, str]) -> list[str]:
        lines, offset = [], 0
        common = self._common(stage)
        for at, layout in self.local.items():
            name = self.pointers[at].pointer
            if name in pointers and not pointers[name]:
                by_row = _by_row(layout)
                size = layout.nbytes(self.facts.graph.types[at].dtype, {layout.pieces[0].axis: 1} if by_row else {})
                # Rows are counted from the first of the batch; the tile's first lies at the start.
                shift = f" - (uintptr_t)begin * {size}" if by_row else ""
                own = f"(char *)((uintptr_t)scratch + {offset}{shift})"
                where = f"common ? {self.common[at]} : {own}" if at in common else own
                lines.append(f"        char *const {name} = {where};")
                offset += _round(size * (stage.row_tile if by_row else 1))
        for nest in stage.nests():
            for at, size in self.memo(nest).items():
                lines.append(f"        char *const m{at} = scratch + {offset};")
                offset += _round(size)
        self.arrays.scratch = max(self.arrays.scratch, offset)
        return lines


def row_variants(tile: Tile) -> list[int]:
    """Row counts for which a nest is made, largest first."""
    return [tile.rows, *(n for n in tile.variants if n < tile.rows)]


def _limited(level: Level, limits: Mapping[str, str]) -> Level:
    if level.axis not in limits or level.kind is not LevelKind.LOOP:
        return level
    return replace(level, steps=f"hr_steps({limits[level.axis]}, {level.stride})")


def _by_row(layout: Layout) -> bool:
    return bool(layout.pieces) and not layout.pieces[0].extent


def _round(size: int) -> int:
    return (size // ALIGNMENT + 2) * ALIGNMENT


def _c(name: str) -> str:
    """A name that C allows."""
    return re.sub(r"\W+", "_", name)
