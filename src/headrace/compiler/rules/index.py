"""Theme ``index``: integer arithmetic on indices, by one normal form: a constant plus multiples of *atoms*.

An atom is whatever is no sum and no constant multiple: an axis' index, an element of a table, a remainder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from headrace.compiler.egraph import ClassId, ENode, Match
from headrace.compiler.ir import INTEGERS, Axis, DType, Op
from headrace.compiler.rules.finding import Bindings, iota_of, nodes, pairs, rule, selection
from headrace.compiler.rules.program import ProgramGraph

THEME = "index"


class Affine(NamedTuple):
    """``constant + sum(factor * atom)``.

    Attributes:
        terms: Atoms (classes) and factors, sorted, no factor 0.
        constant: The rest.
    """

    terms: tuple[tuple[ClassId, int], ...]
    constant: int

    def plus(self, other: Affine, times: int = 1) -> Affine:
        """``self + times * other``."""
        merged = dict(self.terms)
        for atom, factor in other.terms:
            merged[atom] = merged.get(atom, 0) + factor * times
        kept = tuple(sorted((atom, factor) for atom, factor in merged.items() if factor))
        return Affine(kept, self.constant + times * other.constant)

    def split(self, divisor: int) -> tuple[Affine, Affine]:
        """``q`` and ``r`` with ``self = divisor * q + r``; the constant of ``r`` is a remainder."""
        whole = tuple((atom, factor // divisor) for atom, factor in self.terms if factor % divisor == 0)
        rest = tuple((atom, factor) for atom, factor in self.terms if factor % divisor)
        return Affine(whole, self.constant // divisor), Affine(rest, self.constant % divisor)

    def range(self, g: ProgramGraph) -> tuple[float, float]:
        """The least and the largest value that it can have."""
        low: float = self.constant
        high: float = self.constant
        for atom, factor in self.terms:
            facts = g.facts(atom)
            ends = (facts.low * factor, facts.high * factor)
            low, high = low + min(ends), high + max(ends)
        return low, high


def affine(g: ProgramGraph, eclass: ClassId, path: frozenset[ClassId] = frozenset()) -> Affine:
    """A class in normal form."""
    eclass = g.find(eclass)
    value = g.facts(eclass).const
    if value is not None:
        return Affine((), int(value))
    itself = Affine(((eclass, 1),), 0)
    if eclass in path or nodes(g, eclass, Op.IOTA):
        return itself
    inside = path | {eclass}
    for node in nodes(g, eclass, Op.MUL):
        for x, c in pairs(node):
            times = g.facts(c).const
            if times is not None:
                return Affine((), 0).plus(affine(g, x, inside), int(times))
    for node in nodes(g, eclass, Op.ADD):
        a, b = (affine(g, child, inside) for child in node.children)
        both = a.plus(b)
        if all(atom not in inside for atom, _ in both.terms):
            return both
    return itself


def write(g: ProgramGraph, form: Affine, dtype: DType = DType.I32) -> ClassId:
    """The class of a normal form."""
    w = g.write
    terms = [atom if factor == 1 else w.mul(atom, w.const(factor, dtype)) for atom, factor in form.terms]
    if form.constant or not terms:
        terms.append(w.const(form.constant, dtype))
    return w.total(terms)


def floor(g: ProgramGraph, form: Affine, axis: Axis, divisor: int) -> ClassId:
    """``floor(form / divisor)`` of what is certainly an index of this axis."""
    whole, rest = form.split(divisor)
    low, high = rest.range(g)
    if low >= 0 and high < divisor:
        return write(g, whole)
    return g.write.gather(g.write.iota(axis.name, divisor), {axis.name: write(g, form)})


def _find_sum(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """Sums and constant multiples of integers in one order, like terms joined. Wrapping around keeps it true."""
    if g.facts(root).dtype in INTEGERS and g.facts(root).const is None:
        form = affine(g, root)
        if form.terms != ((root, 1),):
            yield {"form": form, "dtype": g.facts(root).dtype}


def _find_remainder(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """mod n: multiples of n count for nothing; what is left may be no larger than n - 1, then it is its own remainder;
    mod(mod(x, k n), n) = mod(x, n)."""
    x, n = node.children
    divisor = g.facts(n).const
    if divisor is None or g.facts(n).dtype not in INTEGERS or divisor < 1:
        return
    form = affine(g, x)
    for atom, factor in form.terms:
        for inner in nodes(g, atom, Op.MOD):
            period = g.facts(inner.children[1]).const
            if period is not None and period > 0 and period % divisor == 0:
                form = form.plus(Affine(((atom, factor),), 0), -1).plus(affine(g, inner.children[0]), factor)
    _, rest = form.split(int(divisor))
    low, high = rest.range(g)
    inside = low >= 0 and high < divisor
    if inside or rest != affine(g, x):
        yield {"rest": rest, "inside": inside, "divisor": n, "dtype": g.facts(x).dtype}


def _remainder(g: ProgramGraph, m: Match) -> ClassId:
    rest = write(g, m["rest"], m["dtype"])
    return rest if m["inside"] else g.write.mod(rest, m["divisor"])


def _find_index_of_index(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """floor(i / d) at i = x is floor(x / d), for an x that is certainly an index: multiples of d come out; so does x
    itself if d is 1; floor(floor(y / a) / b) = floor(y / (a b))."""
    for source in nodes(g, node.children[0], Op.IOTA):
        axis, divisor = source.head.attrs
        index = selection(node).get(axis)
        if index is not None and g.facts(index).within(g.axes[axis]):
            yield {"axis": axis, "divisor": divisor, "index": index}


def _index_of_index(g: ProgramGraph, m: Match) -> ClassId | None:
    axis, divisor, index = g.axes[m["axis"]], m["divisor"], m["index"]
    if divisor == 1:
        return g.find(index)
    own = iota_of(g, index)
    if own is not None:
        return g.write.iota(own[0], own[1] * divisor)
    for inner in nodes(g, index, Op.GATHER):
        below = iota_of(g, inner.children[0])
        at = selection(inner).get(below[0]) if below else None
        if below and at is not None and below[1] > 1 and g.facts(at).within(g.axes[below[0]]):
            return floor(g, affine(g, at), g.axes[below[0]], below[1] * divisor)
    return floor(g, affine(g, index), axis, divisor)


def _find_short(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """floor(i / d) = 0 if the axis is no longer than d."""
    facts = g.facts(root)
    if facts.low == facts.high and facts.const is None and math.isfinite(facts.low):
        yield {"value": int(facts.low), "dtype": facts.dtype}


RULES = (
    rule("order sum", THEME, "bit", (Op.ADD, Op.MUL), _find_sum, lambda g, m: write(g, m["form"], m["dtype"])),
    rule("reduce remainder", THEME, "bit", (Op.MOD,), _find_remainder, _remainder),
    rule("index of index", THEME, "bit", (Op.GATHER,), _find_index_of_index, _index_of_index),
    rule("only integer", THEME, "bit", (Op.IOTA, Op.MOD, Op.ADD, Op.MUL, Op.MAX), _find_short,
         lambda g, m: g.write.const(m["value"], m["dtype"]), depth=2),
)  # fmt: skip
