"""Merging and splitting dimensions: gathers by index arithmetic.

[t, h, e] -> [t, d]      h: iota(d, 64), e: iota(d) mod 64
[t, d] -> [t, h, e]      d: iota(h) * 64 + iota(e)
[a, b] -> [c, d]         merged first, then split
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.compiler.capture import values
from headrace.compiler.capture.context import Context
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.values import Array
from headrace.compiler.ir import DType

Size = int | str


def reshape(c: Context, x: Array, shape: Sequence[int | torch.SymInt]) -> Array:
    """The same elements in the same order, in other dimensions; ``shape`` holds no -1."""
    sizes = [c.extent(s) for s in shape]
    old = [a for a in x.dims if a]
    new = [s for s in sizes if s != 1]
    dims: list[str | None] = []
    while old or new:
        ins, outs = _group(c, old, new)
        old, new = old[len(ins) :], new[len(outs) :]
        x, made = _regroup(c, x, ins, outs)
        dims += made
    axes = iter(dims)
    return values.make(c.draft, x.node, [None if s == 1 else next(axes) for s in sizes])


def split_dim(c: Context, x: Array, at: int, sizes: Sequence[Size]) -> Array:
    """One dimension as several."""
    axis, new = x.dims[at], [s for s in sizes if s != 1]
    made: list[str | None] = []
    if axis is not None:
        x, made = (x, [*x.dims[at : at + 1]]) if len(new) == 1 else _split(c, x, axis, new)
    axes = iter(made)
    # _split leaves the new axes last; the caller's order is by name alone.
    dims = [None if s == 1 else next(axes) for s in sizes]
    rest = [a for a in x.dims if a not in made]
    if axis is not None and len(new) == 1:
        rest = [a for i, a in enumerate(x.dims) if i != at]
    elif axis is None:
        rest = [*x.dims[:at], *x.dims[at + 1 :]]
    return values.make(c.draft, x.node, [*rest[:at], *dims, *rest[at:]])


def _group(c: Context, old: Sequence[str], new: Sequence[Size]) -> tuple[list[str], list[Size]]:
    """The shortest beginnings that hold equally many elements."""
    if not old or not new:
        raise Refused("sizes do not match")
    ins, outs = [old[0]], [new[0]]
    while True:
        a, b = _product([c.draft.extent(i) for i in ins]), _product(outs)
        if a == b:
            return ins, outs
        grow_old = len(outs) == len(new) or (a[1] < b[1] if a[0] == b[0] else len(a[0]) < len(b[0]))
        if grow_old and len(ins) < len(old):
            ins.append(old[len(ins)])
        elif not grow_old and len(outs) < len(new):
            outs.append(new[len(outs)])
        else:
            raise Refused(f"the lengths {a} and {b} of a reshape do not match")


def _product(sizes: Sequence[Size]) -> tuple[tuple[str, ...], int]:
    """Symbols and number that a product consists of."""
    number = 1
    for size in sizes:
        number *= size if isinstance(size, int) else 1
    return tuple(sorted(s for s in sizes if isinstance(s, str))), number


def _regroup(c: Context, x: Array, ins: Sequence[str], outs: Sequence[Size]) -> tuple[Array, list[str | None]]:
    if len(ins) == len(outs) == 1:
        return x, [ins[0]]
    if len(outs) == 1:
        return _merge(c, x, ins, outs[0])
    if len(ins) == 1:
        return _split(c, x, ins[0], outs)
    symbols, number = _product(outs)
    if symbols:
        raise Refused("dimensions of symbolic length are merged")
    merged, (flat,) = _merge(c, x, ins, number)
    return _split(c, merged, str(flat), outs)


def _merge(c: Context, x: Array, ins: Sequence[str], size: Size) -> tuple[Array, list[str | None]]:
    d = c.draft
    flat = d.fresh(size)
    index: dict[str, int] = {}
    stride = 1
    for axis in reversed(ins):
        extent = d.extent(axis)
        at = d.iota(flat, stride)
        if axis is not ins[0]:
            if not isinstance(extent, int):
                raise Refused("a dimension of symbolic length is merged into one before it")
            at = d.mod(at, d.const(extent, DType.I32))
            stride *= extent
        index[axis] = at
    return values.gather(d, x, index, [*_rest(x, ins), flat]), [flat]


def _split(c: Context, x: Array, axis: str, outs: Sequence[Size]) -> tuple[Array, list[str | None]]:
    d = c.draft
    made = [d.fresh(size, axis, role) for size, role in zip(outs, ["outer", *["inner"] * (len(outs) - 1)], strict=True)]
    index, stride = d.const(0, DType.I32), 1
    for new in reversed(made):
        index = d.add(index, d.mul(d.iota(new), d.const(stride, DType.I32)))
        extent = d.extent(new)
        if new is not made[0]:
            if not isinstance(extent, int):
                raise Refused("a dimension is split into one of symbolic length")
            stride *= extent
    return values.gather(d, x, {axis: index}, [*_rest(x, [axis]), *made]), list(made)


def _rest(x: Array, taken: Sequence[str]) -> list[str | None]:
    return [a for a in x.dims if a not in taken]
