"""Elements at computed places: reading them, and writing them into arrays and states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import DType, Write

aten = torch.ops.aten


def place(c: Context, index: Array, axis: str | None) -> int:
    """An index as int32; a negative one counts from the end, as PyTorch has it."""
    d = c.draft
    if d.dtype(index.node) not in (DType.I32, DType.I64):
        raise Refused("elements are chosen by conditions" if d.dtype(index.node) is DType.BOOL else "narrow indices")
    node = values.narrow(d, index.node)
    if d.ranges[node][0] >= 0:
        return node
    return d.select(d.less(node, d.const(0, DType.I32)), d.add(node, c.count(axis)), node)


def apart(c: Context, arrays: Sequence[Array], kept: Sequence[str | None]) -> tuple[list[int], tuple[str | None, ...]]:
    """Index arrays walking together, on axes that are none of those that stay."""
    nodes, dims = values.broadcast(c.draft, arrays)
    taken = {c.draft.find(a) for a in kept if a}
    to = [c.draft.fresh(c.draft.extent(a)) if a and c.draft.find(a) in taken else a for a in dims]
    c.draft.keep_apart([a for a in (*to, *kept) if a])
    renamed = [values.rename(c.draft, Array(n, dims), dims, to) for n in nodes]
    return renamed, tuple(to)


def _places(
    c: Context, x: Array, indices: Sequence[Array | None]
) -> tuple[dict[str, int], tuple[str | None, ...], int, list[str | None]]:
    """Index of each selected axis; dimensions of the indices; where those stand in the result; dimensions that stay."""
    chosen = [d for d, i in enumerate(indices) if i is not None]
    kept = [a for d, a in enumerate(x.dims) if d not in chosen]
    arrays = [Array(place(c, i, x.dims[d]), i.dims) for d, i in enumerate(indices) if i is not None]
    nodes, dims = apart(c, arrays, kept)
    index = {str(x.dims[d]): n for d, n in zip(chosen, nodes, strict=True) if x.dims[d] is not None}
    adjacent = chosen == list(range(chosen[0], chosen[-1] + 1))
    return index, dims, chosen[0] if adjacent else 0, kept


def _index(c: Context, x: Array, indices: Sequence[Array | None]) -> Array:
    index, dims, at, kept = _places(c, x, indices)
    return values.gather(c.draft, x, index, [*kept[:at], *dims, *kept[at:]])


def _index_select(c: Context, x: Array, dim: int, index: Array) -> Array:
    if not x.dims:
        return x
    at = dim % len(x.dims)
    flat = index if index.dims else Array(index.node, (None,))
    return _index(c, x, [None] * at + [flat])


def _embedding(c: Context, weight: Array, indices: Array, *args: Any) -> Array:
    d = c.draft
    (node,), dims = apart(c, [Array(values.narrow(d, indices.node), indices.dims)], [weight.dims[1]])
    index = {} if weight.dims[0] is None else {weight.dims[0]: node}
    return values.gather(d, weight, index, [*dims, weight.dims[1]])


def _gather(c: Context, x: Array, dim: int, index: Array, **options: Any) -> Array:
    if not x.dims:
        return Array(x.node, index.dims)
    d, at = c.draft, dim % len(x.dims)
    for n, (a, b) in enumerate(zip(x.dims, index.dims, strict=True)):
        if n != at and a and b:
            d.unify(a, b)
    chosen = {x.dims[at]: place(c, index, x.dims[at])} if x.dims[at] else {}
    for n, (a, b) in enumerate(zip(x.dims, index.dims, strict=True)):
        if n != at and a:
            chosen[a] = d.iota(b) if b else d.const(0, DType.I32)
    return values.gather(d, x, {str(a): i for a, i in chosen.items()}, index.dims)


def _index_put(c: Context, x: Array, indices: Sequence[Array | None], value: Value, accumulate: bool = False) -> Array:
    if accumulate:
        raise Refused("values are added where indices may be equal")
    index, dims, at, kept = _places(c, x, indices)
    if any(x.dims[d] is None for d, i in enumerate(indices) if i is not None):
        raise Refused("a dimension of size 1 is written by index")
    target = [*kept[:at], *dims, *kept[at:]]
    given = c.array(value)
    node = conform(c, Array(values.cast(c.draft, given.node, c.dtype), given.dims), target)
    return put(c, x, index, node, target)


def conform(c: Context, x: Array, target: Sequence[str | None]) -> int:
    """The array's node on these axes, to which its dimensions broadcast."""
    own = x.dims[max(len(x.dims) - len(target), 0) :]
    for a, b in zip(own, target[len(target) - len(own) :], strict=True):
        if a and b:
            c.draft.unify(b, a)
    return values.rename(c.draft, x, own, target[len(target) - len(own) :])


def put(c: Context, x: Array, index: dict[str, int], node: int, target: Sequence[str | None]) -> Array:
    """``x`` overwritten at some places; if it is a state, the state is."""
    d = c.draft
    c.draft.keep_apart(a for a in target if a)
    read = c.read_state(x)
    places = sorted((d.find(a), i) for a, i in index.items())
    if read is not None and read[1] == c.written(read[0]):
        state, version = read
        c.writes.append(Write(state, tuple(a for a, _ in places), tuple(i for _, i in places), node))
        return Array(d.read(state, version + 1), x.dims)
    if not places:
        return Array(node, x.dims)
    return Array(d.scatter(c.materialize(x, x.dims), node, dict(places)), x.dims)


def _select_scatter(c: Context, x: Array, value: Array, dim: int, index: int) -> Array:
    d, at = c.draft, dim % len(x.dims)
    axis = x.dims[at]
    source = conform(c, value, [a for i, a in enumerate(x.dims) if i != at])
    if axis is None:
        return Array(source, x.dims)
    extent = d.extent(axis)
    if index < 0 and not isinstance(extent, int):
        raise Refused("written at a place counted from an end known only when it runs")
    here = values.equals(d, d.iota(axis), d.const(index % extent if isinstance(extent, int) else index, DType.I32))
    return Array(d.select(here, source, x.node), x.dims)


def _slice_scatter(
    c: Context, x: Array, value: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    d, at = c.draft, dim % len(x.dims)
    axis, begin = x.dims[at], 0 if start is None else start
    extent = 1 if axis is None else d.extent(axis)
    if step != 1 or not isinstance(begin, int) or not isinstance(extent, int):
        raise Refused("a slice is written in steps, or at a place known only when it runs")
    begin = min(max(begin + extent if begin < 0 else begin, 0), extent)
    length = 1 if value.dims[at] is None else d.extent(str(value.dims[at]))
    if length == extent:
        return Array(conform(c, value, x.dims), x.dims)
    if not isinstance(length, int) or axis is None:
        raise Refused("a slice of a length known only when it runs is written")
    index = d.add(d.iota(axis), d.const(-begin, DType.I32))
    own = {str(value.dims[at]): index} if value.dims[at] else {}
    moved = values.gather(d, value, own, [axis if i == at else a for i, a in enumerate(value.dims)])
    source = conform(c, moved, x.dims)
    inside = values.both(d, d.less(d.const(-1, DType.I32), index), d.less(index, d.const(length, DType.I32)))
    return Array(d.select(inside, source, x.node), x.dims)


TABLE: dict[Any, Lower] = {
    aten.index.Tensor: _index,
    aten.index_select.default: _index_select,
    aten.embedding.default: _embedding,
    aten.gather.default: _gather,
    aten.index_put.default: _index_put,
    aten.select_scatter.default: _select_scatter,
    aten.slice_scatter.default: _slice_scatter,
}
