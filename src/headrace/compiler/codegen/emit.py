"""One loop nest in C: values to variables, folds to accumulators, index arithmetic to addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.cone import Buffer, CannotEmit, Cone, Store
from headrace.compiler.codegen.index import LANES, Index, Term
from headrace.compiler.codegen.memory import LANE, Memory, Spot, walked
from headrace.compiler.codegen.nest import Item, Level, LevelKind, Place, Scope
from headrace.compiler.codegen.placement import Placement
from headrace.compiler.codegen.syntax import C_VECTOR, around, loop, neutral, operation, suffix
from headrace.compiler.ir import BITS, FLOATS, DType, Op

_NAME = re.compile(r"\bspot\d+\b")


@dataclass(slots=True)
class _Lines:
    """Statements and loops of one scope, by time."""

    entries: list[tuple[int, int, list[str]]] = field(default_factory=list)
    loops: dict[tuple[Level, int], Scope] = field(default_factory=dict)


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


class _Emitter(Placement):
    def __init__(self, cone: Cone) -> None:
        super().__init__(cone)
        self.scopes: dict[Scope, _Lines] = {(): _Lines()}
        self.names: dict[str, str] = {}  # of places that are read from memory, such as pages, to C expressions
        self.declared: set[tuple[Scope, str]] = set()

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

    def put(self, place: Place, at: int, lines: list[str], depth: int | None = None, time: int | None = None) -> None:
        """Add lines at a place, or earlier: in one of its outer scopes, at a given time."""
        depth = len(place.path) if depth is None else depth
        lines = [_NAME.sub(lambda name: self.declare_name(name[0], place), line) for line in lines]
        self.enter(place, depth, (place.times[depth] if time is None else time, at, lines))

    def enter(self, place: Place, depth: int, entry: tuple[int, int, list[str]]) -> None:
        for outer in range(depth):
            scope = self.scopes.setdefault(place.scope(outer), _Lines())
            scope.loops[place.path[outer], place.times[outer]] = place.scope(outer + 1)
        self.scopes.setdefault(place.scope(depth), _Lines()).entries.append(entry)

    def named(self, expression: str) -> str:
        """A place that is read from memory gets a variable: the C compiler does not take it out of loops by itself."""
        if "hr_get_" not in expression or re.search(rf"\b{LANE.name}\b", expression):
            return expression
        name = next((name for name, c in self.names.items() if c == expression), f"spot{len(self.names)}")
        self.names[name] = expression
        return name

    def declare_name(self, name: str, place: Place) -> str:
        """Compute a named place in the outermost loop that has all it depends on, for all unrolled turns; its C."""
        used = set(re.findall(r"\w+", self.spelled(name)))
        needed = [n for n, level in enumerate(place.path) if level.variable in used]
        depth = max((n + 1 for n in needed if place.path[n].kind is LevelKind.LOOP), default=0)
        turns = tuple(place.path[n] for n in needed if n >= depth)
        if (place.scope(depth), name) not in self.declared:
            outer = Place((*place.path[:depth], *turns), (*place.times[:depth], *(1 for _ in turns), 0))
            expression = _NAME.sub(lambda inner: self.declare_name(inner[0], outer), self.names[name])
            sub = "".join(f"[{level.variable}]" for level in turns)
            sizes = "".join(f"[{level.count}]" for level in turns)
            lines = [f"int64_t {name}{sizes};", *around(turns, [f"{name}{sub} = {expression};"])]
            if not turns:
                lines = [f"const int64_t {name} = {expression};"]
            self.declared.add((place.scope(depth), name))
            self.enter(place, depth, (-2, len(self.declared), lines))
        return name + "".join(f"[{level.variable}]" for level in turns)

    def spelled(self, expression: str) -> str:
        """An expression without names."""
        return _NAME.sub(lambda found: self.spelled(self.names[found[0]]), expression)

    def declare(self, at: int, ctype: str) -> str:
        """``type name[count]...`` of an array; a plain variable is declared where it is computed."""
        spans = self.items[at].path[self.nest.kept[at] :]
        if any(not level.count for level in spans):
            raise CannotEmit("an array would span a loop of unknown length")
        return f"{ctype} v{at}" + "".join(f"[{level.count}]" for level in spans)

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
        turned = _NAME.sub(lambda x: self.named(re.sub(rf"\b{variable}\b", later, self.spelled(x[0]))), offset.c())
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

    # -- folds

    def fold(self, at: int, item: Item) -> None:
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

    # -- text

    def lines(self, scope: Scope) -> list[str]:
        held = self.scopes[scope]
        entries = [(time, 0, at, text) for time, at, text in held.entries]
        for (level, time), inner in held.loops.items():
            entries.append(
                (
                    time,
                    1,
                    self.cone.levels.index(level),
                    loop(level, level.steps or str(level.count), self.lines(inner)),
                )
            )
        entries.sort(key=lambda entry: entry[:3])
        return [line for *_, text in entries for line in text]


def _members(sources: list[DType]) -> int:
    """How many elements share a word."""
    return 2 if DType.BF16 in sources else 4
