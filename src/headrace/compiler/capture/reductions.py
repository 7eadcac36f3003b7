"""Folds: sums, maxima, products, prefixes, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.compiler.capture import functions, values
from headrace.compiler.capture.context import Context, Lower
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import FLOATS, SCAN, DType

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def chosen(x: Array, dim: Dims) -> set[int]:
    """The dimensions to reduce, counted from the front; all if none is named."""
    rank = len(x.dims)
    named = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return {d % rank for d in named} if rank else set()


def without(x: Array, dims: set[int], keepdim: bool) -> tuple[str | None, ...]:
    """The result's dimensions."""
    if keepdim:
        return tuple(None if i in dims else a for i, a in enumerate(x.dims))
    return tuple(a for i, a in enumerate(x.dims) if i not in dims)


def fold(c: Context, reducer: str, x: Array, dims: set[int]) -> int:
    """Reduce dimensions, the last one first."""
    axes = [x.dims[d] for d in sorted(dims, reverse=True)]
    node = x.node if reducer == "max" else c.materialize(x, axes)
    for axis in axes:
        if axis is not None and c.draft.find(axis) in c.draft.type(node).axes:
            node = c.draft.fold(reducer, axis, node)
    return node


def _sum(c: Context, x: Array, dim: Dims = None, keepdim: bool = False, **options: Any) -> Array:
    wide = _computed(c, x)
    dims = chosen(x, dim)
    return Array(fold(c, "sum", wide, dims), without(x, dims, keepdim))


def _computed(c: Context, x: Array) -> Array:
    if c.dtype not in values.COMPUTED:
        raise Refused(f"{c.dtype} is reduced")
    return c.array(x, c.dtype)


def _mean(c: Context, x: Array, dim: Dims = None, keepdim: bool = False, **options: Any) -> Array:
    total = _sum(c, x, dim, keepdim)
    node = total.node
    for d in chosen(x, dim):
        count = c.count(x.dims[d])
        known = c.draft.constant(count)
        share = c.draft.const(1 / known, c.dtype) if known else c.draft.recip(values.cast(c.draft, count, c.dtype))
        node = c.draft.mul(node, share)
    return Array(node, total.dims)


def _var(c: Context, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """The mean square of distances from the mean; the mean is over n - correction elements."""
    d, dims = c.draft, chosen(x, dim)
    wide = _computed(c, x)
    count = c.elements(x.dims[i] for i in dims)
    mean = d.mul(fold(c, "sum", wide, dims), d.const(1 / count, c.dtype))
    apart = d.add(wide.node, values.negate(d, mean))
    squares = fold(c, "sum", Array(d.mul(apart, apart), x.dims), dims)
    divisor = count - (1 if correction is None else correction)
    share = 1 / divisor if divisor > 0 else float("inf")
    return Array(d.mul(squares, d.const(share, c.dtype)), without(x, dims, keepdim))


def _amax(c: Context, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    dims = chosen(x, dim)
    return Array(fold(c, "max", _computed(c, x), dims), without(x, dims, keepdim))


def _amin(c: Context, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    if c.dtype not in FLOATS:
        raise Refused("the least integer is taken")  # -x of the least integer is itself
    dims = chosen(x, dim)
    flipped = Array(values.negate(c.draft, _computed(c, x).node), x.dims)
    return Array(values.negate(c.draft, fold(c, "max", flipped, dims)), without(x, dims, keepdim))


def _prod(c: Context, x: Array, dim: Dims = None, keepdim: bool = False, **options: Any) -> Array:
    dims = chosen(x, dim)
    return Array(fold(c, "prod", _computed(c, x), dims), without(x, dims, keepdim))


def _any(c: Context, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    dims = chosen(x, dim)
    flags = values.cast(c.draft, values.cast(c.draft, _comparable(c, x), DType.BOOL), DType.I32)
    most = fold(c, "max", Array(flags, x.dims), dims)
    return Array(c.draft.less(c.draft.const(0, DType.I32), most), without(x, dims, keepdim))


def _all(c: Context, x: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    dims = chosen(x, dim)
    flags = values.invert(c.draft, values.cast(c.draft, _comparable(c, x), DType.BOOL))
    most = fold(c, "max", Array(values.cast(c.draft, flags, DType.I32), x.dims), dims)
    return Array(c.draft.less(most, c.draft.const(1, DType.I32)), without(x, dims, keepdim))


def _comparable(c: Context, x: Array) -> int:
    dtype = c.draft.dtype(x.node)
    return values.cast(c.draft, x.node, DType.I32) if dtype in (DType.U8, DType.I8) else x.node


def _scan(reducer: str) -> Lower:
    def lower(c: Context, x: Array, dim: int, **options: Any) -> Array:
        wide = _computed(c, x)
        axis = x.dims[dim % len(x.dims)] if x.dims else None
        if axis is None:
            return wide
        return Array(c.draft.fold(reducer, axis, c.materialize(wide, [axis]), mode=SCAN), x.dims)

    return lower


def softmax(c: Context, x: Array, dim: int, half_to_float: bool = False) -> Array:
    """``exp(x - max) / sum(exp(x - max))``."""
    shifted, dims, d = _shifted(c, x, dim), x.dims, chosen(x, dim)
    raised = Array(functions.exp(c, shifted), dims)
    return Array(c.draft.mul(raised.node, c.draft.recip(fold(c, "sum", raised, d))), dims)


def _log_softmax(c: Context, x: Array, dim: int, half_to_float: bool = False) -> Array:
    shifted, d = _shifted(c, x, dim), chosen(x, dim)
    total = fold(c, "sum", Array(functions.exp(c, shifted), x.dims), d)
    ln2 = c.draft.const(1 / functions.LOG2_E, c.draft.dtype(total))
    log = c.draft.mul(c.draft.log2(total), ln2)
    return Array(c.draft.add(shifted, values.negate(c.draft, log)), x.dims)


def _shifted(c: Context, x: Array, dim: int) -> int:
    wide = c.array(x)
    if c.draft.dtype(wide.node) not in (DType.F32, DType.F64):
        raise Refused(f"softmax of {c.draft.dtype(wide.node)}")
    return c.draft.add(wide.node, values.negate(c.draft, fold(c, "max", wide, chosen(x, dim))))


TABLE: dict[Any, Lower] = {
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.var.correction: _var,
    aten.amax.default: _amax,
    aten.amin.default: _amin,
    aten.max.default: _amax,
    aten.min.default: _amin,
    aten.prod.default: _prod,
    aten.prod.dim_int: _prod,
    aten.any.default: _any,
    aten.any.dim: _any,
    aten.any.dims: _any,
    aten.all.default: _all,
    aten.all.dim: _all,
    aten.all.dims: _all,
    aten.cumsum.default: _scan("sum"),
    aten.cumprod.default: _scan("prod"),
    aten._softmax.default: softmax,
    aten._log_softmax.default: _log_softmax,
}
