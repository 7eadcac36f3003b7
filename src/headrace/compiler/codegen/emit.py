"""One loop nest in C: values to variables, folds to accumulators, index arithmetic to addresses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.index import LANES, Index, Term
from headrace.compiler.codegen.layout import Layout, Piece
from headrace.compiler.codegen.nest import Item, Level, LevelKind, Nest, Path, Place, Scope, arrange, path_of
from headrace.compiler.ir import FLOATS, SCAN, DType, Graph, Node, Op, selected_axes
from headrace.errors import HeadraceError

# Operations whose addition has no order to keep, whatever the types.
INTEGER = (DType.I32, DType.I64)
C_SCALAR = {"f": "float", "i": "int32_t", "b": "int32_t"}
C_VECTOR = {"f": "f32x16", "i": "i32x16", "b": "i32x16"}
GROUP_SCALAR, GROUP_VECTOR = "int32_t", "u8x64"


class CannotEmit(HeadraceError):
    """A schedule asks for code that there is no way to write; the search drops it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array in memory.

    Attributes:
        pointer: To its first element, in C.
        dtype: Its elements.
        layout: Where they lie.
        padded: Whether a vector may run over the end of the last axis without harm.
    """

    pointer: str
    dtype: DType
    layout: Layout
    padded: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """A value that a nest is there to compute.

    Attributes:
        node: The value.
        into: Where it goes.
        indices: Nodes that say where along an axis of the buffer, for those that are not the value's own.
        bounds: Axis to the node that says where it ends for this value; what lies behind is stored as zero.
    """

    node: int
    into: Buffer
    indices: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cone:
    """A loop nest and what it computes.

    Attributes:
        graph: Where the nodes are.
        stores: What is computed.
        levels: The iteration, from outer to inner.
        buffers: Nodes that are in memory already.
        uniform: Nodes that are the same in the whole task, though they have an axis that it runs over, in C.
        limits: Axis that is folded only so far, to the farthest that any value of the task folds it, in C.
    """

    graph: Graph
    stores: tuple[Store, ...]
    levels: tuple[Level, ...]
    buffers: Mapping[int, Buffer]
    uniform: Mapping[int, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


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
    found = _Emitter(cone).index(node)
    if found is None or not found.uniform:
        raise CannotEmit("it is no index that all lanes share")
    return found.c()


class _Emitter:
    def __init__(self, cone: Cone) -> None:
        self.cone = cone
        self.graph = cone.graph
        self.levels = {axis: [x for x in cone.levels if x.axis == axis] for axis in {x.axis for x in cone.levels}}
        self.uses = _uses(cone)
        self.axes = _axes(cone, self.uses)
        self.fused: set[int] = set()
        self.items: dict[int, Item] = {}
        self.nest = Nest()
        self.scopes: dict[Scope, _Lines] = {(): _Lines()}
        self._indices: dict[int, Index | None] = {}

    # -- what is what

    def node(self, at: int) -> Node:
        return self.graph.nodes[at]

    def dtype(self, at: int) -> DType:
        return self.graph.types[at].dtype

    def rep(self, at: int) -> str:
        """``f``, ``i`` or ``b``: how registers hold a value of this type."""
        dtype = self.dtype(at)
        return "b" if dtype is DType.BOOL else "f" if dtype in FLOATS else "i"

    def kinds(self, at: int) -> set[LevelKind]:
        return {x.kind for axis in self.axes[at] for x in self.levels.get(axis, ())}

    def vector(self, at: int) -> bool:
        return LevelKind.LANES in self.kinds(at)

    def grouped(self, at: int) -> bool:
        return LevelKind.DOT in self.kinds(at)

    def unread(self, at: int) -> bool:
        """Whether a value is its argument as registers hold it: a cast to a wider type of one kind."""
        node = self.node(at)
        if node.op is not Op.CAST or self.in_memory(at):
            return False
        source = self.dtype(node.args[0])
        narrower = self.dtype(at) in (DType.BF16, DType.F16)
        return self.grouped(at) or (
            self.rep(at) == self.rep(node.args[0]) and source is not DType.BOOL and not narrower
        )

    def ctype(self, at: int) -> str:
        if self.grouped(at):
            return GROUP_VECTOR if self.vector(at) else GROUP_SCALAR
        return (C_VECTOR if self.vector(at) else C_SCALAR)[self.rep(at)]

    # -- indices

    def axis_index(self, axis: str) -> Index:
        total = Index()
        for level in self.levels.get(axis, ()):
            if level.kind is LevelKind.LANES:
                part = Index(lane=level.stride)
            elif level.kind is LevelKind.DOT:
                part = Index(dot=level.stride, dots=level.count)
            else:
                known = 0 if level.index else level.count
                part = Index((Term(level.index or level.variable, level.stride, known),))
            total = ix.add(total, part)
        if axis not in self.levels:
            raise CannotEmit(f"no loop runs over axis {axis!r}")
        return total

    def index(self, at: int) -> Index | None:
        """An integer value as index arithmetic; None if it is none."""
        if at not in self._indices:
            self._indices[at] = self._index(at) if self.dtype(at) in INTEGER else None
        return self._indices[at]

    def _index(self, at: int) -> Index | None:
        node = self.node(at)
        if at in self.cone.uniform:
            return ix.opaque(self.cone.uniform[at])
        if at in self.cone.buffers or node.op is Op.GATHER:
            return self._loaded_index(at)
        match node.op:
            case Op.CONST:
                return ix.constant(int(node.attrs[0]))  # type: ignore[arg-type]
            case Op.IOTA:
                return ix.divide(self.axis_index(str(node.attrs[0])), int(node.attrs[1]))  # type: ignore[arg-type]
            case Op.CAST:
                return self.index(node.args[0])
            case Op.ADD | Op.MUL | Op.MOD | Op.MAX:
                a, b = (self.index(x) for x in node.args)
                return None if a is None or b is None else _arithmetic(node.op, a, b)
            case Op.SELECT:
                condition = self.condition(node.args[0])
                yes, no = (self.index(x) for x in node.args[1:])
                if condition is None or yes is None or no is None or not (yes.uniform and no.uniform):
                    return None
                return ix.opaque(f"({condition} ? {yes.c()} : {no.c()})")
            case _:
                return None

    def _loaded_index(self, at: int) -> Index | None:
        node = self.node(at)
        if node.op is Op.GATHER and self.node(node.args[0]).op is Op.IOTA:
            iota, index = self.node(node.args[0]), self.index(node.args[1])
            return None if index is None else ix.divide(index, int(iota.attrs[1]))  # type: ignore[arg-type]
        if not self.in_memory(at):
            return None
        buffer, indices = self.place_in(at)
        offset = self.offset(buffer, indices)
        if offset is None or not offset.uniform:
            return None
        return ix.opaque(f"hr_get_{buffer.dtype}({buffer.pointer}, {offset.c()})")

    def condition(self, at: int) -> str | None:
        """A comparison of indices that is the same in all lanes, in C."""
        node = self.node(at)
        if node.op is not Op.LESS:
            return None
        a, b = (self.index(x) for x in node.args)
        if a is None or b is None:
            return None
        if not b.terms and b.uniform:
            return ix.below(a, b.constant)
        if not a.terms and a.uniform and (less := ix.below(b, a.constant + 1)) is not None:
            return f"!({less})"
        return f"{a.c()} < {b.c()}" if a.uniform and b.uniform else None

    # -- memory

    def in_memory(self, at: int) -> bool:
        """Whether the value is read from a buffer, directly or by a gather."""
        node = self.node(at)
        return at in self.cone.buffers or (node.op is Op.GATHER and node.args[0] in self.cone.buffers)

    def place_in(self, at: int) -> tuple[Buffer, dict[str, Index]]:
        """The buffer that holds a value and the index along each of its axes."""
        if at in self.cone.buffers:
            axes = self.graph.types[at].axes
            return self.cone.buffers[at], {axis: self.axis_index(axis) for axis in axes}
        node = self.node(at)
        source = node.args[0]
        indices: dict[str, Index] = {}
        selected = dict(zip(selected_axes(node), node.args[1:], strict=True))
        for axis in self.graph.types[source].axes:
            found = self.index(selected[axis]) if axis in selected else self.axis_index(axis)
            if found is None:
                raise CannotEmit(f"the index along {axis!r} differs from lane to lane")
            indices[axis] = self.inside(axis, found) if axis in selected else found
        return self.cone.buffers[source], indices

    def inside(self, axis: str, index: Index) -> Index:
        """The index, clamped to its axis unless it cannot leave it."""
        extent = self.graph.axes[axis].extent
        if isinstance(extent, int) and ix.within(index, extent):
            return index
        if not index.uniform:
            return index if not isinstance(extent, int) else _no_lanes(axis)
        limit = f"size_{extent}" if isinstance(extent, str) else str(extent)
        return ix.opaque(f"hr_clamp({index.c()}, {limit})")

    def offset(self, buffer: Buffer, indices: Mapping[str, Index]) -> Index | None:
        """Elements (bytes, if there is a nibble) from the buffer's start; None if lanes do not go in equal steps."""
        total = Index()
        for piece, stride in zip(buffer.layout.pieces, buffer.layout.strides(), strict=True):
            digit = _digit(indices[piece.axis], piece, buffer.layout)
            if digit is None:
                return None
            total = ix.add(total, ix.scale(digit, stride))
        return total

    def load(self, at: int) -> str:
        """The C expression that reads a value."""
        buffer, indices = self.place_in(at)
        offset = self.offset(buffer, indices)
        if self.grouped(at):
            return self._load_group(at, buffer, indices, offset)
        if not self.vector(at):
            if offset is None or not offset.uniform:
                raise CannotEmit("a single value lies at an index that differs from lane to lane")
            if buffer.dtype is DType.U4:
                raise CannotEmit("4-bit elements are read in groups alone")
            return f"hr_get_{buffer.dtype}({buffer.pointer}, {offset.c()})"
        if offset is not None and offset.lane == 0:
            return self.splat(f"hr_get_{buffer.dtype}({buffer.pointer}, {offset.c()})", self.rep(at))
        if offset is not None and offset.lane == 1 and buffer.dtype is not DType.U4:
            return f"hr_load_{buffer.dtype}({buffer.pointer}, {offset.c()})"
        if offset is not None and buffer.dtype is not DType.U4:
            return f"hr_gather_{buffer.dtype}({buffer.pointer}, {offset.c()}, {offset.lane})"
        raise CannotEmit("the lanes of a vector lie in no order")

    def _load_group(self, at: int, buffer: Buffer, indices: Mapping[str, Index], offset: Index | None) -> str:
        size = 4 // (1 if buffer.dtype in (DType.U4, DType.U8, DType.I8) else 2)
        if offset is None or offset.dot != 1 or offset.dots != size or offset.lane not in (0, size):
            raise CannotEmit("the members of a group do not lie side by side")
        if not self.vector(at):
            return f"hr_word({buffer.pointer}, {ix.scale(offset, 4 // size).c()})"
        if offset.lane == 0:
            return f"hr_splat_word(hr_word({buffer.pointer}, {ix.scale(offset, 4 // size).c()}))"
        words = f"hr_load_words({buffer.pointer}, {ix.scale(offset, 4 // size).c()})"
        if buffer.layout.nibble is None:
            return words
        half = _digit(indices[buffer.layout.nibble.axis], buffer.layout.nibble, buffer.layout)
        if half is None or not half.uniform:
            raise CannotEmit("the halves of bytes differ from lane to lane")
        return f"hr_half({words}, {half.c()})"

    # -- values

    def splat(self, c: str, rep: str) -> str:
        return f"hr_splat_{'f32' if rep == 'f' else 'i32'}({c})"

    def value(self, at: int, as_vector: bool = False) -> str:
        """The C expression for a value, a single one spread over the lanes if ``as_vector``."""
        c = self._value(at)
        return self.splat(c, self.rep(at)) if as_vector and not self.vector(at) else c

    def _value(self, at: int) -> str:
        node = self.node(at)
        if at in self.items:
            return self.variable(at)
        if node.op is Op.CONST:
            return _literal(node)
        index = self.index(at)
        if index is not None:
            if not self.vector(at) or index.uniform:
                return f"({index.c()})" if not self.vector(at) else self.splat(index.c(), "i")
            return f"hr_iota({index.c()}, {index.lane})"
        if self.dtype(at) is DType.BOOL and not self.vector(at) and (condition := self.condition(at)) is not None:
            return f"({condition})"
        if self.unread(at):
            return self._value(node.args[0])
        if self.in_memory(at):
            return self.load(at)
        raise CannotEmit(f"{node.op} is not placed")

    def variable(self, at: int) -> str:
        """A placed value's variable, indexed by the loops that its array spans."""
        spans = self.items[at].path[self.nest.kept[at] :]
        return f"v{at}" + "".join(f"[{level.variable}]" for level in spans)

    def inline(self, at: int) -> bool:
        """Whether a value needs no variable: a number, an index, one element read from memory."""
        if self.node(at).op is Op.CONST or self.index(at) is not None:
            return True
        if self.unread(at):
            return True
        if self.dtype(at) is DType.BOOL and not self.vector(at):
            return self.condition(at) is not None
        return self.in_memory(at) and not self.vector(at)

    def behind(self, at: int) -> int:
        """The value itself, behind casts that change nothing."""
        while at not in self.items and self.unread(at):
            at = self.node(at).args[0]
        return at

    def plan(self) -> None:
        """Find the values to place and place them."""
        for at, count in self.uses.items():
            node = self.node(at)
            if node.op is Op.FOLD and at not in self.cone.buffers:
                self.fused |= set(self._addends(node.args[0])[1])
            assert count
        order = sorted(at for at in self.uses if at not in self.fused and not self.inline(at))
        for at in order:
            self._check(at)
        placed = set(order)
        for at in order:
            node = self.node(at)
            path = inside = path_of(self.cone.levels, self.axes[at])
            if node.op is Op.FOLD and at not in self.cone.buffers:
                axis = str(node.attrs[1])
                inside = path_of(self.cone.levels, self.axes[at] | self.axes[node.args[0]] | {axis})
            needs = tuple(sorted({n for n in map(self.behind, self._reads(at)) if n in placed}))
            self.items[at] = Item(path, inside, needs)
        for at, store in enumerate(self.cone.stores, len(self.graph.nodes)):
            wanted = self.axes[store.node].union(*(self.axes[x] for x in store.indices.values()))
            path = path_of(self.cone.levels, wanted)
            needs = (self.behind(store.node),) if self.behind(store.node) in placed else ()
            self.items[at] = Item(path, path, needs)
        self._keep_loads_near()
        self.nest = arrange(self.items)

    def _keep_loads_near(self) -> None:
        """Read memory where the value is used, rather than copy a row out of a loop that it does not change in."""
        readers: dict[int, set[Path]] = {}
        for item in self.items.values():
            for need in item.needs:
                readers.setdefault(need, set()).add(item.inside)
        for at, item in self.items.items():
            looped = [self.cone.levels.index(x) for x in item.path if x.kind is LevelKind.LOOP]
            if at < len(self.graph.nodes) and self.in_memory(at) and looped and len(readers.get(at, ())) == 1:
                (inside,) = readers[at]
                near = tuple(x for x in inside if x in item.path or self.cone.levels.index(x) < looped[-1])
                self.items[at] = Item(near, near, item.needs)

    def _check(self, at: int) -> None:
        node = self.node(at)
        if node.op is Op.GATHER and not self.in_memory(at):
            raise CannotEmit("a gather reads memory; its source is still to be computed")
        if node.op in (Op.SCATTER,) or (node.op is Op.FOLD and node.attrs[2] == SCAN):
            raise CannotEmit(f"there is no code for {node.op} here")

    def _reads(self, at: int) -> Iterator[int]:
        """The values that a value's code names."""
        node = self.node(at)
        if self.in_memory(at):
            return
        if node.op is Op.FOLD:
            for addend in self._addends(node.args[0])[0]:
                yield from addend
            if len(node.args) > 1:
                yield node.args[1]
            return
        yield from node.args

    def _addends(self, at: int) -> tuple[list[tuple[int, ...]], list[int]]:
        """What a fold adds up: sums taken apart, products as pairs; and the nodes that vanish by it."""
        node = self.node(at)
        if self.uses[at] > 1 or self.in_memory(at) or self.inline(at):
            return [(at,)], []
        if node.op is Op.ADD and self.dtype(at) in FLOATS:
            parts = [self._addends(x) for x in node.args]
            return [a for added, _ in parts for a in added], [at, *(v for _, vanished in parts for v in vanished)]
        if node.op is Op.MUL:
            return [node.args], [at]
        return [(at,)], []

    # -- code

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
        for outer in range(depth):
            scope = self.scopes.setdefault(place.scope(outer), _Lines())
            scope.loops[place.path[outer], place.times[outer]] = place.scope(outer + 1)
        scope = self.scopes.setdefault(place.scope(depth), _Lines())
        scope.entries.append((place.times[depth] if time is None else time, at, lines))

    def declare(self, at: int, ctype: str) -> str:
        """``type name[count]...`` of an array; a plain variable is declared where it is computed."""
        spans = self.items[at].path[self.nest.kept[at] :]
        if any(not level.count for level in spans):
            raise CannotEmit("an array would span a loop of unknown length")
        return f"{ctype} v{at}" + "".join(f"[{level.count}]" for level in spans)

    def plain(self, at: int) -> None:
        place, kept = self.nest.computed[at], self.nest.kept[at]
        if kept == len(place.path):
            self.put(place, at, [f"const {self.ctype(at)} v{at} = {self.compute(at)};"])
            return
        self.put(place, -1, [f"{self.declare(at, self.ctype(at))};"], depth=kept, time=-1)
        self.put(place, at, [f"{self.variable(at)} = {self.compute(at)};"])

    def compute(self, at: int) -> str:
        node = self.node(at)
        if self.in_memory(at):
            return self.load(at)
        if self.grouped(at):
            raise CannotEmit(f"{node.op} of the members of a group")
        wide = self.vector(at)
        rep = self.rep(node.args[0]) if node.op is not Op.SELECT else self.rep(at)
        if node.op is Op.SELECT:
            yes, no = (self.value(x, wide) for x in node.args[1:])
            condition = self.condition(node.args[0])
            if condition is not None:
                return f"{condition} ? {yes} : {no}"
            if not self.vector(node.args[0]):
                return f"{self.value(node.args[0])} ? {yes} : {no}"
            return f"hr_select_{rep}({self.value(node.args[0])}, {yes}, {no})"
        values = [self.value(x, wide) for x in node.args]
        if node.op is Op.CAST:
            return self._cast(at, values[0], wide)
        return _operation(node.op, values, rep, wide)

    def _cast(self, at: int, value: str, wide: bool) -> str:
        source, target = self.dtype(self.node(at).args[0]), self.dtype(at)
        if target in (DType.BF16, DType.F16):
            return _suffix(f"hr_round_{target}", wide) + f"({value})"
        if source in FLOATS:
            return value if target in FLOATS else _suffix("hr_rint", wide) + f"({value})"
        if source is DType.BOOL:
            raise CannotEmit("a condition as a number")
        return _suffix("hr_to_f32", wide) + f"({value})" if target in FLOATS else value

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
        neutral = _neutral(reducer, self.rep(at), wide or self.vector(at))
        sub = "".join(f"[{x.variable}]" for x in item.path[kept:])
        if kept == len(item.path):
            self.put(place, at, [f"{ctype} {name} = {neutral};"], depth=shared, time=after.times[-1] - 2)
        else:
            self.put(place, -1, [f"{self.declare(at, ctype).replace(f' v{at}', f' {name}', 1)};"], depth=kept, time=-1)
            lines = _around(over, [f"{name}{sub} = {neutral};"])
            self.put(place, at, lines, depth=shared, time=after.times[-1] - 2)
        self.put(place, at, self.update(at, f"{name}{sub}", wide))
        if wide:
            kind = "" if kept == len(item.path) else "".join(f"[{x.count}]" for x in item.path[kept:])
            scalar = self.ctype(at)
            if kind:
                self.put(place, -1, [f"{scalar} v{at}{kind};"], depth=kept, time=-1)
            reduced = f"hr_{reducer}_{'f32' if self.rep(at) == 'f' else 'i32'}({name}{sub})"
            line = f"v{at}{sub} = {reduced};" if kind else f"const {scalar} v{at} = {reduced};"
            self.put(place, at, _around(over, [line]), depth=shared, time=after.times[-1])

    def update(self, at: int, into: str, wide: bool) -> list[str]:
        """The statements that take one element, vector or group into an accumulator."""
        node = self.node(at)
        reducer, axis = str(node.attrs[0]), str(node.attrs[1])
        wide = wide or self.vector(at)
        lines = []
        for addend in self._addends(node.args[0])[0]:
            if any(self.grouped(x) for x in addend):
                lines.append(self._dot(at, addend, into))
                continue
            values = [self.value(x, wide) for x in addend]
            if len(values) == 2 and reducer == "sum" and self.rep(at) == "f":
                result = f"{_suffix('hr_fma', wide)}({values[0]}, {values[1]}, {into})"
            else:
                op = {"sum": Op.ADD, "max": Op.MAX, "prod": Op.MUL}[reducer]
                value = values[0] if len(values) == 1 else f"({values[0]} * {values[1]})"
                result = _operation(op, [into, value], self.rep(at), wide)
            lines.append(f"{into} = {self._counted(at, axis, result, into)};")
        return lines

    def _counted(self, at: int, axis: str, result: str, into: str) -> str:
        """The new sum, or the old one where the element is behind the bound or the end of the axis."""
        node = self.node(at)
        index = self.axis_index(axis)
        extent = self.graph.axes[axis].extent
        if len(node.args) > 1:
            bound = self.value(node.args[1])
        elif isinstance(extent, int) and index.lane and extent % LANES:
            bound = str(extent)
        else:
            return result
        if index.lane:
            return f"hr_select_{self.rep(at)}(hr_below({index.c()}, {bound}), {result}, {into})"
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
            if axis not in self.cone.limits:
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

    def _source(self, at: int) -> DType:
        node = self.node(at)
        return self._source(node.args[0]) if node.op is Op.CAST and not self.in_memory(at) else self.dtype(at)

    # -- results

    def store(self, store: Store) -> list[str]:
        buffer = store.into
        indices: dict[str, Index] = {}
        for axis in sorted(buffer.layout.axes()):
            found = self.index(store.indices[axis]) if axis in store.indices else self.axis_index(axis)
            if found is None:
                raise CannotEmit(f"the index along {axis!r} differs from lane to lane")
            indices[axis] = found
        offset = self.offset(buffer, indices)
        lanes = [axis for axis in indices if indices[axis].lane]
        wide = bool(lanes)
        if not wide:
            if offset is None:
                raise CannotEmit("a single value has no single place")
            value = self._ended(store, self.value(store.node), False)
            return [f"hr_put_{buffer.dtype}({buffer.pointer}, {offset.c()}, {value});"]
        value = self._ended(store, self.value(store.node, as_vector=True), True)
        extent = self.graph.axes[lanes[0]].extent
        whole = buffer.padded or (isinstance(extent, int) and extent % LANES == 0)
        if offset is not None and offset.lane == 1 and whole:
            return [f"hr_store_{buffer.dtype}({buffer.pointer}, {offset.c()}, {value});"]
        return self._scattered(buffer, indices, value, lanes[0], extent, whole)

    def _ended(self, store: Store, value: str, wide: bool) -> str:
        """The value, or zero behind its bounds."""
        rep = self.rep(store.node)
        for axis, bound in store.bounds.items():
            index, end = self.axis_index(axis), self.value(bound)
            if wide and index.lane:
                value = f"hr_select_{rep}(hr_below({index.c()}, {end}), {value}, {_neutral('sum', rep, True)})"
            else:
                value = f"({index.c()} < {end} ? {value} : {_neutral('sum', rep, wide)})"
        return value

    def _scattered(
        self, buffer: Buffer, indices: Mapping[str, Index], value: str, axis: str, extent: int | str, whole: bool
    ) -> list[str]:
        """Lane by lane, each to its own place."""
        lane = Term("lane", 1, LANES)
        single = {a: Index((*i.terms, lane), i.constant) if i.lane else i for a, i in indices.items()}
        offset = self.offset(buffer, single)
        if offset is None:
            raise CannotEmit("the lanes of a vector lie in no order")
        limit = f"size_{extent}" if isinstance(extent, str) else str(extent)
        last = str(LANES) if whole else f"hr_lanes({indices[axis].c()}, {limit})"
        return [
            f"const {C_VECTOR['f' if buffer.dtype in FLOATS else 'i']} lanes = {value};",
            f"for (int lane = 0; lane < {last}; lane++)",
            f"    hr_put_{buffer.dtype}({buffer.pointer}, {offset.c()}, lanes[lane]);",
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
                    _loop(level, level.steps or str(level.count), self.lines(inner)),
                )
            )
        entries.sort(key=lambda entry: entry[:3])
        return [line for *_, text in entries for line in text]


def _uses(cone: Cone) -> dict[int, int]:
    """How often each needed value is read; those in memory already stop the walk."""
    uses: dict[int, int] = {}
    stack = [s.node for s in cone.stores] + [i for s in cone.stores for i in s.indices.values()]
    stack += [i for s in cone.stores for i in s.bounds.values()]
    while stack:
        at = stack.pop()
        uses[at] = uses.get(at, 0) + 1
        if uses[at] == 1 and at not in cone.buffers and at not in cone.uniform:
            node = cone.graph.nodes[at]
            whole = node.op is not Op.GATHER or not _addressed(cone, node)
            stack += node.args if whole else node.args[1:]
    return uses


def _addressed(cone: Cone, gather: Node) -> bool:
    """Whether a gather's source is no value, only something that an index goes into."""
    return gather.args[0] in cone.buffers or cone.graph.nodes[gather.args[0]].op is Op.IOTA


def _axes(cone: Cone, uses: Mapping[int, int]) -> dict[int, frozenset[str]]:
    """The axes along which each value differs within a task."""
    axes: dict[int, frozenset[str]] = {}
    for at in sorted(uses):
        node, known = cone.graph.nodes[at], cone.graph.types[at].axes
        if at in cone.uniform:
            axes[at] = frozenset()
        elif at in cone.buffers or node.op in (Op.IOTA, Op.CONST, Op.INPUT):
            axes[at] = frozenset(known)
        elif node.op is Op.GATHER:
            source = axes.get(node.args[0], frozenset(cone.graph.types[node.args[0]].axes))
            axes[at] = (source - set(selected_axes(node))).union(*(axes[x] for x in node.args[1:]))
        else:
            axes[at] = frozenset().union(*(axes[x] for x in node.args)) & frozenset(known)
    return axes


def _arithmetic(op: Op, a: Index, b: Index) -> Index | None:
    plain_b, plain_a = not b.terms and b.uniform, not a.terms and a.uniform
    if op is Op.ADD:
        return ix.add(a, b)
    if op is Op.MUL:
        return ix.scale(a, b.constant) if plain_b else ix.scale(b, a.constant) if plain_a else None
    if op is Op.MOD:
        return ix.modulo(a, b.constant) if plain_b else None
    return ix.opaque(f"hr_larger({a.c()}, {b.c()})") if a.uniform and b.uniform else None


def _members(sources: list[DType]) -> int:
    """How many elements share a word."""
    return 2 if DType.BF16 in sources else 4


def _digit(index: Index, piece: Piece, layout: Layout) -> Index | None:
    high = ix.divide(index, piece.divisor)
    return high if high is None or layout.leads(piece) else ix.modulo(high, piece.extent)


def _no_lanes(axis: str) -> Index:
    raise CannotEmit(f"lanes may leave axis {axis!r}")


def _literal(node: Node) -> str:
    value, dtype = node.attrs
    if DType(str(dtype)) not in FLOATS:
        return str(value)
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return "(0.0f / 0.0f)"
    if number in (float("inf"), float("-inf")):
        return "HR_INFINITY" if number > 0 else "-HR_INFINITY"
    return f"{float(number).hex()}f"


def _suffix(name: str, wide: bool) -> str:
    return name if wide else f"{name}_1"


def _operation(op: Op, values: list[str], rep: str, wide: bool) -> str:
    match op:
        case Op.ADD:
            return f"{values[0]} + {values[1]}"
        case Op.MUL:
            return f"{values[0]} * {values[1]}"
        case Op.RECIP if not wide:
            return f"1.0f / {values[0]}"
        case Op.LESS if not wide:
            return f"{values[0]} < {values[1]}"
    name = f"hr_{op}" if op in (Op.EXP2, Op.LOG2, Op.SIN, Op.SQRT, Op.RECIP) else f"hr_{op}_{rep}"
    return f"{_suffix(name, wide)}({', '.join(values)})"


def _neutral(reducer: str, rep: str, wide: bool) -> str:
    value = {"sum": "0", "prod": "1"}.get(reducer, "-HR_INFINITY" if rep == "f" else "INT32_MIN")
    return f"hr_splat_{'f32' if rep == 'f' else 'i32'}({value})" if wide else value


def _around(levels: tuple[Level, ...], lines: list[str]) -> list[str]:
    for level in reversed(levels):
        lines = _loop(level, level.steps or str(level.count), lines)
    return lines


def _loop(level: Level, trips: str, body: list[str]) -> list[str]:
    head = f"for (int {level.variable} = 0; {level.variable} < {trips}; {level.variable}++) {{"
    pragma = [f"HR_UNROLL({level.count})"] if level.kind is LevelKind.UNROLL else []
    return [*pragma, head, *(f"    {line}" for line in body), "}"]
