"""Theme ``algebra``: constants, neutral elements, signs, conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headrace.compiler.egraph import ClassId, ENode, Match, Node, Rule, Var
from headrace.compiler.interpret import storage
from headrace.compiler.ir import COMMUTATIVE, FLOATS, INTEGERS, DType, Op
from headrace.compiler.rules.finding import Bindings, nodes, pairs, rule, scaled
from headrace.compiler.rules.program import ProgramGraph

THEME = "algebra"
ARITHMETIC = (Op.ADD, Op.MUL, Op.MOD, Op.MAX, Op.LESS, Op.EXP2, Op.LOG2, Op.SQRT, Op.RECIP)
_NUMPY = {
    "add": np.add, "mul": np.multiply, "mod": np.mod, "max": np.maximum, "less": np.less, "exp2": np.exp2,
    "log2": np.log2, "sqrt": np.sqrt, "recip": np.reciprocal,
}  # fmt: skip

X, Y, Z = Var("x"), Var("y"), Var("z")


def _folded(g: ProgramGraph, node: ENode) -> tuple[float | int | bool, DType, bool] | None:
    """Value and type of an operation on constants, and whether float32 and float64 agree on it."""
    args = [g.facts(child) for child in node.children]
    values = [a.const for a in args]
    kind = args[0].dtype
    if any(v is None for v in values) or kind in (DType.F16, DType.BF16):
        return None
    dtype = DType.BOOL if node.head.op == Op.LESS else kind
    with np.errstate(all="ignore"):
        function = _NUMPY[node.head.op]
        exact = function(*(np.asarray(v, storage(kind, exact=True)) for v in values))
        rough = function(*(np.asarray(v, storage(kind)) for v in values))
    if kind in FLOATS and not np.isfinite(exact) and not np.isinf(values).any():  # type: ignore[arg-type]
        return None
    if np.isnan(exact):
        return None
    same = bool(np.asarray(exact, rough.dtype) == rough)
    return exact.item(), dtype, same


def _find_exact(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """An operation on constants is a constant: here where the element type itself gives the exact value, rounded."""
    found = _folded(g, node)
    if found is not None and found[2]:
        yield {"value": found[0], "dtype": found[1]}


def _find_real(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """An operation on constants is a constant, computed more exactly than at run time."""
    found = _folded(g, node)
    if found is not None and not found[2]:
        yield {"value": found[0], "dtype": found[1]}


def _constant(g: ProgramGraph, m: Match) -> ClassId:
    return g.write.const(m["value"], m["dtype"])


def _find_unordered(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """a + b = b + a, also for products and maxima. Arguments are kept in order; only unions disturb it."""
    a, b = node.children
    if a > b:
        yield {"op": Op(node.head.op), "a": a, "b": b}


def _find_neutral(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """x * 1 = x; x + 0 = x for integers; x + (-0.0) = x. (With +0.0 the sum of -0.0 is +0.0, equal by ``==`` but not
    in its reciprocal: see "add zero".)"""
    for x, c in pairs(node):
        value = g.facts(c).const
        if node.head.op == Op.MUL and value == 1:
            yield {"x": x}
        if node.head.op == Op.ADD and value == 0:
            integer = g.facts(c).dtype in INTEGERS
            if integer or math.copysign(1, value) < 0:
                yield {"x": x}


def _find_zero(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """x + 0.0 = x as real numbers: of -0.0 the sum is +0.0."""
    for x, c in pairs(node):
        if g.facts(c).const == 0 and g.facts(c).dtype in FLOATS:
            yield {"x": x}


def _find_twice_negative(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """-1 * (-1 * x) = x: a change of sign is exact."""
    for y, c in pairs(node):
        if g.facts(c).const == -1:
            for x, d in scaled(g, y):
                if g.facts(d).const == -1:
                    yield {"x": x}


def _find_constants_apart(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """(x * c) * d = x * (c * d) and (x + c) + d = x + (c + d) for constants c and d of floating point."""
    op = Op(node.head.op)
    for y, d in pairs(node):
        if g.facts(d).const is not None and g.facts(d).dtype in FLOATS:
            for inner in nodes(g, y, op):
                for x, c in pairs(inner):
                    if g.facts(c).const is not None and g.facts(x).const is None:
                        yield {"op": op, "x": x, "c": c, "d": d}


def _join_constants(g: ProgramGraph, m: Match) -> ClassId:
    w = g.write
    return w.node(m["op"], (), (m["x"], w.node(m["op"], (), (m["c"], m["d"]))))


def _find_constant_inside(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """(x * c) * y = (x * y) * c: constants move outwards, where they meet."""
    for z, y in pairs(node):
        if g.facts(y).const is None and g.facts(y).dtype in FLOATS:
            for x, c in scaled(g, z):
                yield {"x": x, "y": y, "c": c}


def _find_scaled_sum(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """(x + y) * c = x * c + y * c for a constant c of floating point."""
    for z, c in pairs(node):
        if g.facts(c).const is not None and g.facts(c).dtype in FLOATS:
            for inner in nodes(g, z, Op.ADD):
                x, y = inner.children
                yield {"x": x, "y": y, "c": c}


def _find_decided(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """Whether a < b is known from the integers that they can be."""
    a, b = (g.facts(child) for child in node.children)
    if a.dtype in INTEGERS:
        if a.high < b.low:
            yield {"value": True, "dtype": DType.BOOL}
        elif a.low >= b.high:
            yield {"value": False, "dtype": DType.BOOL}


def _find_chosen(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """A selection under a known condition, or between equals."""
    condition, yes, no = node.children
    known = g.facts(condition).const
    if known is not None or yes == no:
        yield {"x": no if known is not None and not known else yes}


def _find_same_type(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """A cast to the type that it has; a cast between integers and back from a type that holds all values."""
    (x,) = node.children
    to = DType(node.head.attrs[0])
    if g.facts(x).dtype is to:
        yield {"x": x}
    for inner in nodes(g, x, Op.CAST):
        (y,) = inner.children
        held, through = g.facts(y).dtype, g.facts(x).dtype
        if held is to and (held, through) in _LOSSLESS:
            yield {"x": y}


_WIDER = [DType.U4, DType.U8, DType.I32, DType.I64, DType.F64]
_LOSSLESS = {
    *((a, b) for i, a in enumerate(_WIDER) for b in _WIDER[i + 1 :] if (a, b) != (DType.I64, DType.F64)),
    *((DType.I8, b) for b in (DType.I32, DType.I64, DType.F32, DType.F64)),
    *((a, DType.F32) for a in (DType.U4, DType.U8, DType.F16, DType.BF16)),
}
_LOSSLESS -= {(DType.U4, DType.F64), (DType.U8, DType.F64), (DType.I32, DType.F64), (DType.I8, DType.F64)}


def _x(g: ProgramGraph, m: Match) -> ClassId:
    x: ClassId = m["x"]
    return x


RULES = (
    rule("order arguments", THEME, "bit", COMMUTATIVE, _find_unordered,
         lambda g, m: g.write.node(m["op"], (), (m["b"], m["a"])), depth=1),
    rule("fold constants", THEME, "bit", ARITHMETIC, _find_exact, _constant, depth=1),
    rule("fold real constants", THEME, "real", ARITHMETIC, _find_real, _constant, depth=1),
    rule("neutral element", THEME, "bit", (Op.ADD, Op.MUL), _find_neutral, _x, depth=1),
    rule("add zero", THEME, "real", (Op.ADD,), _find_zero, _x, depth=1),
    rule("negative twice", THEME, "bit", (Op.MUL,), _find_twice_negative, _x, depth=2),
    rule("join constants", THEME, "real", (Op.ADD, Op.MUL), _find_constants_apart, _join_constants, depth=2),
    rule("lift constant factor", THEME, "real", (Op.MUL,), _find_constant_inside,
         lambda g, m: g.write.mul(g.write.mul(m["x"], m["y"]), m["c"]), depth=2),
    rule("scale both terms", THEME, "real", (Op.MUL,), _find_scaled_sum,
         lambda g, m: g.write.add(g.write.mul(m["x"], m["c"]), g.write.mul(m["y"], m["c"])), depth=2),
    rule("decide comparison", THEME, "bit", (Op.LESS,), _find_decided, _constant, depth=2),
    rule("known selection", THEME, "bit", (Op.SELECT,), _find_chosen, _x, depth=1),
    rule("cast to itself", THEME, "bit", (Op.CAST,), _find_same_type, _x, depth=1),
    Rule("larger of one", THEME, "bit", Node("max", (), (X, X)), X, doc="max(x, x) = x."),
    Rule("reciprocal twice", THEME, "real", Node("recip", (), (Node("recip", (), (X,)),)), X, doc="1 / (1 / x) = x."),
    Rule("reciprocal of root", THEME, "real", Node("sqrt", (), (Node("recip", (), (X,)),)),
         Node("recip", (), (Node("sqrt", (), (X,)),)), doc="sqrt(1 / x) = 1 / sqrt(x)."),
)  # fmt: skip
