"""Integer arithmetic on indices, brought into one form: a sum of multiples of *atoms*, and a constant.

It is what makes splitting an axis and merging it again come out as nothing at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.compiler.capture.ranges import Range, inside, plus, scale
from headrace.compiler.ir import DType, Op

if TYPE_CHECKING:
    from headrace.compiler.capture.draft import Draft


@dataclass(frozen=True, slots=True)
class Affine:
    """``sum(factor * atom) + constant``; the atoms are nodes."""

    terms: dict[int, int]
    constant: int = 0

    def range(self, draft: Draft) -> Range:
        """Its bounds."""
        total: Range = (self.constant, self.constant)
        for atom, factor in self.terms.items():
            total = plus(total, scale(draft.ranges[atom], factor))
        return total

    def times(self, factor: int) -> Affine:
        """A multiple."""
        return Affine({a: f * factor for a, f in self.terms.items() if factor}, self.constant * factor)


def affine(draft: Draft, node: int) -> Affine:
    """An integer node in this form."""
    n = draft.nodes[node]
    value = draft.constant(node)
    if isinstance(value, int):
        return Affine({}, value)
    if n.op is Op.ADD:
        return total([affine(draft, a) for a in n.args])
    if n.op is Op.MUL:
        for one, other in (n.args, n.args[::-1]):
            factor = draft.constant(one)
            if isinstance(factor, int):
                return affine(draft, other).times(factor)
    return Affine({node: 1})


def total(parts: Iterable[Affine]) -> Affine:
    """A sum."""
    terms: dict[int, int] = {}
    constant = 0
    for part in parts:
        constant += part.constant
        for atom, factor in part.terms.items():
            terms[atom] = terms.get(atom, 0) + factor
    return Affine({a: f for a, f in terms.items() if f}, constant)


def write(draft: Draft, form: Affine, dtype: DType) -> int:
    """The node that computes a form, the same for equal forms."""
    form = _join_digits(draft, form)
    node: int | None = None
    # The largest strides first, as one writes them; and alike for alike parts of a program.
    for atom, factor in sorted(form.terms.items(), key=lambda term: (-abs(term[1]), term[0])):
        term = atom if factor == 1 else draft.raw(Op.MUL, (), (atom, _const(draft, factor, dtype)))
        node = term if node is None else draft.raw(Op.ADD, (), (node, term))
    if node is None:
        return _const(draft, form.constant, dtype)
    return node if form.constant == 0 else draft.raw(Op.ADD, (), (node, _const(draft, form.constant, dtype)))


def _const(draft: Draft, value: int, dtype: DType) -> int:
    return draft.raw(Op.CONST, (value, str(dtype)), ())


def modulo(draft: Draft, node: int, divisor: int) -> int | None:
    """``node mod divisor`` if it can be said more simply."""
    form = affine(draft, node)
    if not _bounded(draft, form):
        return None
    rest = Affine({a: f for a, f in form.terms.items() if f % divisor}, form.constant % divisor)
    if inside(rest.range(draft), (0, divisor - 1)):
        return write(draft, rest, draft.dtype(node))
    inner = _single(draft, rest)
    if inner is not None and draft.nodes[inner].op is Op.MOD:
        argument, by = draft.nodes[inner].args
        wider = draft.constant(by)
        if isinstance(wider, int) and wider > 0 and wider % divisor == 0:
            return draft.mod(argument, draft.const(divisor, draft.dtype(node)))
    if rest != form:
        return draft.mod(write(draft, rest, draft.dtype(node)), draft.const(divisor, draft.dtype(node)))
    return None


def floor_divide(draft: Draft, node: int, divisor: int) -> int | None:
    """int32 ``floor(node / divisor)`` if there is a way to say it without another axis."""
    if divisor == 1:
        return node
    form = affine(draft, node)
    if not _bounded(draft, form):
        return None
    whole = Affine({a: f // divisor for a, f in form.terms.items() if f % divisor == 0}, form.constant // divisor)
    rest = Affine({a: f for a, f in form.terms.items() if f % divisor}, form.constant % divisor)
    if inside(rest.range(draft), (0, divisor - 1)):
        return write(draft, whole, DType.I32)
    inner = _single(draft, rest)
    divided = None if inner is None else _divide_atom(draft, inner, divisor)
    return None if divided is None else write(draft, total([whole, affine(draft, divided)]), DType.I32)


def _bounded(draft: Draft, form: Affine) -> bool:
    """Whether no overflow can hide in it: indices never do, numbers that a step brings might."""
    return all(draft.pure[a] or math.inf not in map(abs, draft.ranges[a]) for a in form.terms)


def _single(draft: Draft, form: Affine) -> int | None:
    """The atom that the form is, if it is one."""
    if form.constant == 0 and list(form.terms.values()) == [1]:
        return next(iter(form.terms))
    return None


def _divide_atom(draft: Draft, atom: int, divisor: int) -> int | None:
    node = draft.nodes[atom]
    if node.op is Op.IOTA and isinstance(node.attrs[1], int):
        return draft.iota(str(node.attrs[0]), node.attrs[1] * divisor)
    if node.op is Op.MOD:
        by = draft.constant(node.args[1])
        if isinstance(by, int) and by > 0 and by % divisor == 0:
            divided = floor_divide(draft, node.args[0], divisor)
            return None if divided is None else draft.mod(divided, draft.const(by // divisor, DType.I32))
    return None


def _join_digits(draft: Draft, form: Affine) -> Affine:
    """``floor(i / (p q)) q + floor(i / p) mod q`` is ``floor(i / p)``."""
    for atom, factor in sorted(form.terms.items()):
        digit = draft.nodes[atom]
        if digit.op is not Op.MOD:
            continue
        base = draft.constant(digit.args[1])
        index = draft.nodes[digit.args[0]]
        if not isinstance(base, int) or base <= 0 or index.op is not Op.IOTA or not isinstance(index.attrs[1], int):
            continue
        higher = draft.raw(Op.IOTA, (draft.find(str(index.attrs[0])), index.attrs[1] * base), ())
        if form.terms.get(higher) == factor * base:
            terms = {a: f for a, f in form.terms.items() if a not in (atom, higher)}
            joined = total([Affine(terms, form.constant), Affine({digit.args[0]: factor})])
            return _join_digits(draft, joined)
    return form
