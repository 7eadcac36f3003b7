"""Comparisons and conditions."""

from __future__ import annotations

from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Number, Value
from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import FLOATS, INTEGERS, DType

aten = torch.ops.aten


def promoted(c: Context, a: Value, b: Value) -> DType:
    """The type in which PyTorch compares: numbers take the tensor's, unless theirs is of a higher kind."""
    kinds = [c.draft.dtype(x.node) for x in (a, b) if isinstance(x, Array)]
    numbers: list[Number | torch.SymInt] = [x for x in (a, b) if not isinstance(x, Array)]
    if any(isinstance(x, float) for x in numbers) and not any(k in FLOATS for k in kinds):
        raise Refused("an integer is compared with a fraction")
    order = (DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64)
    widest = max(kinds, key=order.index)
    scalar_tensor = [x for x in (a, b) if isinstance(x, Array) and not x.dims]
    if len(kinds) > 1 and scalar_tensor and len({*kinds}) > 1:
        raise Refused("tensors of two types meet, one without dimensions")
    if widest is DType.BOOL and numbers:
        return DType.I64
    return DType.I32 if widest in (DType.U8, DType.I8) else widest


def compare(decide: Any) -> Lower:
    """A translation from a function of (draft, node, node)."""

    def lower(c: Context, a: Value, b: Value) -> Array:
        (x, y), dims = c.operands(a, b, dtype=promoted(c, a, b))
        if c.draft.dtype(x) is DType.BOOL and decide not in (values.equals, values.differs):
            x, y = (values.cast(c.draft, n, DType.I32) for n in (x, y))
        return Array(decide(c.draft, x, y), dims)

    return lower


def _at_most(draft: Draft, x: int, y: int) -> int:
    return values.both(draft, values.ordered(draft, x, y), values.invert(draft, draft.less(y, x)))


def _logical(decide: Any) -> Lower:
    def lower(c: Context, *args: Value) -> Array:
        if c.dtype is not DType.BOOL:
            raise Refused(f"bits of {c.dtype} are combined")
        nodes, dims = c.operands(*args, dtype=DType.BOOL)
        return Array(decide(c.draft, *nodes), dims)

    return lower


def _xor(draft: Draft, x: int, y: int) -> int:
    return values.invert(draft, values.equals(draft, x, y))


def _is_nan(c: Context, x: Array) -> Array:
    if c.draft.dtype(x.node) in INTEGERS:
        return Array(c.draft.const(False, DType.BOOL), x.dims)
    return Array(values.invert(c.draft, values.ordered(c.draft, x.node, x.node)), x.dims)


TABLE: dict[Any, Lower] = {
    aten.lt.Tensor: compare(lambda d, x, y: d.less(x, y)),
    aten.lt.Scalar: compare(lambda d, x, y: d.less(x, y)),
    aten.gt.Tensor: compare(lambda d, x, y: d.less(y, x)),
    aten.gt.Scalar: compare(lambda d, x, y: d.less(y, x)),
    aten.le.Tensor: compare(_at_most),
    aten.le.Scalar: compare(_at_most),
    aten.ge.Tensor: compare(lambda d, x, y: _at_most(d, y, x)),
    aten.ge.Scalar: compare(lambda d, x, y: _at_most(d, y, x)),
    aten.eq.Tensor: compare(values.equals),
    aten.eq.Scalar: compare(values.equals),
    aten.ne.Tensor: compare(values.differs),
    aten.ne.Scalar: compare(values.differs),
    aten.logical_and.default: _logical(values.both),
    aten.logical_or.default: _logical(values.either),
    aten.logical_not.default: _logical(values.invert),
    aten.logical_xor.default: _logical(_xor),
    aten.bitwise_and.Tensor: _logical(values.both),
    aten.bitwise_or.Tensor: _logical(values.either),
    aten.bitwise_not.default: _logical(values.invert),
    aten.bitwise_xor.Tensor: _logical(_xor),
    aten.isnan.default: _is_nan,
}
