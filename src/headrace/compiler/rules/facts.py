"""What the rules may rely on: one record of facts about every class, kept true by the e-graph.

An array that lacks an axis is the same everywhere along it, so equal arrays may have different axes. A class' axes are
those that *all* its forms have: along any other one its value does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from headrace.compiler.egraph import Analysis, Contradiction, EGraph, ENode
from headrace.compiler.ir import BITS, FLOATS, INTEGERS, SCAN, Axis, DType, Input, InvalidProgram, Kind, Op

if TYPE_CHECKING:
    pass

INDEX, WEIGHTS, RUNTIME = 0, 1, 2
NONE: frozenset[str] = frozenset()
RANGES = {DType.BOOL: (0, 1), DType.U4: (0, 15), DType.U8: (0, 255), DType.I8: (-128, 127)}
CLOSE = 1e-6
"""Constants of real-equal forms differ by what they were rounded by."""


class Facts(NamedTuple):
    """What holds for every form of a class.

    Attributes:
        dtype: Element type.
        axes: Axes along which it may differ.
        const: Its value, if it is one number everywhere and was computed from numbers.
        low: No element is less, for integers.
        high: No element is greater, for integers.
        below: Symbols that every element is less than.
        level: What it depends on: index arithmetic alone, weights too, or what a step brings.
        live: Axes along which it may differ because of what a step brings.
        folded: Symbols of the lengths over which something was folded on the way.
        bits: Of the narrowest type in which its elements lie or could lie in memory.
        view: Whether its elements are there without computing: an input, a selection of one, or casts of that.
    """

    dtype: DType
    axes: frozenset[str]
    const: float | int | None = None
    low: float = -math.inf
    high: float = math.inf
    below: frozenset[str] = NONE
    level: int = RUNTIME
    live: frozenset[str] = NONE
    folded: frozenset[str] = NONE
    bits: int = 32
    view: bool = False

    def within(self, axis: Axis) -> bool:
        """Whether every element is certainly an index of this axis."""
        if self.low < 0:
            return False
        return self.high < axis.extent if isinstance(axis.extent, int) else axis.extent in self.below


class FactAnalysis(Analysis[Facts]):
    """Keeps ``Facts``.

    Args:
        axes: Of the program, those that rules add included.
        inputs: Of the program.
        indices: Inputs whose elements are all valid indices of an axis.
        symbols: What a symbol stands for in ``folded``: a number of blocks is as good as the length that they cover.
    """

    name = "facts"

    def __init__(
        self,
        axes: Mapping[str, Axis],
        inputs: Mapping[str, Input],
        indices: Mapping[str, str],
        symbols: Mapping[str, str],
    ) -> None:
        self.axes = axes
        self.inputs = inputs
        self.indices = indices
        self.symbols = symbols

    def make(self, graph: EGraph, node: ENode) -> Facts:
        """See ``Analysis``.

        Raises:
            InvalidProgram: A rule built what the contract does not allow.
        """
        args = [graph.eclasses[child].facts[0] for child in node.children]
        try:
            facts = _MAKE[Op(node.head.op)](self, node, args)
        except (KeyError, ValueError, IndexError) as error:
            shown = ", ".join(f"{a.dtype}[{' '.join(sorted(a.axes))}]" for a in args)
            raise InvalidProgram(f"{node.head}({shown}): {error}") from None
        return facts

    def merge(self, left: Facts, right: Facts) -> Facts:
        """See ``Analysis``."""
        if left == right:
            return left
        if left.dtype is not right.dtype:
            raise Contradiction("element types differ")
        low, high = max(left.low, right.low), min(left.high, right.high)
        if low > high:
            raise Contradiction("no integer is in both intervals")
        const = left.const if right.const is None else right.const
        if left.const is not None and right.const is not None:
            if not math.isclose(left.const, right.const, rel_tol=CLOSE, abs_tol=CLOSE):
                raise Contradiction("constants differ")
            const = min(left.const, right.const)
        return Facts(
            left.dtype,
            left.axes & right.axes,
            const,
            low,
            high,
            left.below | right.below,
            min(left.level, right.level),
            left.live & right.live,
            left.folded & right.folded,
            min(left.bits, right.bits),
            left.view or right.view,
        )

    def symbol_of(self, axis: str) -> frozenset[str]:
        """The symbol of an axis' length; none if it is known."""
        extent = self.axes[axis].extent
        return frozenset([self.symbols.get(extent, extent)]) if isinstance(extent, str) else NONE


def _joined(args: list[Facts], dtype: DType, **more: object) -> Facts:
    """What an elementwise operation on some arrays gives, unless more is known."""
    values: dict[str, object] = {
        "axes": NONE.union(*(a.axes for a in args)),
        "level": max(a.level for a in args),
        "live": NONE.union(*(a.live for a in args)),
        "folded": NONE.union(*(a.folded for a in args)),
        "bits": BITS[dtype],
    }
    low, high = RANGES.get(dtype, (-math.inf, math.inf))
    given = {"low": low, "high": high} | more
    if dtype in FLOATS or _overflows(dtype, given["low"], given["high"]):
        given |= {"low": -math.inf, "high": math.inf}
    return Facts(dtype, **(values | given))  # type: ignore[arg-type]


def _overflows(dtype: DType, low: object, high: object) -> bool:
    """Whether int32 arithmetic may have wrapped around. Lengths that a step brings are taken to fit."""
    ends = [end for end in (low, high) if isinstance(end, int | float) and math.isfinite(end)]
    return dtype is DType.I32 and any(not -(2**31) <= end < 2**31 for end in ends)


def _input(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    declared = self.inputs[str(node.head.attrs[0])]
    axes, dtype = frozenset(declared.type.axes), declared.type.dtype
    weight = declared.kind is Kind.WEIGHT
    low, high = RANGES.get(dtype, (-math.inf, math.inf))
    below = NONE
    if declared.name in self.indices:
        extent = self.axes[self.indices[declared.name]].extent
        low, high, below = (0, extent - 1, NONE) if isinstance(extent, int) else (0, math.inf, frozenset([extent]))
    level, live = (WEIGHTS, NONE) if weight else (RUNTIME, axes)
    return Facts(dtype, axes, None, low, high, below, level, live, NONE, BITS[dtype], True)


def _const(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    value, dtype = node.head.attrs[0], DType(node.head.attrs[1])
    known = None if math.isnan(value) else value
    if dtype in FLOATS or known is None:
        return Facts(dtype, NONE, known, level=INDEX, bits=BITS[dtype])
    return Facts(dtype, NONE, known, value, value, level=INDEX, bits=BITS[dtype])


def _unary(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    _one_type(args, 1, FLOATS)
    return _joined(args, args[0].dtype)


def _add(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    a, b = _one_type(args, 2, (*FLOATS, DType.I32, DType.I64))
    below = NONE.union(*(x.below for x, y in ((a, b), (b, a)) if y.high <= 0))
    return _joined(args, a.dtype, low=a.low + b.low, high=a.high + b.high, below=below)


def _mul(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    a, b = _one_type(args, 2, (*FLOATS, DType.I32, DType.I64))
    if a.dtype in FLOATS:
        return _joined(args, a.dtype)
    corners = [0 if 0 in (x, y) else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _joined(args, a.dtype, low=min(corners), high=max(corners))


def _mod(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    a, b = _one_type(args, 2, (*FLOATS, DType.I32, DType.I64))
    if a.dtype in INTEGERS and b.low > 0:
        inside = a.low >= 0 and a.high < b.low
        most = a.high if inside else b.high - 1 if a.low < 0 else min(a.high, b.high - 1)
        return _joined(args, a.dtype, low=a.low if inside else 0, high=most, below=a.below if a.low >= 0 else NONE)
    return _joined(args, a.dtype)


def _max(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    a, b = _one_type(args, 2, (*FLOATS, DType.I32, DType.I64))
    low, high = max(a.low, b.low), max(a.high, b.high)
    return _joined(args, a.dtype, low=low, high=high, below=a.below & b.below)


def _less(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    _one_type(args, 2, (*FLOATS, DType.I32, DType.I64))
    return _joined(args, DType.BOOL)


def _select(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    yes, no = _one_type(args[1:], 2, tuple(DType))
    if args[0].dtype is not DType.BOOL:
        raise ValueError("takes a condition first")
    low, high = min(yes.low, no.low), max(yes.high, no.high)
    return _joined(args, yes.dtype, low=low, high=high, below=yes.below & no.below)


def _fold(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    reducer, axis, mode = node.head.attrs
    x = args[0]
    if x.dtype not in (*FLOATS, DType.I32, DType.I64):
        raise ValueError("folds floating point, int32 and int64")
    if any(b.dtype is not DType.I32 for b in args[1:]):
        raise ValueError("takes an int32 bound")
    extent = self.axes[axis].extent
    low, high = -math.inf, math.inf
    if reducer == "sum" and isinstance(extent, int) and x.dtype in INTEGERS:
        low, high = min(0, x.low * extent), max(0, x.high * extent)
    elif reducer == "max" and isinstance(extent, int) and len(args) == 1:
        low, high = x.low, x.high
    facts = _joined(args, x.dtype, low=low, high=high)
    # A bound tells elements apart, even where the array is the same along the axis.
    left = NONE if mode == SCAN else frozenset([axis])
    added = frozenset([axis]) if mode == SCAN else NONE
    folded = facts.folded | self.symbol_of(axis)
    return facts._replace(axes=(facts.axes - left) | added, live=facts.live - left, folded=folded)


def _iota(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    axis, divisor = node.head.attrs
    extent = self.axes[axis].extent
    fixed = isinstance(extent, int)
    high = (extent - 1) // divisor if isinstance(extent, int) else math.inf
    below = NONE if fixed else frozenset([str(extent)])
    return Facts(DType.I32, frozenset([axis]), None, 0, max(high, 0), below, INDEX)


def _gather(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    source, indices = args[0], args[1:]
    selected = frozenset(node.head.attrs[0])
    if len(selected) != len(indices) or any(i.dtype is not DType.I32 for i in indices):
        raise ValueError("takes one int32 index a selected axis")
    facts = _joined(args, source.dtype, low=source.low, high=source.high, below=source.below)
    from_indices = NONE.union(*(i.axes for i in indices))
    live = (source.live - selected).union(*(i.live for i in indices))
    if source.live & selected:
        live |= from_indices
    return facts._replace(
        axes=(source.axes - selected) | from_indices, live=live, bits=source.bits, view=source.view, folded=facts.folded
    )


def _scatter(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    into, value = args[:2]
    facts = _joined(args, into.dtype, low=min(into.low, value.low), high=max(into.high, value.high))
    axes = into.axes | frozenset(node.head.attrs[0]) | (value.axes - NONE.union(*(i.axes for i in args[2:])))
    return facts._replace(axes=axes, live=axes if facts.level == RUNTIME else NONE)


def _cast(self: FactAnalysis, node: ENode, args: list[Facts]) -> Facts:
    to, x = DType(node.head.attrs[0]), args[0]
    facts = _joined(args, to)
    exact = x.dtype not in FLOATS and to not in FLOATS and x.low >= facts.low and x.high <= facts.high
    if exact:
        facts = facts._replace(low=x.low, high=x.high, below=x.below)
    return facts._replace(bits=min(BITS[to], x.bits), view=x.view)


def _one_type(args: list[Facts], count: int, allowed: tuple[DType, ...]) -> list[Facts]:
    if len(args) != count or args[0].dtype not in allowed or any(a.dtype is not args[0].dtype for a in args):
        raise ValueError(f"takes {count} arguments of one type, out of " + ", ".join(allowed))
    return args


_MAKE: dict[Op, Callable[[FactAnalysis, ENode, list[Facts]], Facts]] = {
    Op.INPUT: _input, Op.CONST: _const, Op.EXP2: _unary, Op.LOG2: _unary, Op.SIN: _unary, Op.SQRT: _unary,
    Op.RECIP: _unary, Op.ADD: _add, Op.MUL: _mul, Op.MOD: _mod, Op.MAX: _max, Op.LESS: _less, Op.SELECT: _select,
    Op.FOLD: _fold, Op.IOTA: _iota, Op.GATHER: _gather, Op.SCATTER: _scatter, Op.CAST: _cast,
}  # fmt: skip
