"""``Array``: a PyTorch tensor as a node of the draft, and the operations that every theme needs.

A tensor has dimensions in order, a node has axes without order; an ``Array`` says which axis each dimension is. A
dimension of size 1 has none. The node may lack an axis: then the array is the same everywhere along it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headrace.compiler.capture.draft import Draft
from headrace.compiler.capture.errors import Refused
from headrace.compiler.capture.ranges import INT32, inside
from headrace.compiler.ir import FLOATS, INTEGERS, DType, Op

DTYPES = {
    torch.bool: DType.BOOL, torch.uint8: DType.U8, torch.int8: DType.I8, torch.int32: DType.I32,
    torch.int64: DType.I64, torch.float16: DType.F16, torch.bfloat16: DType.BF16, torch.float32: DType.F32,
    torch.float64: DType.F64,
}  # fmt: skip
COMPUTED = (DType.I32, DType.I64, DType.F32, DType.F64)


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor.

    Attributes:
        node: Its node in the draft.
        dims: The axis of each dimension; None where the size is 1.
    """

    node: int
    dims: tuple[str | None, ...] = ()


def dtype_of(dtype: torch.dtype) -> DType:
    """Our name of an element type."""
    if dtype not in DTYPES:
        raise Refused(f"elements of type {dtype} do not exist here")
    return DTYPES[dtype]


def make(draft: Draft, node: int, dims: Sequence[str | None]) -> Array:
    """An array; its axes may never become one."""
    draft.keep_apart(a for a in dims if a)
    return Array(node, tuple(dims))


def axes_of(draft: Draft, array: Array) -> list[str]:
    """Axes of the dimensions that have one."""
    return [draft.find(a) for a in array.dims if a]


def has(draft: Draft, array: Array, axis: str | None) -> bool:
    """Whether the array differs along this axis."""
    return axis is not None and draft.find(axis) in draft.type(array.node).axes


def gather(draft: Draft, array: Array, index: Mapping[str, int], dims: Sequence[str | None]) -> Array:
    """The elements at these indices, as far as the node has the axes."""
    own = {draft.find(a): i for a, i in index.items() if has(draft, array, a)}
    return make(draft, draft.gather(array.node, own) if own else array.node, dims)


def broadcast(draft: Draft, arrays: Sequence[Array]) -> tuple[list[int], tuple[str | None, ...]]:
    """Make arrays walk together as PyTorch broadcasts them: from the last dimension.

    Returns:
        Their nodes, and the dimensions of whatever is computed from them.
    """
    rank = max((len(a.dims) for a in arrays), default=0)
    padded = [(None,) * (rank - len(a.dims)) + a.dims for a in arrays]
    dims: list[str | None] = []
    for column in zip(*padded, strict=True):
        dims.append(meet(draft, [a for a in column if a], [d for d in dims if d]))
        draft.keep_apart(d for d in dims if d)
    return [rename(draft, a, own, dims) for a, own in zip(arrays, padded, strict=True)], tuple(dims)


def meet(draft: Draft, column: Sequence[str], taken: Sequence[str]) -> str | None:
    """The axis of a dimension in which arrays have these axes."""
    if not column:
        return None
    found = {draft.find(t) for t in taken}
    free = [a for a in column if draft.find(a) not in found]
    axis = free[0] if free else draft.fresh(draft.extent(column[0]))
    draft.keep_apart([axis, *taken])
    for other in column:
        if draft.extent(other) != draft.extent(axis):
            raise Refused(f"sizes {draft.extent(other)} and {draft.extent(axis)} meet")
        draft.unify(axis, other)
    return axis


def rename(draft: Draft, array: Array, own: Sequence[str | None], to: Sequence[str | None]) -> int:
    """The array's node with its dimensions' axes replaced by others."""
    moved = {
        draft.find(a): draft.iota(b)
        for a, b in zip(own, to, strict=True)
        if a and b and draft.find(a) != draft.find(b) and has(draft, array, a)
    }
    return draft.gather(array.node, moved) if moved else array.node


def cast(draft: Draft, node: int, dtype: DType) -> int:
    """As PyTorch converts: towards zero from floating point to integers; anything but zero is true."""
    held = draft.dtype(node)
    if held is dtype:
        return node
    if dtype is DType.BOOL:
        zero = draft.const(0, held)
        return either(draft, draft.less(node, zero), differs(draft, node, zero))
    if held is DType.BOOL:
        return draft.select(node, draft.const(1, dtype), draft.const(0, dtype))
    if held in FLOATS and dtype in INTEGERS:
        return draft.cast(truncate(draft, node), dtype)
    if held in INTEGERS and dtype in INTEGERS and _narrows(held, dtype) and not inside(draft.ranges[node], _fit(dtype)):
        raise Refused(f"integers of type {held} may not fit into {dtype}")
    return draft.cast(node, dtype)


def _narrows(held: DType, to: DType) -> bool:
    return not inside(_fit(held), _fit(to))


def _fit(dtype: DType) -> tuple[float, float]:
    return {
        DType.U4: (0, 15), DType.U8: (0, 255), DType.I8: (-128, 127), DType.I32: INT32, DType.I64: (-(2**63), 2**63)
    }[dtype]  # fmt: skip


def floor(draft: Draft, x: int) -> int:
    """The largest integer below, as a floating point number; infinities and NaN stay."""
    dtype = draft.dtype(x)
    # Numbers from 2^52 on are integers in float64 and float32 alike; x mod 1 of infinity would be NaN.
    small = both(draft, draft.less(x, draft.const(2.0**52, dtype)), draft.less(draft.const(-(2.0**52), dtype), x))
    below = draft.add(x, negate(draft, draft.mod(x, draft.const(1, dtype))))
    return draft.select(small, below, x)


def truncate(draft: Draft, x: int) -> int:
    """The next integer towards zero, as a floating point number."""
    negative = draft.less(x, draft.const(0, draft.dtype(x)))
    return draft.select(negative, negate(draft, floor(draft, negate(draft, x))), floor(draft, x))


def negate(draft: Draft, x: int) -> int:
    """``-x``."""
    return draft.mul(x, draft.const(-1, draft.dtype(x)))


def invert(draft: Draft, condition: int) -> int:
    """Logical not."""
    return draft.select(condition, draft.const(False, DType.BOOL), draft.const(True, DType.BOOL))


def both(draft: Draft, a: int, b: int) -> int:
    """Logical and."""
    return draft.select(a, b, draft.const(False, DType.BOOL))


def either(draft: Draft, a: int, b: int) -> int:
    """Logical or."""
    return draft.select(a, draft.const(True, DType.BOOL), b)


def differs(draft: Draft, a: int, b: int) -> int:
    """``a != b``, true if one of them is NaN."""
    return invert(draft, equals(draft, a, b))


def equals(draft: Draft, a: int, b: int) -> int:
    """``a == b``, false if one of them is NaN."""
    if draft.dtype(a) is DType.BOOL:
        return draft.select(a, b, invert(draft, b))
    unlike = either(draft, draft.less(a, b), draft.less(b, a))
    return both(draft, ordered(draft, a, b), invert(draft, unlike))


def ordered(draft: Draft, a: int, b: int) -> int:
    """Whether neither is NaN."""
    result = draft.const(True, DType.BOOL)
    for x in (a, b):
        dtype = draft.dtype(x)
        if dtype in FLOATS and draft.constant(x) is None:
            infinity = draft.const(float("inf"), dtype)
            real = either(draft, draft.less(x, infinity), draft.less(negate(draft, infinity), x))
            result = both(draft, result, real)
    return result


def narrow(draft: Draft, node: int) -> int:
    """An integer as int32, the type of indices, computed in it where nothing can overflow."""
    held = draft.dtype(node)
    if held is DType.I32:
        return node
    n = draft.nodes[node]
    if held is DType.I64 and inside(draft.ranges[node], INT32):
        if n.op in (Op.ADD, Op.MUL, Op.MOD, Op.MAX) and all(inside(draft.ranges[a], INT32) for a in n.args):
            return draft.node(n.op, n.attrs, tuple(narrow(draft, a) for a in n.args))
        if n.op is Op.SELECT:
            return draft.select(n.args[0], narrow(draft, n.args[1]), narrow(draft, n.args[2]))
        if n.op is Op.GATHER and draft.pure[node]:
            return draft.gather(narrow(draft, n.args[0]), draft.indices(node))
    return draft.cast(node, DType.I32)
