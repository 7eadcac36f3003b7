"""Normalizations that PyTorch keeps as one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.compiler.capture import reductions, values
from headrace.compiler.capture.context import Context, Lower
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.reshape import reshape
from headrace.compiler.capture.values import Array

aten = torch.ops.aten


def _standardize(c: Context, x: Array, dims: set[int], eps: float) -> tuple[Array, Array, Array]:
    """``(x - mean) / sqrt(variance + eps)``, the mean, and the reciprocal root."""
    d = c.draft
    dtype = d.dtype(x.node)
    if dtype not in values.COMPUTED:
        raise Refused(f"{dtype} is normalized")
    share = d.const(1 / c.elements(x.dims[i] for i in dims), dtype)
    mean = d.mul(reductions.fold(c, "sum", x, dims), share)
    apart = d.add(x.node, values.negate(d, mean))
    variance = d.mul(reductions.fold(c, "sum", Array(d.mul(apart, apart), x.dims), dims), share)
    root = d.recip(d.sqrt(d.add(variance, d.const(eps, dtype))))
    kept = reductions.without(x, dims, keepdim=True)
    return Array(d.mul(apart, root), x.dims), Array(mean, kept), Array(root, kept)


def _scaled(c: Context, x: Array, weight: Array | None, bias: Array | None) -> Array:
    for combine, other in ((c.draft.mul, weight), (c.draft.add, bias)):
        if other is not None:
            (a, b), dims = values.broadcast(c.draft, [x, other])
            x = Array(combine(a, b), dims)
    return x


def _layer_norm(
    c: Context, x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> list[Array]:
    rank = len(x.dims)
    normal, mean, root = _standardize(c, x, set(range(rank - len(shape), rank)), eps)
    return [_scaled(c, normal, weight, bias), mean, root]


def _group_norm(
    c: Context, x: Array, weight: Array | None, bias: Array | None, n: int, channels: int, size: int, groups: int,
    eps: float,
) -> list[Array]:  # fmt: skip
    shape = c.result[0].shape
    grouped = reshape(c, x, [n, groups, channels // groups, size])
    normal, mean, root = _standardize(c, grouped, {2, 3}, eps)
    per_channel = [None if w is None else Array(w.node, (*w.dims, *[None] * (len(shape) - 2))) for w in (weight, bias)]
    scaled = _scaled(c, reshape(c, normal, shape), *per_channel)
    return [scaled, *(Array(a.node, a.dims[:2]) for a in (mean, root))]


def _vector_norm(
    c: Context, x: Array, order: float = 2, dim: reductions.Dims = None, keepdim: bool = False, **options: Any
) -> Array:
    d, dims = c.draft, reductions.chosen(x, dim)
    wide = c.array(x, c.dtype).node
    size = d.max(wide, values.negate(d, wide))
    kept = reductions.without(x, dims, keepdim)
    if order == 2:
        return Array(d.sqrt(reductions.fold(c, "sum", Array(d.mul(wide, wide), x.dims), dims)), kept)
    if order in (1, float("inf")):
        return Array(reductions.fold(c, "sum" if order == 1 else "max", Array(size, x.dims), dims), kept)
    raise Refused(f"a norm of order {order}")


TABLE: dict[Any, Lower] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.native_group_norm.default: _group_norm,
}
