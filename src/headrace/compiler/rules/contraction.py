"""Theme ``contraction``: sums of products. What they share moves out, axes are cut into blocks and exchanged."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.compiler.egraph import ClassId, ENode, Match
from headrace.compiler.ir import FLOATS, DType, Op
from headrace.compiler.rules.facts import RUNTIME
from headrace.compiler.rules.finding import Bindings, factorings, folds, iota_of, nodes, pairs, rule, selection
from headrace.compiler.rules.program import ProgramGraph

THEME = "contraction"
UNROLLED = 3
"""Axes up to this length are not worth cutting."""


def _is_final(node: ENode, reducer: str) -> bool:
    return bool(node.head.attrs[0] == reducer and node.head.attrs[2] == "final")


def _find_common(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(sum, k, a * x) = a * fold(sum, k, x) for an a that is the same along k; of the factors that stay, those
    that depend on weights alone are multiplied first: a norm's weight goes into the matrix."""
    if not _is_final(node, "sum"):
        return
    axis, body = node.head.attrs[1], node.children[0]
    for factors in factorings(g, body, axis):
        outside = [f for f in factors if axis not in g.facts(f).axes]
        weights = [f for f in factors if f not in outside and g.facts(f).level < RUNTIME]
        inside = [f for f in factors if f not in outside and f not in weights]
        if (outside or (len(weights) > 1 and inside)) and len(outside) < len(factors):
            yield {"node": node, "outside": outside, "weights": weights, "inside": inside}


def _move_out(g: ProgramGraph, m: Match) -> ClassId:
    w, node = g.write, m["node"]
    kept = [*m["inside"], *([w.product(m["weights"])] if m["weights"] else [])]
    bound = node.children[1] if len(node.children) > 1 else None
    inner = w.fold("sum", node.head.attrs[1], w.product(kept), bound)
    return w.mul(w.product(m["outside"]), inner) if m["outside"] else inner


def _find_constant_outside(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """c * fold(sum, k, x) = fold(sum, k, c * x) for a constant c: the other way round."""
    for y, c in pairs(node):
        if g.facts(c).const is not None and g.facts(c).dtype in FLOATS:
            for axis, body, bound in folds(g, y, "sum"):
                yield {"axis": axis, "body": body, "bound": bound, "c": c}


def _find_same_along(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(sum, k, a) = n * a for an a that is the same along k, of length n."""
    axis = node.head.attrs[1]
    extent = g.axes[axis].extent
    if _is_final(node, "sum") and len(node.children) == 1 and isinstance(extent, int):
        x = node.children[0]
        if axis not in g.facts(x).axes:
            yield {"x": x, "n": extent, "dtype": g.facts(x).dtype}


def _find_sum_of_sums(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(sum, k, a + b) = fold(sum, k, a) + fold(sum, k, b), where one of them is the same along k or depends on
    weights alone."""
    axis = node.head.attrs[1]
    if not _is_final(node, "sum") or len(node.children) > 1:
        return
    for inner in nodes(g, node.children[0], Op.ADD):
        both = [g.facts(x) for x in inner.children]
        if all(axis in x.axes for x in both) and any(x.level < RUNTIME for x in both):
            yield {"axis": axis, "terms": inner.children}


def _find_adjacent(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(a, fold(b, x)) = fold(b, fold(a, x)) for two sums or two maxima without bounds."""
    reducer, axis, mode = node.head.attrs
    if mode == "final" and len(node.children) == 1 and reducer in ("sum", "max"):
        for inner, body, bound in folds(g, node.children[0], reducer):
            if bound is None and inner != axis and {inner, axis} <= g.facts(body).axes:
                yield {"reducer": reducer, "outer": axis, "inner": inner, "body": body}


def _blocks_in(g: ProgramGraph, eclass: ClassId, axis: str) -> Iterator[tuple[int, str, str]]:
    """Divisor and the two axes of the selections in a class that cut an axis into blocks."""
    for node in nodes(g, eclass, Op.GATHER):
        given = {a: g.find(i) for a, i in selection(node).items()}
        for outer, index in given.items():
            own = iota_of(g, index)
            if own is None or own[0] != axis or own[1] == 1:
                continue
            for inner, other in given.items():
                if inner != outer and _is_remainder(g, other, axis, own[1]):
                    yield own[1], outer, inner


def _is_remainder(g: ProgramGraph, index: ClassId, axis: str, divisor: int) -> bool:
    return any(
        iota_of(g, node.children[0]) == (axis, 1) and g.facts(node.children[1]).const == divisor
        for node in nodes(g, index, Op.MOD)
    )


def _find_blocked(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """fold(k, f) = fold(kb, fold(ki, f at k = n kb + ki)) where a factor of f is written in blocks of n along k."""
    _, axis, mode = node.head.attrs
    extent = g.axes[axis].extent
    if mode != "final" or len(node.children) > 1 or not isinstance(extent, int):
        return
    for factors in factorings(g, node.children[0], axis):
        for factor in factors:
            for size, outer, inner in _blocks_in(g, factor, axis):
                if extent % size == 0 and size > UNROLLED:
                    fits = g.axes[outer].extent == extent // size and g.axes[inner].extent == size
                    free = not {outer, inner} & (g.facts(node.children[0]).axes | {axis})
                    names = (outer, inner) if fits and free else None
                    yield {"node": node, "size": size, "names": names}


def _cut(g: ProgramGraph, m: Match) -> ClassId:
    w, node = g.write, m["node"]
    reducer, axis, _ = node.head.attrs
    extent, size, body = g.axes[axis].extent, m["size"], node.children[0]
    assert isinstance(extent, int)
    if m["names"]:
        outer, inner = m["names"]
    else:
        outer, inner = g.axis(f"{axis}_block", extent // size), g.axis(f"{axis}_inner", size)
        if {outer, inner} & g.facts(body).axes:
            return m.root
    place = w.add(w.mul(w.iota(outer), w.const(size, DType.I32)), w.iota(inner))
    return w.fold(reducer, outer, w.fold(reducer, inner, w.gather(body, {axis: place})))


RULES = (
    rule("move common factor out", THEME, "real", (Op.FOLD,), _find_common, _move_out),
    rule("move constant into sum", THEME, "real", (Op.MUL,), _find_constant_outside,
         lambda g, m: g.write.fold("sum", m["axis"], g.write.mul(m["body"], m["c"]), m["bound"]), depth=2),
    rule("sum of one value", THEME, "real", (Op.FOLD,), _find_same_along,
         lambda g, m: g.write.mul(m["x"], g.write.const(m["n"], m["dtype"])), depth=2),
    rule("sum of sums", THEME, "real", (Op.FOLD,), _find_sum_of_sums,
         lambda g, m: g.write.total([g.write.fold("sum", m["axis"], t) for t in m["terms"]]), depth=2),
    rule("exchange folds", THEME, "real", (Op.FOLD,), _find_adjacent,
         lambda g, m: g.write.fold(m["reducer"], m["inner"], g.write.fold(m["reducer"], m["outer"], m["body"])),
         depth=2),
    rule("cut into blocks", THEME, "real", (Op.FOLD,), _find_blocked, _cut, depth=6),
)  # fmt: skip
