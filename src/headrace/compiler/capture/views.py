"""Dimensions in another order, split, merged, cut, joined. Most of it costs nothing: axes have no order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context, Lower, Value
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.reshape import reshape
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import DType

aten = torch.ops.aten
Size = int | torch.SymInt


def _view(c: Context, x: Array, *args: Any, **options: Any) -> Array:
    return reshape(c, x, c.result.shape)


def permute(c: Context, x: Array, order: Sequence[int]) -> Array:
    """Dimensions in another order."""
    return Array(x.node, tuple(x.dims[d] for d in order))


def _transpose(c: Context, x: Array, a: int, b: int) -> Array:
    dims = list(x.dims)
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return Array(x.node, tuple(dims))


def _t(c: Context, x: Array) -> Array:
    return Array(x.node, x.dims[::-1])


def unsqueeze(c: Context, x: Array, dim: int) -> Array:
    """A dimension of size 1."""
    at = dim % (len(x.dims) + 1)
    return Array(x.node, (*x.dims[:at], None, *x.dims[at:]))


def _squeeze(c: Context, x: Array, dim: int | Sequence[int] | None = None) -> Array:
    rank = len(x.dims)
    named = range(rank) if dim is None else [d % rank for d in ([dim] if isinstance(dim, int) else dim) if rank]
    return Array(x.node, tuple(a for i, a in enumerate(x.dims) if a or i not in named))


def expand(c: Context, x: Array, size: Sequence[Size], **options: Any) -> Array:
    """Size 1 made longer: an axis that the node lacks."""
    shape = c.result.shape
    dims = (None,) * (len(shape) - len(x.dims)) + x.dims
    return values.make(c.draft, x.node, [a or c.fresh(n) for a, n in zip(dims, shape, strict=True)])


def cut(c: Context, x: Array, dim: int, start: int, length: Size, step: int = 1) -> Array:
    """Every ``step``-th element from ``start`` on."""
    at = dim % len(x.dims)
    axis, extent = x.dims[at], c.extent(length)
    if axis is None or (c.draft.extent(axis) == extent and start == 0 and step == 1):
        return x
    d, new = c.draft, None if extent == 1 else c.draft.fresh(extent, axis, "part")
    index = d.const(0, DType.I32) if new is None else d.mul(d.iota(new), d.const(step, DType.I32))
    index = d.add(index, d.const(start, DType.I32))
    return values.gather(d, x, {axis: index}, [*x.dims[:at], new, *x.dims[at + 1 :]])


def _slice(c: Context, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    length = c.result.shape[dim]
    begin = 0 if start is None else start
    axis = x.dims[dim % len(x.dims)]
    extent = 1 if axis is None else c.draft.extent(axis)
    if not isinstance(begin, int) or (begin < 0 and not isinstance(extent, int)):
        raise Refused("a slice begins at a place known only when it runs")
    if isinstance(extent, int):
        begin = min(max(begin + extent if begin < 0 else begin, 0), extent)
    return cut(c, x, dim, begin, length, step)


def select(c: Context, x: Array, dim: int, index: Any) -> Array:
    """One element along a dimension, which goes."""
    d, at = c.draft, dim % len(x.dims)
    axis = x.dims[at]
    rest = [*x.dims[:at], *x.dims[at + 1 :]]
    if axis is None:
        return Array(x.node, tuple(rest))
    place = c.number(index, DType.I32)
    low, high = d.ranges[place]
    if high < 0:
        place = d.add(c.count(axis), place)
    elif low < 0:
        raise Refused("one element is selected by a number that may be negative")
    return values.gather(d, x, {axis: place}, rest)


def _split_sizes(c: Context, x: Array, sizes: Sequence[Size], dim: int = 0) -> list[Array]:
    parts, start = [], 0
    for size in sizes:
        if not isinstance(start, int):
            raise Refused("a part begins at a place known only when it runs")
        parts.append(cut(c, x, dim, start, size))
        start = start + size if isinstance(size, int) else size  # type: ignore[assignment]
    return parts


def _split(c: Context, x: Array, size: Any, dim: int = 0) -> list[Array]:
    return _split_sizes(c, x, [part.shape[dim] for part in c.result], dim)


def _unbind(c: Context, x: Array, dim: int = 0) -> list[Array]:
    return [select(c, x, dim, i) for i in range(len(c.result))]


def cat(c: Context, arrays: Sequence[Array], dim: int = 0) -> Array:
    """One after the other along a dimension."""
    # An empty vector joins anything, whatever its rank.
    rank = len(c.result.shape)
    parts = [c.array(a, c.dtype) for a in arrays if len(a.dims) == rank and not _empty(c, a)]
    at = dim % rank
    if len(parts) == 1:
        return parts[0]
    d, size = c.draft, c.extent(c.result.shape[at])
    lengths = [1 if p.dims[at] is None else d.extent(str(p.dims[at])) for p in parts]
    if not isinstance(size, int) or not all(isinstance(n, int) for n in lengths):
        raise Refused("dimensions of symbolic length are joined")
    joined = d.fresh(size)
    others = [Array(p.node, (*p.dims[:at], None, *p.dims[at + 1 :])) for p in parts]
    dims = _common(c, others)
    pieces = []
    start = 0
    for part, length in zip(parts, lengths, strict=True):
        index = d.mod(d.add(d.iota(joined), d.const(-start, DType.I32)), d.const(int(length), DType.I32))
        own = {} if part.dims[at] is None else {str(part.dims[at]): index}
        moved = values.gather(d, part, own, [*part.dims[:at], joined, *part.dims[at + 1 :]])
        to = [joined if i == at else a for i, a in enumerate(dims)]
        pieces.append((values.rename(d, moved, moved.dims, to), start := start + int(length)))
    node = pieces[-1][0]
    for piece, end in reversed(pieces[:-1]):
        node = d.select(d.less(d.iota(joined), d.const(end, DType.I32)), piece, node)
    return values.make(d, node, [joined if i == at else a for i, a in enumerate(dims)])


def _common(c: Context, arrays: Sequence[Array]) -> tuple[str | None, ...]:
    return values.broadcast(c.draft, arrays)[1]


def _empty(c: Context, x: Array) -> bool:
    return any(a is not None and c.draft.extent(a) == 0 for a in x.dims)


def _stack(c: Context, arrays: Sequence[Array], dim: int = 0) -> Array:
    at = dim % (len(arrays[0].dims) + 1)
    return cat(c, [unsqueeze(c, a, at) for a in arrays], at)


def _flip(c: Context, x: Array, dims: Sequence[int]) -> Array:
    for dim in dims:
        x = _reindex(c, x, dim, lambda c, i, size: c.draft.add(c.count(size), _backwards(c, i)))
    return x


def _backwards(c: Context, index: int) -> int:
    return c.draft.add(values.negate(c.draft, index), c.draft.const(-1, DType.I32))


def _roll(c: Context, x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    if not dims:
        raise Refused("all elements are rolled as one line")
    for shift, dim in zip(shifts, dims, strict=True):

        def rolled(c: Context, i: int, axis: str, shift: int = shift) -> int:
            return c.draft.mod(c.draft.add(i, c.draft.const(-shift, DType.I32)), c.count(axis))

        x = _reindex(c, x, dim, rolled)
    return x


def _reindex(c: Context, x: Array, dim: int, index: Any) -> Array:
    """Along one dimension the element at another place, a function of (context, own index, axis)."""
    at = dim % len(x.dims) if x.dims else 0
    axis = x.dims[at] if x.dims else None
    if axis is None:
        return x
    new = c.draft.fresh(c.draft.extent(axis))
    place = index(c, c.draft.iota(new), axis)
    return values.gather(c.draft, x, {axis: place}, [*x.dims[:at], new, *x.dims[at + 1 :]])


def _repeat(c: Context, x: Array, repeats: Sequence[Size]) -> Array:
    d, shape = c.draft, c.result.shape
    dims = (None,) * (len(shape) - len(x.dims)) + x.dims
    index, made = {}, []
    for axis, times, size in zip(dims, repeats, shape, strict=True):
        if axis is None or times == 1:
            made.append(axis or c.fresh(size))
            continue
        new = c.fresh(size)
        index[axis] = d.mod(d.iota(str(new)), c.count(axis))
        made.append(new)
    return values.gather(d, x, index, made)


def _pad(c: Context, x: Array, pad: Sequence[int], value: Value = 0) -> Array:
    d, dims, node = c.draft, list(x.dims), x
    inside = d.const(True, DType.BOOL)
    for n in range(len(pad) // 2):
        at, before = len(dims) - 1 - n, pad[2 * n]
        if not isinstance(before, int):
            raise Refused("padding whose length is known only when it runs")
        axis, new = dims[at], c.fresh(c.result.shape[at])
        if new is None or (before == 0 and pad[2 * n + 1] == 0):
            if axis is not None and new is None:
                node = values.gather(d, node, {axis: d.const(-before, DType.I32)}, [*dims[:at], None, *dims[at + 1 :]])
                dims[at] = None
            continue
        place = d.add(d.iota(new), d.const(-before, DType.I32))
        here = values.both(d, d.less(d.const(-1, DType.I32), place), d.less(place, c.count(axis)))
        inside = values.both(d, inside, here)
        dims[at] = new
        node = values.gather(d, node, {axis: place} if axis else {}, dims)
    return values.make(d, d.select(inside, node.node, c.number(value, c.dtype)), dims)  # type: ignore[arg-type]


def _diagonal(c: Context, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    d, rank = c.draft, len(x.dims)
    first, second = dim1 % rank, dim2 % rank
    new = c.fresh(c.result.shape[-1])
    here = d.const(0, DType.I32) if new is None else d.iota(new)
    index = {}
    for dim, shift in ((first, max(-offset, 0)), (second, max(offset, 0))):
        if x.dims[dim] is not None:
            index[str(x.dims[dim])] = d.add(here, d.const(shift, DType.I32))
    kept = [a for i, a in enumerate(x.dims) if i not in (first, second)]
    return values.gather(d, x, index, [*kept, new])


TABLE: dict[Any, Lower] = {
    **dict.fromkeys(
        (
            aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints,
            aten.unflatten.int, aten.view_copy.default,
        ),
        _view,
    ),
    aten.permute.default: permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.expand.default: expand,
    aten.slice.Tensor: _slice,
    aten.select.int: select,
    aten.split_with_sizes.default: _split_sizes,
    aten.split.Tensor: _split,
    aten.chunk.default: _split,
    aten.unbind.int: _unbind,
    aten.cat.default: cat,
    aten.stack.default: _stack,
    aten.flip.default: _flip,
    aten.roll.default: _roll,
    aten.repeat.default: _repeat,
    aten.constant_pad_nd.default: _pad,
    aten.diagonal.default: _diagonal,
}  # fmt: skip
