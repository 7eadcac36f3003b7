"""Between which bounds an integer lies: what makes index arithmetic simple, and 64-bit integers narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from headrace.compiler.ir import Axis, Node, Op

Range = tuple[float, float]  # both included
EVERYTHING: Range = (-math.inf, math.inf)
INT32: Range = (-(2**31), 2**31 - 1)


def inside(inner: Range, outer: Range) -> bool:
    """Whether all of the first lies in the second."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def range_of(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    """Bounds of an integer node; ``EVERYTHING`` where nothing is known."""
    rule = _RULES.get(node.op)
    return EVERYTHING if rule is None else rule(node, args, axes)


def scale(x: Range, factor: float) -> Range:
    """Bounds of a multiple."""
    ends = [0 if not factor else end * factor for end in x]
    return min(ends), max(ends)


def plus(a: Range, b: Range) -> Range:
    """Bounds of a sum."""
    return a[0] + b[0], a[1] + b[1]


def _const(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    value = node.attrs[0]
    return (value, value) if isinstance(value, int) else EVERYTHING


def _iota(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    axis, divisor = str(node.attrs[0]), node.attrs[1]
    extent = axes[axis].extent
    if isinstance(extent, str) or not isinstance(divisor, int):
        return 0, math.inf
    return 0, max(extent - 1, 0) // divisor


def _mul(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    (a, b), (c, d) = args
    if math.inf in (abs(a), abs(b), abs(c), abs(d)):
        if a == b:
            return scale((c, d), a)
        if c == d:
            return scale((a, b), c)
        return (0, math.inf) if a >= 0 and c >= 0 else EVERYTHING
    ends = [a * c, a * d, b * c, b * d]
    return min(ends), max(ends)


def _mod(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    low, high = args[1]
    if low != high or low <= 0:
        return EVERYTHING
    return args[0] if inside(args[0], (0, low - 1)) else (0, low - 1)


def _same(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    return args[0]


def _select(node: Node, args: Sequence[Range], axes: Mapping[str, Axis]) -> Range:
    return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])


_RULES: dict[Op, Callable[[Node, Sequence[Range], Mapping[str, Axis]], Range]] = {
    Op.CONST: _const,
    Op.IOTA: _iota,
    Op.ADD: lambda node, args, axes: plus(args[0], args[1]),
    Op.MUL: _mul,
    Op.MOD: _mod,
    Op.MAX: lambda node, args, axes: (max(args[0][0], args[1][0]), max(args[0][1], args[1][1])),
    Op.SELECT: _select,
    Op.GATHER: _same,
}
