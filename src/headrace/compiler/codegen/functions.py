"""A nest as a C function for a fixed number of rows, and one that cuts rows into such."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from headrace.compiler.codegen.arrays import PartArrays, c_name
from headrace.compiler.codegen.cone import Ahead, Buffer, CannotEmit, Cone, Store
from headrace.compiler.codegen.emit import emit
from headrace.compiler.codegen.limits import Bounds, limits_of, without_groups, zero_behind
from headrace.compiler.codegen.nest import Level, LevelKind
from headrace.compiler.ir import Op
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.plan import StagePlan
from headrace.compiler.schedule.tiles import row_variants


class NestFunctions(PartArrays):
    """Writes the functions of a part's nests."""

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
        return Buffer(f"in_{c_name(name)}", kind.dtype, layout, padded=False)

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
            found[f"in_{c_name(write.state)}"] = f"s->states[repeat * s->state_count + {slot}]"
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
        name = f"{c_name(self.part.name)}_{nest.name}"
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


def _limited(level: Level, limits: Mapping[str, str]) -> Level:
    if level.axis not in limits or level.kind is not LevelKind.LOOP:
        return level
    return replace(level, steps=f"hr_steps({limits[level.axis]}, {level.stride})")
