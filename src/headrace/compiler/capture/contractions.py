"""Products that are summed over: each is an einsum, and an einsum is a fold of a product of named axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from headrace.compiler.capture import reductions, values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.reshape import reshape, split_dim
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import DType

aten = torch.ops.aten
Label = str | int


def contract(c: Context, arrays: Sequence[Array], labels: Sequence[Sequence[Label]], result: Sequence[Label]) -> Array:
    """Multiply arrays whose dimensions have labels; what the result lacks is summed over, the last label first."""
    d = c.draft
    if d.dtype(arrays[0].node) not in values.COMPUTED:
        raise Refused(f"products of {d.dtype(arrays[0].node)}")
    order = list(dict.fromkeys(label for own in labels for label in own))
    axes: dict[Label, str | None] = {}
    for label in order:
        column = [
            a
            for x, own in zip(arrays, labels, strict=True)
            for a, n in zip(x.dims, own, strict=True)
            if n == label and a
        ]
        axes[label] = values.meet(d, column, [a for a in axes.values() if a])
    nodes = [values.rename(d, x, x.dims, [axes[n] for n in own]) for x, own in zip(arrays, labels, strict=True)]
    node = nodes[0]
    for other in nodes[1:]:
        node = d.mul(node, other)
    summed = [axes[n] for n in order if n not in result]
    node = c.materialize(Array(node), summed)
    for axis in reversed(summed):
        if axis is not None:
            node = d.fold("sum", axis, node)
    return values.make(d, node, [axes[n] for n in result])


def _einsum(c: Context, equation: str, arrays: Sequence[Array], path: Any = None) -> Array:
    left, _, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in equation or "->" not in equation:
        raise Refused(f"the equation {equation!r} has an ellipsis or no result")
    return contract(c, arrays, terms, right)


def _linear(c: Context, x: Array, weight: Array, bias: Array | None = None) -> Array:
    batch = list(range(len(x.dims) - 1))
    if len(weight.dims) == 1:
        product = contract(c, [x, weight], [[*batch, "k"], ["k"]], batch)
    else:
        product = contract(c, [x, weight], [[*batch, "k"], ["n", "k"]], [*batch, "n"])
    return product if bias is None else added(c, product, bias)


def added(c: Context, *arrays: Value) -> Array:
    """A sum."""
    nodes, dims = c.operands(*arrays)
    node = nodes[0]
    for other in nodes[1:]:
        node = c.draft.add(node, other)
    return Array(node, dims)


def matmul(c: Context, a: Array, b: Array, *args: Any) -> Array:
    """``a @ b``: the last dimension of one by the last but one of the other; those before broadcast."""
    rank = max(len(a.dims), len(b.dims), 2) - 2
    left = ["k"] if len(a.dims) == 1 else [*range(rank - len(a.dims) + 2, rank), "m", "k"]
    right = ["k"] if len(b.dims) == 1 else [*range(rank - len(b.dims) + 2, rank), "k", "n"]
    kept: list[Label] = [*range(rank), *(["m"] if "m" in left else []), *(["n"] if "n" in right else [])]
    return contract(c, [a, b], [left, right], kept)


def _addmm(c: Context, bias: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    if beta != 1 or alpha != 1:
        raise Refused("a scaled sum")
    return added(c, matmul(c, a, b), bias)


def attention(
    c: Context, query: Array, key: Array, value: Array, mask: Array | None = None, dropout: float = 0.0,
    causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    """Scaled dot product attention; with ``enable_gqa`` query head ``g * n + i`` reads key head ``g``."""
    if dropout:
        raise Refused("dropout")
    size = 1 if query.dims[-1] is None else c.draft.extent(query.dims[-1])
    if scale is None and not isinstance(size, int):
        raise Refused("heads of a size known only when it runs")
    factor = scale if scale is not None else 1 / math.sqrt(size)  # type: ignore[arg-type]
    if enable_gqa:
        heads = 1 if key.dims[-3] is None else c.draft.extent(key.dims[-3])
        if not isinstance(heads, int) or (mask is not None and len(mask.dims) > 2 and mask.dims[-3]):
            raise Refused("grouped queries with heads known only when it runs, or with a mask a head")
        query, key, value = (_grouped(c, x, heads) for x in (query, key, value))
        if mask is not None and len(mask.dims) > 2:
            mask = Array(mask.node, (*mask.dims[:-2], None, *mask.dims[-2:]))
    scores = matmul(c, query, Array(key.node, (*key.dims[:-2], key.dims[-1], key.dims[-2])))
    scores = Array(c.draft.mul(scores.node, c.number(factor, c.dtype)), scores.dims)
    if causal:
        scores = _masked(c, scores, _causal(c, scores))
    if mask is not None:
        scores = _masked(c, scores, mask)
    weights = reductions.softmax(c, scores, -1)
    if mask is not None:
        weights = _nothing_seen(c, scores, weights)
    mixed = matmul(c, weights, value)
    return reshape(c, mixed, c.result.shape) if enable_gqa else mixed


def _grouped(c: Context, x: Array, kv_heads: int) -> Array:
    """``[..., heads, n, e] -> [..., kv_heads, group, n, e]``."""
    heads = 1 if x.dims[-3] is None else c.draft.extent(x.dims[-3])
    if not isinstance(heads, int):
        raise Refused("a number of heads known only when it runs")
    return split_dim(c, x, len(x.dims) - 3, (kv_heads, heads // kv_heads))


def _causal(c: Context, scores: Array) -> Array:
    """Which key a query sees: those not after it."""
    zero = c.draft.const(0, DType.I32)
    row, column = (zero if a is None else c.draft.iota(a) for a in scores.dims[-2:])
    return Array(values.invert(c.draft, c.draft.less(row, column)), scores.dims[-2:])


def _masked(c: Context, scores: Array, mask: Array) -> Array:
    if c.draft.dtype(mask.node) is not DType.BOOL:
        return added(c, scores, mask)
    lowest = Array(c.number(float("-inf"), c.dtype))
    (seen, x, low), dims = values.broadcast(c.draft, [mask, scores, lowest])
    return Array(c.draft.select(seen, x, low), dims)


def _nothing_seen(c: Context, scores: Array, weights: Array) -> Array:
    """A query that sees no key gets zeros, as PyTorch gives it."""
    d = c.draft
    most = reductions.fold(c, "max", scores, {len(scores.dims) - 1})
    lowest = c.number(float("-inf"), c.dtype)
    seen = values.either(d, d.less(lowest, most), values.invert(d, values.ordered(d, most, most)))
    return Array(d.select(seen, weights.node, d.const(0, c.dtype)), weights.dims)


TABLE: dict[Any, Lower] = {
    aten.einsum.default: _einsum,
    aten.linear.default: _linear,
    aten.matmul.default: matmul,
    aten.mm.default: matmul,
    aten.bmm.default: matmul,
    aten.mv.default: matmul,
    aten.dot.default: matmul,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _addmm,
    aten.scaled_dot_product_attention.default: attention,
}
# Decomposed by PyTorch into merged dimensions; as they are, they say more.
KEPT = (
    aten.einsum.default, aten.linear.default, aten.matmul.default, aten.scaled_dot_product_attention.default,
)  # fmt: skip
