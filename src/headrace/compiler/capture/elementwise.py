"""Arithmetic, one element at a time."""

from __future__ import annotations

from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.ranges import inside
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import FLOATS, INTEGERS, DType, Op

aten = torch.ops.aten


def unary(compute: Any) -> Lower:
    """A translation of an operation of one argument from a function of (context, node)."""

    def lower(c: Context, x: Value, **options: Any) -> Array:
        (node,), dims = c.operands(x)
        return Array(compute(c, node), dims)

    return lower


def binary(compute: Any) -> Lower:
    """A translation of an operation of two arguments from a function of (context, node, node)."""

    def lower(c: Context, a: Value, b: Value) -> Array:
        (x, y), dims = c.operands(a, b)
        return Array(compute(c, x, y), dims)

    return lower


def floating(compute: Any) -> Any:
    """The function for floating point alone."""

    def checked(c: Context, x: int) -> int:
        if c.draft.dtype(x) not in FLOATS:
            raise Refused(f"not on {c.draft.dtype(x)}")
        return int(compute(c, x))

    return checked


def add(c: Context, a: Value, b: Value, *, alpha: float = 1) -> Array:
    """``a + alpha * b``; of conditions, or."""
    (x, y), dims = c.operands(a, b)
    if c.dtype is DType.BOOL:
        return Array(values.either(c.draft, x, y), dims)
    return Array(c.draft.add(x, c.draft.mul(y, c.number(alpha, c.dtype))), dims)


def sub(c: Context, a: Value, b: Value, *, alpha: float = 1) -> Array:
    """``a - alpha * b``."""
    (x, y), dims = c.operands(a, b)
    return Array(c.draft.add(x, c.draft.mul(y, c.number(-alpha, c.dtype))), dims)


def rsub(c: Context, a: Value, b: Value, alpha: float = 1) -> Array:
    """``b - alpha * a``."""
    return sub(c, b, a, alpha=alpha)


def _mul(c: Context, x: int, y: int) -> int:
    return values.both(c.draft, x, y) if c.dtype is DType.BOOL else c.draft.mul(x, y)


def _div(c: Context, x: int, y: int) -> int:
    value = c.draft.constant(y)
    # The reciprocal of a power of two is exact; others are rounded twice, as with recip.
    if value:
        return c.draft.mul(x, c.draft.const(1 / value, c.dtype))
    return c.draft.mul(x, c.draft.recip(y))


def div_mode(c: Context, a: Value, b: Value, *, rounding_mode: str | None = None) -> Array:
    """Division, rounded down or towards zero."""
    (x, y), dims = c.operands(a, b)
    if rounding_mode is None:
        return Array(_div(c, x, y), dims)
    if rounding_mode == "floor":
        return Array(_floor_divide(c, x, y), dims)
    if min(c.draft.ranges[x][0], c.draft.ranges[y][0]) < 0:
        raise Refused("numbers that may be negative are divided towards zero")
    return Array(_floor_divide(c, x, y), dims)


def _floor_divide(c: Context, x: int, y: int) -> int:
    draft, dtype = c.draft, c.draft.dtype(x)
    divisor, node = draft.constant(y), draft.nodes[x]
    if node.op is Op.IOTA and isinstance(divisor, int) and divisor > 0 and isinstance(node.attrs[1], int):
        return draft.iota(str(node.attrs[0]), node.attrs[1] * divisor)
    if node.op is Op.CAST and draft.dtype(node.args[0]) is DType.I32 and isinstance(divisor, int) and divisor > 0:
        return draft.cast(_floor_divide(c, node.args[0], draft.const(divisor, DType.I32)), dtype)
    if dtype in FLOATS:
        raise Refused("floating point is divided with rounding")
    if dtype is not DType.I32 and not inside(draft.ranges[x], (-(2.0**51), 2.0**51)):
        raise Refused("64-bit integers are divided")
    # A multiple of y over y: float64 holds it exactly enough for the nearest integer to be the quotient.
    rest = draft.cast(draft.mod(x, y), DType.F64)
    whole = draft.add(draft.cast(x, DType.F64), values.negate(draft, rest))
    share = draft.const(1 / divisor, DType.F64) if divisor else draft.recip(draft.cast(y, DType.F64))
    quotient = draft.mul(whole, share)
    return draft.cast(quotient, dtype)


def _fmod(c: Context, x: int, y: int) -> int:
    draft = c.draft
    size = draft.max(y, values.negate(draft, y))
    negative = draft.mod(values.negate(draft, x), size)
    below = draft.less(x, draft.const(0, draft.dtype(x)))
    return draft.select(below, values.negate(draft, negative), draft.mod(x, size))


def _abs(c: Context, x: int) -> int:
    return c.draft.max(x, values.negate(c.draft, x))


def minimum(c: Context, x: int, y: int) -> int:
    """The smaller one, or NaN."""
    d = c.draft
    if d.dtype(x) in INTEGERS:
        return d.select(d.less(x, y), x, y)
    return values.negate(d, d.max(values.negate(d, x), values.negate(d, y)))


def clamp(c: Context, x: Value, low: Value | None = None, high: Value | None = None) -> Array:
    """``min(max(x, low), high)``."""
    bounds = [b for b in (low, high) if b is not None]
    (node, *limits), dims = c.operands(x, *bounds)
    if low is not None:
        node = c.draft.max(node, limits.pop(0))
    if high is not None:
        node = minimum(c, node, limits.pop())
    return Array(node, dims)


def clamp_max(c: Context, x: Value, high: Value) -> Array:
    """``min(x, high)``."""
    return clamp(c, x, None, high)


def where(c: Context, condition: Value, yes: Value, no: Value) -> Array:
    """One or the other."""
    arrays = [c.array(condition, DType.BOOL), c.array(yes, c.dtype), c.array(no, c.dtype)]
    (test, x, y), dims = values.broadcast(c.draft, arrays)
    return Array(c.draft.select(test, x, y), dims)


def masked_fill(c: Context, x: Value, mask: Value, value: Value) -> Array:
    """``value`` where the mask holds."""
    return where(c, mask, value, x)


def convert(c: Context, x: Array, *args: Any, **options: Any) -> Array:
    """Another element type, device or layout."""
    return c.array(x, c.dtype)


def _arithmetic_negate(c: Context, x: int) -> int:
    return values.negate(c.draft, x)


TABLE: dict[Any, Lower] = {
    aten.add.Tensor: add,
    aten.add.Scalar: add,
    aten.sub.Tensor: sub,
    aten.sub.Scalar: sub,
    aten.rsub.Tensor: rsub,
    aten.rsub.Scalar: rsub,
    aten.mul.Tensor: binary(_mul),
    aten.mul.Scalar: binary(_mul),
    aten.div.Tensor: binary(_div),
    aten.div.Scalar: binary(_div),
    aten.div.Tensor_mode: div_mode,
    aten.div.Scalar_mode: div_mode,
    aten.floor_divide.default: binary(_floor_divide),
    aten.remainder.Tensor: binary(lambda c, x, y: c.draft.mod(x, y)),
    aten.remainder.Scalar: binary(lambda c, x, y: c.draft.mod(x, y)),
    aten.fmod.Tensor: binary(_fmod),
    aten.fmod.Scalar: binary(_fmod),
    aten.maximum.default: binary(lambda c, x, y: c.draft.max(x, y)),
    aten.minimum.default: binary(minimum),
    aten.neg.default: unary(_arithmetic_negate),
    aten.abs.default: unary(_abs),
    aten.relu.default: unary(lambda c, x: c.draft.max(x, c.draft.const(0, c.dtype))),
    aten.clamp.default: clamp,
    aten.clamp.Tensor: clamp,
    aten.clamp_min.default: clamp,
    aten.clamp_min.Tensor: clamp,
    aten.clamp_max.default: clamp_max,
    aten.clamp_max.Tensor: clamp_max,
    aten.where.self: where,
    aten.where.ScalarSelf: where,
    aten.where.ScalarOther: where,
    aten.where.Scalar: where,
    aten.masked_fill.Scalar: masked_fill,
    aten.masked_fill.Tensor: masked_fill,
    **dict.fromkeys(
        (
            aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other,
            aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default,
            aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.type_as.default,
        ),
        convert,
    ),
}  # fmt: skip
