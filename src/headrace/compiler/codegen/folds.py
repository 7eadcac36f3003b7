"""Folds: accumulators, and what is added to them."""

from __future__ import annotations

from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.codegen.index import LANES
from headrace.compiler.codegen.nest import Item, LevelKind
from headrace.compiler.codegen.statements import Statements
from headrace.compiler.codegen.syntax import C_VECTOR, around, neutral, operation, suffix
from headrace.compiler.ir import DType, Op


class Folds(Statements):
    """Writes the folds of a nest."""

    def fold(self, at: int, item: Item) -> None:
        """Declare an accumulator before the loops over what is folded, fill it in them, reduce its lanes after them."""
        node = self.node(at)
        reducer, axis = str(node.attrs[0]), str(node.attrs[1])
        levels = self.levels[axis]
        wide = LevelKind.LANES in {x.kind for x in levels}
        ctype = C_VECTOR[self.rep(at)] if wide else self.ctype(at)
        name = f"a{at}" if wide else f"v{at}"
        place, after = self.nest.computed[at], self.nest.available[at]
        shared, kept = len(after.path), self.nest.kept[at]
        over = item.path[shared:]
        start = neutral(reducer, self.rep(at), wide or self.vector(at))
        sub = "".join(f"[{x.variable}]" for x in item.path[kept:])
        if kept == len(item.path):
            self.put(place, at, [f"{ctype} {name} = {start};"], depth=shared, time=after.times[-1] - 2)
        else:
            self.put(place, -1, [f"{self.declare(at, ctype).replace(f' v{at}', f' {name}', 1)};"], depth=kept, time=-1)
            lines = around(over, [f"{name}{sub} = {start};"])
            self.put(place, at, lines, depth=shared, time=after.times[-1] - 2)
        self.put(place, at, self.update(at, f"{name}{sub}", wide))
        if wide:
            kind = "" if kept == len(item.path) else "".join(f"[{x.count}]" for x in item.path[kept:])
            scalar = self.ctype(at)
            if kind:
                self.put(place, -1, [f"{scalar} v{at}{kind};"], depth=kept, time=-1)
            reduced = f"hr_{reducer}_{'f32' if self.rep(at) == 'f' else 'i32'}({name}{sub})"
            line = f"v{at}{sub} = {reduced};" if kind else f"const {scalar} v{at} = {reduced};"
            self.put(place, at, around(over, [line]), depth=shared, time=after.times[-1])

    def update(self, at: int, into: str, wide: bool) -> list[str]:
        """The statements that take one element, vector or group into an accumulator."""
        node = self.node(at)
        reducer, axis = str(node.attrs[0]), str(node.attrs[1])
        wide = wide or self.vector(at)
        lines = []
        for addend in self._addends(node)[0]:
            if any(self.grouped(x) for x in addend):
                lines.append(self._dot(at, addend, into))
                continue
            values = [self.value(x, wide) for x in addend]
            if self.rep(at) == "f" and any(self.rep(x) != "f" for x in addend):
                raise CannotEmit("a fold of what is no number")
            if len(values) == 2 and reducer == "sum" and self.rep(at) == "f":
                result = f"{suffix('hr_fma', wide)}({values[0]}, {values[1]}, {into})"
            else:
                op = {"sum": Op.ADD, "max": Op.MAX, "prod": Op.MUL}[reducer]
                value = values[0] if len(values) == 1 else f"({values[0]} * {values[1]})"
                result = operation(op, [into, value], self.rep(at), wide)
            lines.append(f"{into} = {self._counted(at, axis, result, into, wide)};")
        return lines

    def _counted(self, at: int, axis: str, result: str, into: str, wide: bool) -> str:
        """The new sum, or the old one where the element is behind the bound or the end of the axis."""
        node = self.node(at)
        index = self.axis_index(axis)
        extent = self.graph.axes[axis].extent
        over = isinstance(extent, int) and index.lane and extent % LANES  # the last vector is not full
        if len(node.args) == 1:
            if not over:
                return result
            bound = str(extent)
        elif self.vector(node.args[1]):
            if index.lane:
                raise CannotEmit("lanes of which each ends elsewhere")
            below = f"hr_less_i(hr_splat_i32({index.c()}), {self.value(node.args[1])})"
            return f"hr_select_{self.rep(at)}({below}, {result}, {into})"
        else:
            bound = self.value(node.args[1])
            bound = f"hr_smaller({bound}, {extent})" if over else bound
        if index.lane:
            return f"hr_select_{self.rep(at)}(hr_below({index.c()}, {bound}), {result}, {into})"
        if wide:
            return f"hr_if_{self.rep(at)}({index.c()} < {bound}, {result}, {into})"
        return f"{index.c()} < {bound} ? {result} : {into}"

    def _dot(self, at: int, addend: tuple[int, ...], into: str) -> str:
        """Add the products of a group: four of bytes or two of bfloat16.

        Where a bound ends inside of a group, one factor was stored as zero behind it, and the other must be a number.
        """
        sources = [self._source(x) for x in addend]
        values = [self.value(x) for x in addend]
        wide = [self.vector(x) for x in addend]
        words = [v if w else f"hr_splat_word({v})" for v, w in zip(values, wide, strict=True)]
        axis = str(self.node(at).attrs[1])
        if len(self.node(at).args) > 1:
            bound = self.node(at).args[1]
            ended = any(self.cone.ended.get(x, {}).get(axis) == bound for x in map(self._behind_casts, addend))
            if axis not in self.cone.limits or not ended:
                raise CannotEmit("a bound inside of a group")
            left = f"{self.cone.limits[axis]} - ({self.axis_index(axis).c()})"
            words = [
                f"hr_members_{_members(sources)}({v}, {left})" if w else v for v, w in zip(words, wide, strict=True)
            ]
        if len(addend) == 1:
            words.append("hr_splat_word(0x01010101)")
            sources.append(DType.I8)
        if not any(wide):
            raise CannotEmit("a group without lanes")
        if set(sources) == {DType.BF16}:
            return f"{into} = hr_dot2({into}, {words[0]}, {words[1]});"
        unsigned = [i for i, s in enumerate(sources) if s in (DType.U8, DType.U4)]
        if len(unsigned) != 1:
            raise CannotEmit("a group's products are of an unsigned and a signed byte")
        u = unsigned[0]
        return f"{into} = hr_dot4({into}, {words[u]}, {words[1 - u]});"

    def _behind_casts(self, at: int) -> int:
        node = self.node(at)
        return self._behind_casts(node.args[0]) if node.op is Op.CAST and not self.in_memory(at) else at

    def _source(self, at: int) -> DType:
        return self.dtype(self._behind_casts(at))


def _members(sources: list[DType]) -> int:
    """How many elements share a word."""
    return 2 if DType.BF16 in sources else 4
