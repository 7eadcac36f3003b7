"""Index arithmetic that is understood, not just computed: which elements of an array sixteen lanes touch.

Every index is a sum of loop variables with factors, so that it is known whether the lanes of a vector read neighbours
(one load), the same element (a broadcast) or anything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LANES = 16


@dataclass(frozen=True, slots=True)
class Term:
    """``factor * name``; ``name`` is a C expression from 0 to ``count - 1`` (0: no bound is known)."""

    name: str
    factor: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Index:
    """A sum.

    Attributes:
        terms: Its variable part, the same in all lanes.
        constant: Its constant part.
        lane: Factor of the lane's number.
        dot: Factor of the number inside a group whose products one instruction adds.
        dots: Members of the group.
    """

    terms: tuple[Term, ...] = ()
    constant: int = 0
    lane: int = 0
    dot: int = 0
    dots: int = 1

    def c(self) -> str:
        """In C, for lane 0 and the first of the group."""
        parts = [t.name if t.factor == 1 else f"{t.name} * {t.factor}" for t in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)

    @property
    def uniform(self) -> bool:
        """Whether all lanes have the same value."""
        return self.lane == 0 and self.dot == 0


def within(a: Index, extent: int) -> bool:
    """Whether the index is known to be from 0 to ``extent - 1``."""
    return _below(a, extent)


def constant(value: int) -> Index:
    """A number."""
    return Index(constant=value)


def opaque(expression: str) -> Index:
    """A C expression of which nothing is known."""
    return Index((Term(expression, 1),))


def add(a: Index, b: Index) -> Index:
    """A + b."""
    merged: dict[tuple[str, int], int] = {}
    for term in (*a.terms, *b.terms):
        merged[term.name, term.count] = merged.get((term.name, term.count), 0) + term.factor
    terms = tuple(Term(name, factor, count) for (name, count), factor in merged.items() if factor)
    return Index(terms, a.constant + b.constant, a.lane + b.lane, a.dot + b.dot, max(a.dots, b.dots))


def scale(a: Index, factor: int) -> Index:
    """A * factor."""
    terms = tuple(replace(t, factor=t.factor * factor) for t in a.terms) if factor else ()
    return Index(terms, a.constant * factor, a.lane * factor, a.dot * factor, a.dots)


def divide(a: Index, divisor: int) -> Index | None:
    """``floor(a / divisor)``; None if the lanes differ in a way that cannot be told."""
    if divisor == 1:
        return a
    whole, rest = _split(a, divisor)
    if _below(rest, divisor):
        return whole
    outer = _aligned(rest, divisor)
    if outer is None:
        return None
    count = _top(outer) // divisor + 1 if _positive(outer) else 0
    return add(whole, Index((Term(_floor(outer, divisor), 1, count),)))


def modulo(a: Index, divisor: int) -> Index | None:
    """``a mod divisor``, never negative; None if the lanes differ in a way that cannot be told."""
    _, rest = _split(a, divisor)
    if _below(rest, divisor):
        return rest
    outer = _aligned(rest, divisor)
    if outer is None:
        return None
    inner = Index(lane=rest.lane, dot=rest.dot, dots=rest.dots)
    step = math.gcd(divisor, outer.constant, *(t.factor for t in outer.terms))
    steps = Index(tuple(replace(t, factor=t.factor // step) for t in outer.terms), outer.constant // step)
    return add(Index((Term(_remainder(steps, divisor // step), step, divisor // step),)), inner)


def below(a: Index, bound: int) -> str | None:
    """Whether ``a < bound``, in C, if the answer is the same in all lanes; else None."""
    if a.uniform:
        return f"{a.c()} < {bound}"
    outer = _aligned(a, bound)
    return None if outer is None else f"{outer.c()} < {bound}"


def _floor(a: Index, divisor: int) -> str:
    """``floor(a / divisor)`` of what is the same in all lanes, in C, whose own division rounds towards zero."""
    if divisor & (divisor - 1) == 0:
        return f"(({a.c()}) >> {divisor.bit_length() - 1})"
    return f"(({a.c()}) / {divisor})" if _positive(a) else f"hr_floor({a.c()}, {divisor})"


def _remainder(a: Index, divisor: int) -> str:
    """What ``_floor`` leaves."""
    if divisor & (divisor - 1) == 0:
        return f"(({a.c()}) & {divisor - 1})"
    return f"(({a.c()}) % {divisor})" if _positive(a) else f"hr_rest({a.c()}, {divisor})"


def _aligned(a: Index, bound: int) -> Index | None:
    """What is the same in all lanes, if the lanes of a vector never lie on both sides of a multiple of ``bound``."""
    outer = replace(a, lane=0, dot=0)
    inner = Index(lane=a.lane, dot=a.dot, dots=a.dots)
    if a.lane < 0 or a.dot < 0:
        return None
    step = 1
    while step <= _top(inner):
        step *= 2
    return None if any(x % step for x in (bound, outer.constant, *(t.factor for t in outer.terms))) else outer


def _split(a: Index, divisor: int) -> tuple[Index, Index]:
    """The multiples of ``divisor``, divided by it, and the rest, whose constant is from 0 to ``divisor - 1``."""
    whole = tuple(Term(t.name, t.factor // divisor, t.count) for t in a.terms if t.factor % divisor == 0)
    rest = tuple(t for t in a.terms if t.factor % divisor)
    lane_whole = a.lane % divisor == 0
    dot_whole = a.dot % divisor == 0
    return (
        Index(
            whole,
            a.constant // divisor,
            a.lane // divisor if lane_whole else 0,
            a.dot // divisor if dot_whole else 0,
            a.dots,
        ),
        Index(rest, a.constant % divisor, 0 if lane_whole else a.lane, 0 if dot_whole else a.dot, a.dots),
    )


def _top(a: Index) -> int:
    """The largest value of an index all of whose parts are bounded and not negative."""
    return sum(t.factor * (t.count - 1) for t in a.terms) + a.constant + a.lane * (LANES - 1) + a.dot * (a.dots - 1)


def _positive(a: Index) -> bool:
    """Whether an index is known to have bounds, and never to be negative."""
    return all(t.count and t.factor > 0 for t in a.terms) and min(a.lane, a.dot, a.constant) >= 0


def _below(rest: Index, bound: int) -> bool:
    return _positive(rest) and _top(rest) < bound
