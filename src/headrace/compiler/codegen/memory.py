"""Where the values of a nest are in memory, as far as it is known when code is written."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.cone import Buffer, CannotEmit, Cone, axes_of, uses_of
from headrace.compiler.codegen.index import Index, Term
from headrace.compiler.codegen.layout import Layout, Piece
from headrace.compiler.codegen.nest import LevelKind
from headrace.compiler.codegen.syntax import C_SCALAR, C_VECTOR, GROUP_SCALAR, GROUP_VECTOR
from headrace.compiler.ir import FLOATS, DType, Node, Op, selected_axes

INTEGER = (DType.I32, DType.I64)


class Memory:
    """Types, indices and loads of a nest's values.

    Args:
        cone: The nest.
    """

    def __init__(self, cone: Cone) -> None:
        self.cone = cone
        self.graph = cone.graph
        self.levels = {axis: [x for x in cone.levels if x.axis == axis] for axis in {x.axis for x in cone.levels}}
        self.uses = uses_of(cone)
        self.axes = axes_of(cone, self.uses)
        self._indices: dict[int, Index | None] = {}

    def node(self, at: int) -> Node:
        """The node."""
        return self.graph.nodes[at]

    def dtype(self, at: int) -> DType:
        """Its element type."""
        return self.graph.types[at].dtype

    def rep(self, at: int) -> str:
        """``f``, ``i`` or ``b``: how registers hold a value of this type."""
        dtype = self.dtype(at)
        return "b" if dtype is DType.BOOL else "f" if dtype in FLOATS else "i"

    def kinds(self, at: int) -> set[LevelKind]:
        """How the nest runs over a value's axes."""
        return {x.kind for axis in self.axes[at] for x in self.levels.get(axis, ())}

    def vector(self, at: int) -> bool:
        """Whether registers hold sixteen of it at once."""
        return LevelKind.LANES in self.kinds(at)

    def grouped(self, at: int) -> bool:
        """Whether its members are read in groups whose products one instruction adds."""
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
        """Its type in C."""
        if self.grouped(at):
            return GROUP_VECTOR if self.vector(at) else GROUP_SCALAR
        return (C_VECTOR if self.vector(at) else C_SCALAR)[self.rep(at)]

    # -- indices

    def axis_index(self, axis: str) -> Index:
        """The index along an axis: the sum of its levels."""
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

    def splat(self, c: str, rep: str) -> str:
        """One value in all lanes."""
        return f"hr_splat_{'f32' if rep == 'f' else 'i32'}({c})"


def _arithmetic(op: Op, a: Index, b: Index) -> Index | None:
    plain_b, plain_a = not b.terms and b.uniform, not a.terms and a.uniform
    if op is Op.ADD:
        return ix.add(a, b)
    if op is Op.MUL:
        return ix.scale(a, b.constant) if plain_b else ix.scale(b, a.constant) if plain_a else None
    if op is Op.MOD:
        return ix.modulo(a, b.constant) if plain_b else None
    return ix.opaque(f"hr_larger({a.c()}, {b.c()})") if a.uniform and b.uniform else None


def _digit(index: Index, piece: Piece, layout: Layout) -> Index | None:
    high = ix.divide(index, piece.divisor)
    return high if high is None or layout.leads(piece) else ix.modulo(high, piece.extent)


def _no_lanes(axis: str) -> Index:
    raise CannotEmit(f"lanes may leave axis {axis!r}")
