"""What recipes make of the two sides of a product: rounding, written down in a program's primitives.

Activations of a product over an axis k, in blocks of 32 (or 16, or 8), become what they are after rounding, ::

    x[k] ~ (s * c + o)[k // 32, k % 32]

and weights that a file stores in blocks become ``(d * q + m)[k // 32, k % 32]``. The products of the codes are for the
rules to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.compiler.ir import Builder, DType, Kind
from headrace.models.stored import BLOCK
from headrace.quant.recipes import Recipe
from headrace.quant.weights import Form, Piece, WeightSource

TINY = 1e-30
"""The least range of a block: its scale and the scale's reciprocal are then normal numbers."""


@dataclass(frozen=True, slots=True)
class BlockAxes:
    """The axes that an axis k is cut into.

    Attributes:
        block: Number of the block.
        inside: Element in a block.
        scale: Number of the block of 32 that shares a scale; ``block`` itself if blocks have 32 elements.
        size: Elements in a block.
    """

    block: str
    inside: str
    scale: str
    size: int

    @classmethod
    def of(cls, builder: Builder, k: str, size: int) -> BlockAxes:
        """Declare them.

        Args:
            builder: Where.
            k: A static axis, a multiple of ``size`` long.
            size: Elements in a block.
        """
        extent = builder.axes[k].extent
        assert isinstance(extent, int)
        whole = builder.axis(f"{k}_block", extent // size)
        inside = builder.axis(f"{k}_in", size)
        scale = whole if size == BLOCK else f"{k}_scale"
        return cls(whole, inside, scale, size)

    def cut(self, b: Builder, x: int, k: str) -> int:
        """An array along ``k`` in blocks."""
        at = b.add(b.mul(b.iota(self.block), b.const(self.size, DType.I32)), b.iota(self.inside))
        return b.gather(x, {k: at})

    def join(self, b: Builder, x: int, k: str) -> int:
        """An array in blocks along ``k``."""
        inside = b.mod(b.iota(k), b.const(self.size, DType.I32))
        return b.gather(x, {self.block: b.iota(k, self.size), self.inside: inside})


def f32(b: Builder, x: int) -> int:
    """Float32, if it is not."""
    return x if b.types[x].dtype is DType.F32 else b.cast(x, DType.F32)


def _number(b: Builder, value: float) -> int:
    return b.const(value, DType.F32)


def _minus(b: Builder, x: int) -> int:
    return b.mul(x, _number(b, -1))


def _magnitude(b: Builder, axis: str, x: int) -> int:
    return b.max(b.fold("max", axis, x), b.fold("max", axis, _minus(b, x)))


def rounded_bf16(b: Builder, x: int) -> int:
    """Rounded to bfloat16, as float32."""
    return x if b.types[x].dtype is DType.BF16 else b.cast(b.cast(x, DType.BF16), DType.F32)


def rounded_asymmetric(b: Builder, x: int, inside: str) -> int:
    """Rounded to one of 256 values from a block's least element to its greatest.

    Codes cannot leave int8: with l and r the least element and the range, 0 <= x - l <= r also after rounding, and four
    more roundings (of r / 255, its reciprocal, the product and the constant) cannot carry 255 to 255.5. A block that
    holds a NaN or an infinity gives no finite value, because its scale or offset is none.
    """
    highest, minus_lowest = b.fold("max", inside, x), b.fold("max", inside, _minus(b, x))
    scale = b.mul(b.max(b.add(highest, minus_lowest), _number(b, TINY)), _number(b, 1 / 255))
    code = b.cast(b.add(b.mul(b.add(x, minus_lowest), b.recip(scale)), _number(b, -128)), DType.I8)
    offset = b.add(_minus(b, minus_lowest), b.mul(scale, _number(b, 128)))
    return b.add(b.mul(scale, f32(b, code)), offset)


def rounded_symmetric(b: Builder, x: int, inside: str) -> int:
    """Rounded to one of 255 values from minus a block's largest magnitude to that."""
    scale = b.mul(b.max(_magnitude(b, inside, x), _number(b, TINY)), _number(b, 1 / 127))
    return b.mul(scale, f32(b, b.cast(b.mul(x, b.recip(scale)), DType.I8)))


def rounded_16_bits(b: Builder, x: int, inside: str) -> tuple[int, ...]:
    """Rounded to one of 65,025 values: the sum of two int8 digits to base 256, each with its scale.

    They are two terms, so that each has a product with the weights' codes.

    The largest code is 127 * 256, so that the high digit is at most 127. A quarter is added before the high digit is
    rounded: a tie would be rounded to the even side, and half of the low digits that are left would be 128.
    """
    scale = b.mul(b.max(_magnitude(b, inside, x), _number(b, TINY)), _number(b, 1 / 32512))
    code = f32(b, b.cast(b.mul(x, b.recip(scale)), DType.I32))
    high = f32(b, b.cast(b.mul(b.add(code, _number(b, 0.25)), _number(b, 1 / 256)), DType.I8))
    low = f32(b, b.cast(b.add(code, b.mul(high, _number(b, -256))), DType.I8))
    return b.mul(b.mul(scale, _number(b, 256)), high), b.mul(scale, low)


class Weights:
    """The weights of one graph in their stored forms.

    Args:
        builder: The graph.
        forms: By name of the input.
        dims: By name of the input: the axis of each dimension.
        recipe: It says how many elements are in a block.

    Attributes:
        sources: By name of each new input.
    """

    def __init__(
        self, builder: Builder, forms: Mapping[str, Form], dims: Mapping[str, tuple[str, ...]], recipe: Recipe
    ) -> None:
        self.builder, self.forms, self.dims, self.recipe = builder, forms, dims, recipe
        self.sources: dict[str, WeightSource] = {}

    def value(self, name: str, index: Mapping[str, int], along: str) -> int:
        """A weight at these indices; float32, or bfloat16 if it is stored so.

        Args:
            name: The weight.
            index: By axis, of any but the last one, which is cut into blocks.
            along: What to call that one.
        """
        form = self.forms[name]
        k = self.dims[name][-1]
        if not form.blocks:
            value = self._at(self._input(name, name, Piece.VALUES, self.dims[name]), index)
            value = value if form.dtype is DType.BF16 else f32(self.builder, value)
            if along != k:
                value = self.builder.gather(value, {k: self.builder.iota(along)})
            return value
        axes = BlockAxes.of(self.builder, k, self.recipe.block_of(name))
        return axes.join(self.builder, self._blocks(name, form, axes, index), along)

    def _blocks(self, name: str, form: Form, axes: BlockAxes, index: Mapping[str, int]) -> int:
        b, rows, k = self.builder, self.dims[name][:-1], self.dims[name][-1]
        whole = b.axes[k].extent
        assert isinstance(whole, int)
        b.axis(axes.scale, whole // BLOCK)
        codes = self._input(f"{name}.codes", name, Piece.CODES, (*rows, axes.block, axes.inside))
        scales = self._input(f"{name}.scales", name, Piece.SCALES, (*rows, axes.scale))
        scale = self._scale(scales, axes, index)
        if form.min_factor is None:
            mins = self._input(f"{name}.mins", name, Piece.MINS, (*rows, axes.scale))
            least = self._scale(mins, axes, index)
        else:
            least = b.mul(scale, _number(b, form.min_factor))
        return b.add(b.mul(scale, f32(b, self._at(codes, index))), least)

    def _scale(self, x: int, axes: BlockAxes, index: Mapping[str, int]) -> int:
        b = self.builder
        if axes.scale != axes.block:
            index = {**index, axes.scale: b.iota(axes.block, BLOCK // axes.size)}
        return f32(b, self._at(x, index))

    def _at(self, x: int, index: Mapping[str, int]) -> int:
        return self.builder.gather(x, index) if index else x

    def _input(self, full: str, name: str, piece: Piece, dims: tuple[str, ...]) -> int:
        source = WeightSource(name, piece, self.forms[name], dims, self.recipe.block_of(name))
        self.sources[full] = source
        return self.builder.input(full, source.dtype, [axis for axis in dims if axis], Kind.WEIGHT)
