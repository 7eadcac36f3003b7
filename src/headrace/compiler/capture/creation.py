"""Arrays out of nothing: constants and counts."""

from __future__ import annotations

from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import FLOATS, DType

aten = torch.ops.aten


def filled(c: Context, value: Value) -> Array:
    """One value everywhere in the current result's shape."""
    node = (
        values.cast(c.draft, value.node, c.dtype) if isinstance(value, Array) else c.number(_typed(c, value), c.dtype)
    )
    return values.make(c.draft, node, [c.fresh(n) for n in c.result.shape])


def _typed(c: Context, value: Any) -> Any:
    if c.dtype is DType.BOOL:
        return bool(value)
    if isinstance(value, float) and c.dtype not in FLOATS:
        return int(value)
    return value


def _full(c: Context, size: Any, value: Value, **options: Any) -> Array:
    return filled(c, value)


def _constant(value: int) -> Lower:
    return lambda c, *args, **options: filled(c, value)


def _scalar_tensor(c: Context, value: Value, **options: Any) -> Array:
    return filled(c, value)


def _arange(c: Context, start: Any, end: Any = None, step: Any = 1, **options: Any) -> Array:
    if end is None:
        start = 0
    if not all(isinstance(n, int) for n in (start, step)):
        raise Refused("numbers are counted up from or in steps of a fraction or a symbol")
    d, axis = c.draft, c.declared(c.result.shape[0]) or c.fresh(c.result.shape[0])
    count = d.const(0, DType.I32) if axis is None else d.iota(axis)
    index = values.cast(d, count, c.dtype)
    node = d.add(d.mul(index, d.const(step, c.dtype)), d.const(start, c.dtype))
    return Array(node, (axis,))


TABLE: dict[Any, Lower] = {
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: lambda c, x, size, value, **options: filled(c, value),
    aten.zeros.default: _constant(0),
    aten.zeros_like.default: _constant(0),
    aten.new_zeros.default: _constant(0),
    aten.ones.default: _constant(1),
    aten.ones_like.default: _constant(1),
    aten.new_ones.default: _constant(1),
    aten.scalar_tensor.default: _scalar_tensor,
    aten.arange.default: lambda c, end, **options: _arange(c, 0, end, **options),
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
}
