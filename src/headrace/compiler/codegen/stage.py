"""A stage as a C function: a loop over tasks that any thread may take."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from headrace.compiler.codegen.arrays import by_row, c_name
from headrace.compiler.codegen.cone import Cone
from headrace.compiler.codegen.functions import NestFunctions
from headrace.compiler.codegen.limits import limit_lines, limit_name
from headrace.compiler.codegen.nest import Level, LevelKind
from headrace.compiler.schedule.cones import Nest
from headrace.compiler.schedule.plan import StagePlan

ALIGNMENT = 64
PROLOGUE_ROWS = 8


class PartWriter(NestFunctions):
    """Writes all functions of a part."""

    def stage_names(self) -> list[str]:
        """The stages' functions."""
        return [f"{c_name(self.part.name)}_{n}" for n in range(len(self.plan.stages))]

    def functions(self, stages: Collection[int] | None = None) -> list[str]:
        """The functions of some stages, by their numbers; of all by default."""
        lines: list[str] = []
        for n, (name, stage) in enumerate(zip(self.stage_names(), self.plan.stages, strict=True)):
            if stages is None or n in stages:
                for nest in stage.nests():
                    lines += self.nest(nest, stage)
                lines += self.stage(name, stage)
        return lines

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
            "    const int64_t tasks = tiles * share, rounds = hr_rounds(tasks, s->threads);",
            "    int64_t ready = -1;",
            "    for (int64_t claim; (claim = hr_claim(at, rounds * s->threads)) >= 0;) {",
            "        const hr_share mine = hr_share_of(claim, tasks, s->threads, rounds);",
            "        for (int64_t task = mine.begin; task < mine.end; task++) {",
        ]
        task = [
            "const int64_t tile = task / share;",
            "int64_t rest = task % share;",
            f"const int64_t {', '.join(where)};",
            *self._scratch(stage, pointers),
        ]
        body: list[str] = []
        if stage.prologue:
            calls = self._run(stage.prologue, stage)
            condition = "!common && tile != ready" if common else "tile != ready"
            body += [f"if ({condition}) {{", *(f"    {c}" for c in calls), "    ready = tile;", "}"]
        for group, share in zip(stage.groups, shares, strict=bool(stage.groups)):
            body += [f"if (rest < {share}) {{", *(f"    {x}" for x in self._task(group, stage)), "    continue;", "}"]
            body += [f"rest -= {share};"]
        task += [*body, "(void)rest, (void)segment, (void)end;"]
        return [*lines, *(f"            {line}" for line in task), "        }", "    }", "}", ""]

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
        return f"{c_name(self.part.name)}_{nest.name}_rows(s{passed}, segment, begin, end{tail});"

    def _scratch(self, stage: StagePlan, pointers: Mapping[str, str]) -> list[str]:
        lines, offset = [], 0
        common = self._common(stage)
        for at, layout in self.local.items():
            name = self.pointers[at].pointer
            if name in pointers and not pointers[name]:
                rows = by_row(layout)
                size = layout.nbytes(self.facts.graph.types[at].dtype, {layout.pieces[0].axis: 1} if rows else {})
                # Rows are counted from the first of the batch; the tile's first lies at the start.
                shift = f" - (uintptr_t)begin * {size}" if rows else ""
                own = f"(char *)((uintptr_t)scratch + {offset}{shift})"
                where = f"common ? {self.common[at]} : {own}" if at in common else own
                lines.append(f"char *const {name} = {where};")
                offset += _round(size * (stage.row_tile if rows else 1))
        for nest in stage.nests():
            for at, size in self.memo(nest).items():
                lines.append(f"char *const m{at} = scratch + {offset};")
                offset += _round(size)
        self.arrays.scratch = max(self.arrays.scratch, offset)
        return lines


def _round(size: int) -> int:
    return (size // ALIGNMENT + 2) * ALIGNMENT
