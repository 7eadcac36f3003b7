"""Theme ``quantized``: products of ``scale * code + offset``, and sums of small integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.compiler.egraph import ClassId, ENode, Match
from headrace.compiler.ir import BITS, INTEGERS, DType, Op
from headrace.compiler.rules.finding import Bindings, factorings, nodes, pairs, rule
from headrace.compiler.rules.program import ProgramGraph

THEME = "quantized"
EXACT = {DType.F32: 2**24, DType.F64: 2**53}
"""Every integer up to this magnitude is one of the type's values."""


class Coded(NamedTuple):
    """``scale * codes + offset``; scale and offset (None: 1, 0) do not differ along the folded axis, and the codes are
    integers in floating point."""

    codes: ClassId
    scale: ClassId | None
    offset: ClassId | None


def codes_of(g: ProgramGraph, eclass: ClassId) -> ClassId | None:
    """The integers (of at most 8 bits) that a class is a floating point form of."""
    for node in nodes(g, eclass, Op.CAST):
        facts = g.facts(node.children[0])
        if facts.dtype in INTEGERS and BITS[facts.dtype] <= 8:
            return node.children[0]
    return None


def coded(g: ProgramGraph, eclass: ClassId, axis: str) -> Iterator[Coded]:
    """The ways to read a class as codes along an axis."""
    yield from _scaled(g, eclass, axis, None)
    for node in nodes(g, eclass, Op.ADD):
        for x, offset in pairs(node):
            if axis not in g.facts(offset).axes:
                yield from _scaled(g, x, axis, offset)


def _scaled(g: ProgramGraph, eclass: ClassId, axis: str, offset: ClassId | None) -> Iterator[Coded]:
    if axis not in g.facts(eclass).axes:
        return
    if codes_of(g, eclass) is not None:
        yield Coded(eclass, None, offset)
    for node in nodes(g, eclass, Op.MUL):
        for codes, scale in pairs(node):
            if axis not in g.facts(scale).axes and codes_of(g, codes) is not None:
                yield Coded(codes, scale, offset)


def _find_product(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(k, (s c + o) (d q + m)) = (s d) fold(k, c q) + (s fold(k, c) + n o) m + o (d fold(k, q)), n long: what is
    left inside are products of codes, and sums of codes of one side."""
    reducer, axis, mode = node.head.attrs
    extent = g.axes[axis].extent
    if reducer != "sum" or mode != "final" or len(node.children) > 1 or not isinstance(extent, int):
        return
    for inner in nodes(g, node.children[0], Op.MUL):
        a, b = inner.children
        # What is known when the model is loaded is the right side.
        if (g.facts(a).level, a) < (g.facts(b).level, b):
            a, b = b, a
        for left in coded(g, a, axis):
            for right in coded(g, b, axis):
                if left.offset is not None or right.offset is not None:
                    yield {"left": left, "right": right, "axis": axis, "n": extent}


def _expand(g: ProgramGraph, m: Match) -> ClassId:
    w, axis = g.write, m["axis"]
    (c, s, o), (q, d, mins) = m["left"], m["right"]

    def times(scale: ClassId | None, x: ClassId) -> ClassId:
        return x if scale is None else w.mul(scale, x)

    scale = s if d is None else times(s, d)
    terms = [times(scale, w.fold("sum", axis, w.mul(c, q)))]
    if mins is not None:
        total = times(s, w.fold("sum", axis, c))
        if o is not None:
            total = w.add(total, w.mul(w.const(m["n"], g.facts(o).dtype), o))
        terms.append(w.mul(total, mins))
    if o is not None:
        terms.append(w.mul(o, times(d, w.fold("sum", axis, q))))
    return w.total(terms)


def _find_integers(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """A sum of products of integers is exact in floating point as long as no partial sum can leave the integers that
    the type holds; so it may be computed in int32."""
    reducer, axis, mode = node.head.attrs
    if reducer == "sum" and mode == "final" and len(node.children) == 1 and g.facts(root).dtype in EXACT:
        for factors in factorings(g, node.children[0], axis):
            codes = [codes_of(g, f) for f in factors]
            if all(c is not None for c in codes) and len(codes) <= 2:
                yield {"axis": axis, "codes": codes, "dtype": g.facts(root).dtype}


def no_partial_sum_is_rounded(g: ProgramGraph, m: Match) -> bool:
    """Length times the largest product stays within the exact integers."""
    extent = g.axes[m["axis"]].extent
    if not isinstance(extent, int):
        return False
    most: float = extent
    for code in m["codes"]:
        facts = g.facts(code)
        most *= max(abs(facts.low), abs(facts.high))
    return most <= EXACT[m["dtype"]]


def _in_integers(g: ProgramGraph, m: Match) -> ClassId:
    w = g.write
    wide = [w.cast(code, DType.I32) for code in m["codes"]]
    return w.cast(w.fold("sum", m["axis"], w.product(wide)), m["dtype"])


RULES = (
    rule("product of codes", THEME, "real", (Op.FOLD,), _find_product, _expand),
    rule("sum in integers", THEME, "bit", (Op.FOLD,), _find_integers, _in_integers, (no_partial_sum_is_rounded,)),
)  # fmt: skip
