"""Theme ``index``: integer arithmetic on indices, by one normal form: a constant plus multiples of *atoms*.

An atom is whatever is no sum and no constant multiple: an axis' index, an element of a table, a remainder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headrace.compiler.egraph import ClassId, ENode
from headrace.compiler.ir import ELEMENTWISE, INTEGERS, DType, Op
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
    """A class in normal form: of all its forms one with the fewest terms, and the fewest atoms but plain indices."""
    eclass = g.find(eclass)
    value = g.facts(eclass).const
    if value is not None:
        return Affine((), int(value))
    clock, known = g.forms.get(eclass, (-1, None))
    if isinstance(known, Affine) and clock == g.clock:
        return known
    itself = Affine(((eclass, 1),), 0)
    if eclass in path or nodes(g, eclass, Op.IOTA):
        return itself
    found = [form for form in _sums(g, eclass, path | {eclass}) if all(atom != eclass for atom, _ in form.terms)]
    form = min(found, key=lambda form: _size(g, form)) if found else itself
    if not path:
        g.forms[eclass] = (g.clock, form)
    return form


def _size(g: ProgramGraph, form: Affine) -> tuple[int, int, Affine]:
    return len(form.terms), sum(iota_of(g, atom) is None for atom, _ in form.terms), form


def _sums(g: ProgramGraph, eclass: ClassId, inside: frozenset[ClassId]) -> Iterator[Affine]:
    for node in nodes(g, eclass, Op.MUL):
        for x, c in pairs(node):
            times = g.facts(c).const
            if times is not None:
                yield Affine((), 0).plus(affine(g, x, inside), int(times))
    for node in nodes(g, eclass, Op.ADD):
        a, b = (affine(g, child, inside) for child in node.children)
        yield a.plus(b)


def rejoined(g: ProgramGraph, form: Affine) -> Affine:
    """``n * floor(x / n) + mod(x, n) = x``, wherever both parts are terms, times a common factor."""
    for atom, factor in form.terms:
        for node in nodes(g, atom, Op.MOD):
            x, n = node.children
            divisor = g.facts(n).const
            if divisor is None or divisor < 2:
                continue
            for other, times in form.terms:
                if times == factor * divisor and is_floor(g, other, x, int(divisor)):
                    parts = Affine(tuple(sorted(((atom, factor), (other, times)))), 0)
                    return form.plus(parts, -1).plus(affine(g, x), factor)
    return form


def is_floor(g: ProgramGraph, eclass: ClassId, x: ClassId, divisor: int) -> bool:
    """Whether a class is ``floor(x / divisor)``."""
    whole = iota_of(g, x)
    own = iota_of(g, eclass)
    if whole is not None and own == (whole[0], whole[1] * divisor):
        return True
    for node in nodes(g, eclass, Op.GATHER):
        source = iota_of(g, node.children[0])
        index = selection(node).get(source[0]) if source else None
        if source and index is not None and g.facts(index).within(g.axes[source[0]]):
            if source[1] == divisor and affine(g, index) == affine(g, x):
                return True
            for inner in nodes(g, x, Op.GATHER):
                below = iota_of(g, inner.children[0])
                same = below is not None and below[0] == source[0] and below[1] * divisor == source[1]
                if same and g.find(inner.children[1]) == g.find(index):
                    return True
    return False


def write(g: ProgramGraph, form: Affine, dtype: DType = DType.I32) -> ClassId:
    """The class of a normal form."""
    w = g.write
    terms = [atom if factor == 1 else w.mul(atom, w.const(factor, dtype)) for atom, factor in form.terms]
    if form.constant or not terms:
        terms.append(w.const(form.constant, dtype))
    return w.total(terms)


def _find_sum(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """Sums and constant multiples of integers in one order, like terms joined. Wrapping around keeps it true."""
    if g.facts(root).dtype in INTEGERS and g.facts(root).const is None:
        form = rejoined(g, affine(g, root))
        if form.terms != ((root, 1),):
            yield {"form": form, "dtype": g.facts(root).dtype}


def reduced(g: ProgramGraph, x: ClassId, divisor: int) -> Affine:
    """What has the same remainder: without multiples of the divisor, and with ``mod(y, k n)`` replaced by ``y``."""
    form = affine(g, x)
    for atom, factor in form.terms:
        for inner in nodes(g, atom, Op.MOD):
            period = g.facts(inner.children[1]).const
            if period is not None and period > 0 and period % divisor == 0:
                form = form.plus(Affine(((atom, factor),), 0), -1).plus(affine(g, inner.children[0]), factor)
    return form.split(divisor)[1]


def remainder(g: ProgramGraph, x: ClassId, n: ClassId) -> ClassId:
    """``mod(x, n)`` of integers, as simple as it is known to be."""
    divisor = g.facts(n).const
    if divisor is None or divisor < 1:
        return g.write.mod(x, n)
    rest = reduced(g, x, int(divisor))
    low, high = rest.range(g)
    inside = write(g, rest, g.facts(x).dtype)
    return inside if low >= 0 and high < divisor else g.write.mod(inside, n)


def floored(g: ProgramGraph, axis: str, divisor: int, index: ClassId) -> ClassId:
    """``iota(axis, divisor)`` at an index, as simple as it is known to be."""
    if not g.facts(index).within(g.axes[axis]):
        return g.write.node(Op.GATHER, ((axis,),), (g.write.iota(axis, divisor), index))
    if divisor == 1:
        return g.find(index)
    own = iota_of(g, index)
    if own is not None:
        return g.write.iota(own[0], own[1] * divisor)
    for inner in nodes(g, index, Op.GATHER):
        below = iota_of(g, inner.children[0])
        at = selection(inner).get(below[0]) if below else None
        if below and at is not None and below[1] > 1 and g.facts(at).within(g.axes[below[0]]):
            return floored(g, below[0], below[1] * divisor, at)
    form = affine(g, index)
    whole, rest = form.split(divisor)
    low, high = rest.range(g)
    if low >= 0 and high < divisor:
        return write(g, whole)
    return g.write.node(Op.GATHER, ((axis,),), (g.write.iota(axis, divisor), write(g, form)))


def picked(g: ProgramGraph, x: ClassId, index: Mapping[str, ClassId]) -> ClassId:
    """Index arithmetic at other indices: written anew, because the selection would only have to be pushed through."""
    x = g.find(x)
    if not g.facts(x).axes & index.keys():
        return x
    for node in nodes(g, x, Op.IOTA):
        axis, divisor = node.head.attrs
        return floored(g, axis, divisor, index[axis])
    if g.facts(x).dtype in INTEGERS:
        form = affine(g, x)
        if form.terms != ((x, 1),):
            total = Affine((), form.constant)
            for atom, factor in form.terms:
                total = total.plus(affine(g, picked(g, atom, index)), factor)
            return write(g, total, g.facts(x).dtype)
    for node in g.nodes(x):
        op = Op(node.head.op)
        if op in ELEMENTWISE and g.find(x) not in map(g.find, node.children):
            args = tuple(picked(g, child, index) for child in node.children)
            if op is Op.MOD and g.facts(x).dtype in INTEGERS:
                return remainder(g, *args)
            return g.write.node(op, node.head.attrs, args)
        source = iota_of(g, node.children[0]) if op is Op.GATHER else None
        if source is not None:
            return floored(g, *source, picked(g, selection(node)[source[0]], index))
    own = {axis: i for axis, i in index.items() if axis in g.facts(x).axes}
    return g.write.node(Op.GATHER, (tuple(sorted(own)),), (x, *(own[axis] for axis in sorted(own))))


def _find_remainder(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """mod n: multiples of n count for nothing; what is left may be no larger than n - 1, then it is its own remainder;
    mod(mod(x, k n), n) = mod(x, n)."""
    x, n = node.children
    divisor = g.facts(n).const
    if divisor is None or g.facts(n).dtype not in INTEGERS or divisor < 1:
        return
    rest = reduced(g, x, int(divisor))
    low, high = rest.range(g)
    if (low >= 0 and high < divisor) or rest != affine(g, x):
        yield {"x": x, "n": n}


def _find_index_of_index(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """floor(i / d) at i = x is floor(x / d), for an x that is certainly an index: multiples of d come out; so does x
    itself if d is 1; floor(floor(y / a) / b) = floor(y / (a b))."""
    for source in nodes(g, node.children[0], Op.IOTA):
        axis, divisor = source.head.attrs
        index = selection(node).get(axis)
        if index is not None and g.facts(index).within(g.axes[axis]):
            yield {"axis": axis, "divisor": divisor, "index": index}


def _find_short(g: ProgramGraph, root: ClassId, node: ENode) -> Iterator[Bindings]:
    """floor(i / d) = 0 if the axis is no longer than d."""
    facts = g.facts(root)
    if facts.low == facts.high and facts.const is None and math.isfinite(facts.low):
        yield {"value": int(facts.low), "dtype": facts.dtype}


RULES = (
    rule("order sum", THEME, "bit", (Op.ADD, Op.MUL), _find_sum,
         lambda g, m: write(g, m["form"], m["dtype"]), once=False),
    rule("reduce remainder", THEME, "bit", (Op.MOD,), _find_remainder,
         lambda g, m: remainder(g, m["x"], m["n"]), once=False),
    rule("index of index", THEME, "bit", (Op.GATHER,), _find_index_of_index,
         lambda g, m: floored(g, m["axis"], m["divisor"], m["index"]), once=False),
    rule("only integer", THEME, "bit", (Op.IOTA, Op.MOD, Op.ADD, Op.MUL, Op.MAX), _find_short,
         lambda g, m: g.write.const(m["value"], m["dtype"]), depth=2),
)  # fmt: skip
