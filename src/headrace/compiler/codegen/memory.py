"""Where the values of a nest are in memory, as far as it is known when code is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.cone import Buffer, CannotEmit, Cone, axes_of, uses_of
from headrace.compiler.codegen.index import Index, Term
from headrace.compiler.codegen.layout import Layout, Piece
from headrace.compiler.codegen.nest import LevelKind
from headrace.compiler.codegen.syntax import C_SCALAR, C_VECTOR, GROUP_SCALAR, GROUP_VECTOR
from headrace.compiler.ir import FLOATS, DType, Node, Op, selected_axes

INTEGER = (DType.I32, DType.I64)
LANE = Term("lane", 1, ix.LANES)  # the variable of loops over the lanes of one vector


@dataclass(frozen=True, slots=True)
class Spot:
    """Where along an axis a value is.

    Attributes:
        lanes: The index, as far as it is understood; None if the lanes go to places that are not.
        single: The index in the lane that the variable ``lane`` names, which is always to be had.
    """

    lanes: Index | None
    single: Index


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
        if self.is_iota(at):
            return self._iota_index(at)
        if self.in_memory(at):
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

    def is_iota(self, at: int) -> bool:
        """Whether a value is an element of an ``iota``: its index, over a divisor."""
        node = self.node(at)
        return node.op is Op.GATHER and at not in self.cone.buffers and self.node(node.args[0]).op is Op.IOTA

    def _iota_index(self, at: int) -> Index | None:
        gather = self.node(at)
        axis, divisor = self.node(gather.args[0]).attrs
        index = self.index(gather.args[1])
        found = None if index is None else ix.divide(index, int(divisor))  # type: ignore[arg-type]
        # An index outside of its axis means the nearest inside, and so it is for quotients.
        return None if found is None else self.inside(str(axis), found, int(divisor))  # type: ignore[arg-type]

    def _loaded_index(self, at: int) -> Index | None:
        buffer, spots = self.place_in(at)
        offset = self.offset(buffer, spots)
        if offset is None or not offset.uniform or buffer.layout.nibble:
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

    def place_in(self, at: int) -> tuple[Buffer, dict[str, Spot]]:
        """The buffer that holds a value and where it is along each of its axes."""
        if at in self.cone.buffers:
            axes = self.graph.types[at].axes
            return self.cone.buffers[at], {axis: walked(self.axis_index(axis)) for axis in axes}
        node = self.node(at)
        source = node.args[0]
        selected = dict(zip(selected_axes(node), node.args[1:], strict=True))
        spots = {
            axis: self.spot(axis, selected[axis]) if axis in selected else walked(self.axis_index(axis))
            for axis in self.graph.types[source].axes
        }
        return self.cone.buffers[source], spots

    def spot(self, axis: str, at: int) -> Spot:
        """Where along an axis a computed index points."""
        index = self.index(at)
        if index is not None:
            inside = self.inside(axis, index)
            if inside is not None:
                return walked(inside)
            return Spot(None, ix.opaque(self.named(f"hr_clamp({walked(index).single.c()}, {self.length(axis)})")))
        if self.grouped(at):
            raise CannotEmit("an index of the members of a group")
        clamped = ix.opaque(f"hr_clamp({self.value(at)}{'[lane]' if self.vector(at) else ''}, {self.length(axis)})")
        return Spot(None if self.vector(at) else clamped, clamped)

    def value(self, at: int, as_vector: bool = False) -> str:
        """The C expression for a value, a single one spread over the lanes if ``as_vector``."""
        raise NotImplementedError

    def length(self, axis: str) -> str:
        """The length of an axis, in C."""
        extent = self.graph.axes[axis].extent
        return f"size_{extent}" if isinstance(extent, str) else str(extent)

    def inside(self, axis: str, index: Index, divisor: int = 1) -> Index | None:
        """An index over ``divisor``, clamped to its axis unless it cannot leave it; None if single lanes may."""
        extent = self.graph.axes[axis].extent
        if isinstance(extent, int) and ix.within(index, -(-extent // divisor)):
            return index
        if not index.uniform:
            return None
        limit = self.length(axis) if divisor == 1 else f"hr_steps({self.length(axis)}, {divisor})"
        return ix.opaque(self.named(f"hr_clamp({index.c()}, {limit})"))

    def named(self, expression: str) -> str:
        """An integer in C, as others may use it: by itself, or by a name for it."""
        return expression

    def offset(self, buffer: Buffer, spots: Mapping[str, Spot], single: bool = False) -> Index | None:
        """Elements (bytes, if there is a nibble) from the buffer's start; None if lanes do not go in equal steps.

        Args:
            buffer: Where.
            spots: Where along each axis.
            single: For the one lane that the variable ``lane`` names, which there is always.
        """
        total = Index()
        for piece, stride in zip(buffer.layout.pieces, buffer.layout.strides(), strict=True):
            index = spots[piece.axis].single if single else spots[piece.axis].lanes
            digit = None if index is None else _digit(index, piece, buffer.layout)
            if digit is None:
                return None
            total = ix.add(total, ix.scale(digit, stride))
        return total

    def half(self, buffer: Buffer, spots: Mapping[str, Spot], single: bool = False) -> Index | None:
        """Which half of a byte, if two elements share one; None if lanes differ."""
        nibble = buffer.layout.nibble
        if nibble is None:
            return Index()
        index = spots[nibble.axis].single if single else spots[nibble.axis].lanes
        digit = None if index is None else _digit(index, nibble, buffer.layout)
        return digit if digit is not None and digit.uniform else None

    def load(self, at: int) -> str:
        """The C expression that reads a value."""
        buffer, spots = self.place_in(at)
        offset, half = self.offset(buffer, spots), self.half(buffer, spots)
        if self.grouped(at):
            return self._load_group(at, buffer, offset, half)
        if not self.vector(at):
            if offset is None or half is None or not offset.uniform:
                raise CannotEmit("a single value lies at an index that differs from lane to lane")
            return self._get(buffer, offset, half)
        if offset is None or half is None or offset.dot:
            return self._lane_by_lane(at, buffer, spots)
        if offset.lane == 0:
            return self.splat(self._get(buffer, offset, half), self.rep(at))
        if buffer.layout.nibble:
            return self._lane_by_lane(at, buffer, spots)
        if offset.lane == 1:
            return f"hr_load_{buffer.dtype}({buffer.pointer}, {offset.c()})"
        return f"hr_gather_{buffer.dtype}({buffer.pointer}, {offset.c()}, {offset.lane})"

    def _get(self, buffer: Buffer, offset: Index, half: Index) -> str:
        nibble = f", {half.c()}" if buffer.layout.nibble else ""
        return f"hr_get_{'half' if nibble else buffer.dtype}({buffer.pointer}, {offset.c()}{nibble})"

    def _lane_by_lane(self, at: int, buffer: Buffer, spots: Mapping[str, Spot]) -> str:
        """The slow way that is always there."""
        offset, half = self.offset(buffer, spots, single=True), self.half(buffer, spots, single=True)
        if offset is None or half is None or offset.dot:
            raise CannotEmit("the lanes of a vector lie in no order")
        vector, rep = C_VECTOR[self.rep(at)], self.rep(at)
        return f"HR_LANES({vector}, {'-' if rep == 'b' else ''}{self._get(buffer, offset, half)})"

    def _load_group(self, at: int, buffer: Buffer, offset: Index | None, half: Index | None) -> str:
        size = 4 // (1 if buffer.dtype in (DType.U4, DType.U8, DType.I8) else 2)
        if offset is None or offset.dot != 1 or offset.dots != size or offset.lane not in (0, size):
            raise CannotEmit("the members of a group do not lie side by side")
        if buffer.layout.nibble and (offset.lane == 0 or not self.vector(at)):
            raise CannotEmit("halves of bytes in a single word")
        if not self.vector(at):
            return f"hr_word({buffer.pointer}, {ix.scale(offset, 4 // size).c()})"
        if offset.lane == 0:
            return f"hr_splat_word(hr_word({buffer.pointer}, {ix.scale(offset, 4 // size).c()}))"
        words = f"hr_load_words({buffer.pointer}, {ix.scale(offset, 4 // size).c()})"
        if buffer.layout.nibble is None:
            return words
        if half is None:
            raise CannotEmit("the halves of bytes differ from lane to lane")
        return f"hr_half({words}, {half.c()})"

    def splat(self, c: str, rep: str) -> str:
        """One value in all lanes; a condition is all bits or none there."""
        return f"hr_splat_{'f32' if rep == 'f' else 'i32'}({f'-({c})' if rep == 'b' else c})"


def walked(index: Index) -> Spot:
    """Where a loop over the axis itself is."""
    terms = (*index.terms, Term(LANE.name, index.lane, LANE.count)) if index.lane else index.terms
    return Spot(index, Index(terms, index.constant, 0, index.dot, index.dots))


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
