"""One loop nest in C: values to variables, folds to accumulators, index arithmetic to addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.cone import Buffer, CannotEmit, Cone, Store
from headrace.compiler.codegen.folds import Folds
from headrace.compiler.codegen.index import LANES, Index, Term
from headrace.compiler.codegen.memory import Memory, Spot, walked
from headrace.compiler.codegen.nest import LevelKind, Place
from headrace.compiler.codegen.statements import NAME
from headrace.compiler.codegen.syntax import C_VECTOR, neutral, operation, suffix
from headrace.compiler.ir import BITS, FLOATS, DType, Op


def emit(cone: Cone) -> list[str]:
    """The nest as lines of C, unindented at the outside.

    Raises:
        CannotEmit: There is no code for this schedule.
    """
    return _Emitter(cone).run()


def index_of(cone: Cone, node: int) -> str:
    """An integer of the cone, the same in all lanes, in C.

    Raises:
        CannotEmit: It is no index arithmetic.
    """
    found = Memory(cone).index(node)
    if found is None or not found.uniform:
        raise CannotEmit("it is no index that all lanes share")
    return found.c()


class _Emitter(Folds):
    def run(self) -> list[str]:
        self.plan()
        for at, item in self.items.items():
            if at >= len(self.graph.nodes):
                store = self.cone.stores[at - len(self.graph.nodes)]
                self.put(self.nest.computed[at], at, self.store(store))
            elif self.node(at).op is Op.FOLD and not self.in_memory(at):
                self.fold(at, item)
            else:
                self.plain(at)
        return self.lines(())

    def plain(self, at: int) -> None:
        place, kept = self.nest.computed[at], self.nest.kept[at]
        if self.in_memory(at) and (ahead := self.ahead(at, place)):
            self.put(place, at, [ahead])
        if kept == len(place.path):
            self.put(place, at, self.memo(at, place) or [f"const {self.ctype(at)} v{at} = {self.compute(at)};"])
            return
        self.put(place, -1, [f"{self.declare(at, self.ctype(at))};"], depth=kept, time=-1)
        self.put(place, at, [f"{self.variable(at)} = {self.compute(at)};"])

    def memo(self, at: int, place: Place) -> list[str]:
        """A value that rows of a task share: the first compute it, those after them read it."""
        if at not in self.cone.memo:
            return []
        index, step = Index(), LANES
        for level in reversed(place.path):
            index, step = ix.add(index, Index((Term(level.variable, step, level.count),))), step * level.count
        where = f"{self.cone.memo[at]}, {index.c()}"
        kind = "f32" if self.rep(at) == "f" else "i32"
        return [
            f"{self.ctype(at)} v{at};",
            f"if (known) v{at} = hr_load_{kind}({where}); else v{at} = {self.compute(at)};",
            f"if (!known && R == {max(level.count for level in self.cone.levels if level.steps == 'R')}) "
            f"hr_store_{kind}({where}, v{at});",
        ]

    def ahead(self, at: int, place: Place) -> str:
        """The statement that fetches what a later turn of the loops will read."""
        buffer, spots = self.place_in(at)
        offset = self.offset(buffer, spots)
        ahead = self.cone.ahead
        if offset is None or not (ahead.stream if buffer.streamed else buffer.pages and ahead.pages):
            return ""
        byte = "" if buffer.layout.nibble else f" * {BITS[buffer.dtype] // 8}"
        if buffer.streamed:
            first = "!known && " if self.cone.memo else ""  # those after them find it in the cache
            where = f"{buffer.pointer}, ({offset.c()}){byte} + {ahead.stream}"
            return f"if ({first}R <= {ahead.few_rows}) hr_prefetch({where});"
        loops = [x for x in place.path if x.kind is LevelKind.LOOP]
        walked = [x for x in loops if x.axis not in self.graph.types[self.node(at).args[0]].axes]
        if not walked:
            return ""
        variable = walked[0].variable
        later = f"({variable} + {-(-ahead.pages * buffer.pages // walked[0].stride)})"
        turned = NAME.sub(lambda x: self.named(re.sub(rf"\b{variable}\b", later, self.spelled(x[0]))), offset.c())
        return f"if (R <= {ahead.few_rows}) hr_prefetch({buffer.pointer}, ({turned}){byte});"

    def compute(self, at: int) -> str:
        node = self.node(at)
        if self.in_memory(at):
            return self.load(at)
        if self.grouped(at):
            raise CannotEmit(f"{node.op} of the members of a group")
        wide = self.vector(at)
        if self.is_iota(at) or node.op is Op.IOTA:
            axis, divisor = (self.node(node.args[0]) if node.args else node).attrs
            spot = self.spot(str(axis), node.args[1]) if node.args else walked(self.axis_index(str(axis)))
            single = f"({spot.single.c()})"
            return f"HR_LANES(i32x16, {single} / {divisor})" if wide else f"(int32_t)({single} / {divisor})"
        rep = self.rep(node.args[0]) if node.op is not Op.SELECT else self.rep(at)
        if node.op is Op.SELECT:
            yes, no = (self.value(x, wide) for x in node.args[1:])
            condition = self.condition(node.args[0])
            if condition is None and not self.vector(node.args[0]):
                condition = self.value(node.args[0])
            if condition is not None:
                return f"hr_if_{rep}({condition}, {yes}, {no})" if wide else f"{condition} ? {yes} : {no}"
            return f"hr_select_{rep}({self.value(node.args[0])}, {yes}, {no})"
        values = [self.value(x, wide) for x in node.args]
        if node.op is Op.CAST:
            return self._cast(at, values[0], wide)
        result = operation(node.op, values, rep, wide)
        half = self.dtype(at) in (DType.BF16, DType.F16) and node.op is not Op.MAX
        return suffix(f"hr_round_{self.dtype(at)}", wide) + f"({result})" if half else result

    def _cast(self, at: int, value: str, wide: bool) -> str:
        source, target = self.dtype(self.node(at).args[0]), self.dtype(at)
        if source is DType.BOOL and target is not DType.BOOL:
            value = f"({value} & 1)"
        if source not in FLOATS and target in FLOATS:
            value = suffix("hr_to_f32", wide) + f"({value})"
        if target in (DType.BF16, DType.F16):
            return suffix(f"hr_round_{target}", wide) + f"({value})"
        if source in FLOATS and target not in FLOATS:
            value = suffix("hr_rint", wide) + f"({value})"
        return f"({value} != 0)" if target is DType.BOOL and source is not DType.BOOL else value

    # -- results

    def store(self, store: Store) -> list[str]:
        buffer = store.into
        spots = {
            axis: self.spot(axis, store.indices[axis]) if axis in store.indices else walked(self.axis_index(axis))
            for axis in sorted(buffer.layout.axes())
        }
        offset = self.offset(buffer, spots)
        axis = self.lane_axis(store)
        if not axis:
            if offset is None or not offset.uniform:
                raise CannotEmit("a single value has no single place")
            value = self._ended(store, self.value(store.node), False)
            return [f"hr_put_{buffer.dtype}({buffer.pointer}, {offset.c()}, {value});"]
        value = self._ended(store, self.value(store.node, as_vector=True), True)
        extent = self.graph.axes[axis].extent
        vectors = -(-extent // LANES) * LANES if isinstance(extent, int) else 0
        whole = vectors == extent or (axis not in store.indices and buffer.layout.covers(axis, vectors))
        if offset is not None and offset.lane == 1 and whole:
            return [f"hr_store_{buffer.dtype}({buffer.pointer}, {offset.c()}, {value});"]
        return self._scattered(buffer, spots, value, axis, whole)

    def lane_axis(self, store: Store) -> str:
        """The axis along which neighbours of a stored value, or of its place, share a vector; none if they do not."""
        axes = self.axes[store.node].union(*(self.axes[x] for x in store.indices.values()))
        axes |= {axis for axis in store.into.layout.axes() if axis not in store.indices}
        return next((x.axis for x in self.cone.levels if x.kind is LevelKind.LANES and x.axis in axes), "")

    def _ended(self, store: Store, value: str, wide: bool) -> str:
        """The value, or zero behind its bounds."""
        rep = self.rep(store.node)
        for axis, bound in store.bounds.items():
            index, end = self.axis_index(axis), self.value(bound)
            if wide and index.lane:
                value = f"hr_select_{rep}(hr_below({index.c()}, {end}), {value}, {neutral('sum', rep, True)})"
            else:
                value = f"({index.c()} < {end} ? {value} : {neutral('sum', rep, wide)})"
        return value

    def _scattered(self, buffer: Buffer, spots: Mapping[str, Spot], value: str, axis: str, whole: bool) -> list[str]:
        """Lane by lane, each to its own place."""
        offset = self.offset(buffer, spots, single=True)
        if offset is None or not offset.uniform:
            raise CannotEmit("the lanes of a vector lie in no order")
        last = str(LANES) if whole else f"hr_lanes({self.axis_index(axis).c()}, {self.length(axis)})"
        return [
            "{",
            f"    const {C_VECTOR['f' if buffer.dtype in FLOATS else 'i']} lanes = {value};",
            f"    for (int lane = 0; lane < {last}; lane++)",
            f"        hr_put_{buffer.dtype}({buffer.pointer}, {offset.c()}, lanes[lane]);",
            "}",
        ]
