"""What a node comes down to, before it is added: nothing that changes a bit of a result.

gather of gather                    one gather, its indices composed
gather of index arithmetic          the arithmetic on other indices
gather of f(gather, constants)      f of one gather
gather by an axis's own index       the array
sums and remainders of indices      one form (``affine``)
select with a known condition, or between equals, or by a negation
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.compiler.capture.affine import affine, floor_divide, modulo, total, write
from headrace.compiler.ir import ELEMENTWISE, INTEGERS, Attr, DType, Node, Op, selected_axes

if TYPE_CHECKING:
    from headrace.compiler.capture.draft import Draft

Args = tuple[int, ...]


def simplify(draft: Draft, op: Op, attrs: tuple[Attr, ...], args: Args) -> int | None:
    """A node that means the same as the one described, or None."""
    rule = _RULES.get(op)
    return None if rule is None else rule(draft, attrs, args)


def _add(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    if draft.dtype(args[0]) in INTEGERS:
        return write(draft, total([affine(draft, a) for a in args]), draft.dtype(args[0]))
    return None


def _mul(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    for one, other in (args, args[::-1]):
        value = draft.constant(one)
        if value == 1:
            return other
        if isinstance(value, int):
            return write(draft, affine(draft, other).times(value), draft.dtype(other))
        # A change of sign is exact, so two of them are none.
        node = draft.nodes[other]
        if value == -1 and node.op is Op.MUL and -1 in map(draft.constant, node.args):
            return node.args[draft.constant(node.args[0]) == -1]
    return None


def _mod(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    divisor = draft.constant(args[1])
    return modulo(draft, args[0], divisor) if isinstance(divisor, int) and divisor > 0 else None


def _less(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    (low, high), (least, most) = draft.ranges[args[0]], draft.ranges[args[1]]
    if high < least:
        return draft.const(True, DType.BOOL)
    return draft.const(False, DType.BOOL) if low >= most else None


def _select(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    condition, yes, no = args
    known = draft.constant(condition)
    if yes == no:
        return yes
    if known is not None:
        return yes if known else no
    if draft.dtype(yes) is DType.BOOL and (draft.constant(yes), draft.constant(no)) == (1, 0):
        return condition
    inner = draft.nodes[condition]
    if inner.op is Op.SELECT and (draft.constant(inner.args[1]), draft.constant(inner.args[2])) == (0, 1):
        return draft.select(inner.args[0], no, yes)
    return None


def _cast(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    to, node = DType(str(attrs[0])), draft.nodes[args[0]]
    held = draft.dtype(args[0])
    if held is to:
        return args[0]
    value = draft.constant(args[0])
    if value is not None and held in (*INTEGERS, DType.BOOL) and to in (DType.I32, DType.I64, DType.F32, DType.F64):
        return draft.const(value, to)
    if node.op is Op.CAST and held is DType.I64 and to is DType.I32 and draft.dtype(node.args[0]) is to:
        return node.args[0]
    return None


def _gather(draft: Draft, attrs: tuple[Attr, ...], args: Args) -> int | None:
    source = args[0]
    given = dict(zip(selected_axes(Node(Op.GATHER, attrs, args)), args[1:], strict=True))
    index = {axis: i for axis, i in given.items() if not _is_index_of(draft, i, axis)}
    if not index:
        return source
    node = draft.nodes[source]
    if node.op is Op.IOTA and isinstance(node.attrs[1], int):
        (axis, i), *_ = index.items()
        return floor_divide(draft, i, node.attrs[1]) if _fits(draft, i, axis) else None
    if node.op is Op.GATHER:
        return _compose(draft, source, index)
    if node.op in ELEMENTWISE and (draft.pure[source] or _single_gather(draft, node.args)):
        picked = [_pick(draft, a, index) for a in node.args]
        return draft.node(node.op, node.attrs, tuple(picked))
    return draft.gather(source, index) if len(index) < len(given) else None


def _pick(draft: Draft, node: int, index: dict[str, int]) -> int:
    """The node at these indices, as far as it has their axes."""
    own = {axis: i for axis, i in index.items() if axis in draft.type(node).axes}
    return draft.gather(node, own) if own else node


def _compose(draft: Draft, source: int, outer: dict[str, int]) -> int:
    inner = draft.indices(source)
    origin = draft.nodes[source].args[0]
    kept = [a for a in draft.type(origin).axes if a not in inner]
    composed = {axis: _pick(draft, i, outer) for axis, i in inner.items()}
    return draft.gather(origin, composed | {axis: i for axis, i in outer.items() if axis in kept})


def _single_gather(draft: Draft, args: Args) -> bool:
    """Whether all arguments are constants but one, and that is a gather."""
    moving = [a for a in args if draft.constant(a) is None]
    return len(moving) == 1 and draft.nodes[moving[0]].op is Op.GATHER


def _is_index_of(draft: Draft, node: int, axis: str) -> bool:
    n = draft.nodes[node]
    return n.op is Op.IOTA and n.attrs[1] == 1 and draft.find(str(n.attrs[0])) == axis


def _fits(draft: Draft, index: int, axis: str) -> bool:
    """Whether the index is certainly inside of the axis."""
    extent, (low, high) = draft.extent(axis), draft.ranges[index]
    if isinstance(extent, int):
        return low >= 0 and high < extent
    n = draft.nodes[index]
    return n.op is Op.IOTA and draft.extent(str(n.attrs[0])) == extent


_RULES: dict[Op, Callable[[Draft, tuple[Attr, ...], Args], int | None]] = {
    Op.ADD: _add,
    Op.MUL: _mul,
    Op.MOD: _mod,
    Op.LESS: _less,
    Op.SELECT: _select,
    Op.CAST: _cast,
    Op.GATHER: _gather,
}
