"""Theme ``softmax``: masks become bounds, and constant factors go where they are paid once."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headrace.compiler.egraph import ClassId, ENode, Match
from headrace.compiler.ir import FLOATS, DType, Op
from headrace.compiler.rules.finding import Bindings, folds, iota_of, nodes, pairs, rule
from headrace.compiler.rules.program import ProgramGraph

THEME = "softmax"
NEUTRAL = {"max": -math.inf, "sum": 0.0, "prod": 1.0}


def masked(g: ProgramGraph, eclass: ClassId, value: float) -> Iterator[tuple[ClassId, ClassId]]:
    """Condition and the rest, of selections that give a constant where the condition holds."""
    for node in nodes(g, eclass, Op.SELECT):
        condition, yes, no = node.children
        known = g.facts(yes).const
        if known is not None and known == value and g.facts(yes).dtype in FLOATS:
            yield condition, no


def _find_shifted(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """select(c, -inf, x) + z = select(c, -inf, x + z), z being finite."""
    for y, z in pairs(node):
        for condition, x in masked(g, y, -math.inf):
            yield {"condition": condition, "value": -math.inf, "op": Op.ADD, "args": (x, z)}


def _find_scaled_mask(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """select(c, -inf, x) * z = select(c, -inf, x * z) for a constant z > 0; select(c, 0, x) * z = select(c, 0, x * z)
    for any finite z."""
    for y, z in pairs(node):
        factor = g.facts(z).const
        if factor is not None and 0 < factor < math.inf:
            for condition, x in masked(g, y, -math.inf):
                yield {"condition": condition, "value": -math.inf, "op": Op.MUL, "args": (x, z)}
        for condition, x in masked(g, y, 0.0):
            yield {"condition": condition, "value": 0.0, "op": Op.MUL, "args": (x, z)}


def _find_masked_power(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """exp2(select(c, -inf, x)) = select(c, 0, exp2(x))."""
    for condition, x in masked(g, node.children[0], -math.inf):
        yield {"condition": condition, "value": 0.0, "op": Op.EXP2, "args": (x,)}


def _find_masked_cast(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """A cast between floating point types of select(c, k, x) is select(c, k, cast(x)) for k = 0 and k = -inf."""
    if DType(node.head.attrs[0]) in FLOATS:
        for value in (0.0, -math.inf):
            for condition, x in masked(g, node.children[0], value):
                yield {"condition": condition, "value": value, "op": Op.CAST, "attrs": node.head.attrs, "args": (x,)}


def _lift_mask(g: ProgramGraph, m: Match) -> ClassId:
    w = g.write
    inner = w.node(m["op"], m.get("attrs", ()), m["args"])
    return w.select(m["condition"], w.const(m["value"], g.facts(inner).dtype), inner)


def _bounds(g: ProgramGraph, condition: ClassId, axis: str, outside: bool) -> Iterator[tuple[ClassId, int]]:
    """What a comparison bounds an axis by, and what to add: its elements *at* the bound and after are those for which
    the comparison holds, or does not hold."""
    for node in nodes(g, condition, Op.LESS):
        a, b = node.children
        limit, index, more = (a, b, 1) if outside else (b, a, 0)
        if iota_of(g, index) == (axis, 1) and g.facts(limit).dtype is DType.I32:
            yield limit, more


def _find_mask(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(k, select(p < k, neutral, x)) = fold(k, x, bound = p + 1), and fold(k, select(k < p, x, neutral)) =
    fold(k, x, bound = p): elements at the bound and after count as the neutral element, for sum, max and prod."""
    reducer, axis, mode = node.head.attrs
    if mode != "final" or len(node.children) > 1:
        return
    for inner in nodes(g, node.children[0], Op.SELECT):
        condition, yes, no = inner.children
        for value, x, outside in ((yes, no, True), (no, yes, False)):
            if g.facts(value).const == NEUTRAL[reducer] and g.facts(value).dtype in FLOATS:
                for limit, more in _bounds(g, condition, axis, outside):
                    yield {"reducer": reducer, "axis": axis, "x": x, "limit": limit, "more": more}


def bound_is_fixed(g: ProgramGraph, m: Match) -> bool:
    """The bound is the same along the axis, which what is folded does have."""
    return m["axis"] not in g.facts(m["limit"]).axes and m["axis"] in g.facts(m["x"]).axes


def _bound(g: ProgramGraph, m: Match) -> ClassId:
    w = g.write
    bound = w.add(m["limit"], w.const(m["more"], DType.I32)) if m["more"] else m["limit"]
    return w.fold(m["reducer"], m["axis"], m["x"], bound)


def _find_scaled_maximum(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """c * fold(max, k, x) = fold(max, k, c * x) for a constant c > 0; for c < 0 minus the one with -c."""
    for y, c in pairs(node):
        factor = g.facts(c).const
        if factor is not None and factor not in (0, -1, 1) and math.isfinite(factor) and g.facts(c).dtype in FLOATS:
            for axis, body, bound in folds(g, y, "max"):
                yield {"axis": axis, "x": body, "bound": bound, "factor": factor, "dtype": g.facts(c).dtype}


def _scale_maximum(g: ProgramGraph, m: Match) -> ClassId:
    w, factor = g.write, m["factor"]
    inner = w.fold("max", m["axis"], w.mul(m["x"], w.const(abs(factor), m["dtype"])), m["bound"])
    return inner if factor > 0 else w.negative(inner)


RULES = (
    rule("mask of sum", THEME, "real", (Op.ADD,), _find_shifted, _lift_mask, depth=2),
    rule("mask of product", THEME, "real", (Op.MUL,), _find_scaled_mask, _lift_mask, depth=2),
    rule("mask of power", THEME, "bit", (Op.EXP2,), _find_masked_power, _lift_mask, depth=2),
    rule("mask of cast", THEME, "bit", (Op.CAST,), _find_masked_cast, _lift_mask, depth=2),
    rule("mask to bound", THEME, "bit", (Op.FOLD,), _find_mask, _bound, (bound_is_fixed,), depth=3),
    rule("scale before maximum", THEME, "real", (Op.MUL,), _find_scaled_maximum, _scale_maximum, depth=2),
)  # fmt: skip
