"""Numbers as texts: the decimal numbers within bounds, as a regular language.

Numbers under constraints are written without exponent and without a negative zero. How many digits one has is bounded,
so that a model cannot go on with them for ever.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import lcm

from headrace.text.schema import characters, limits
from headrace.text.schema.regex import Language, Languages
from headrace.text.schema.shapes import NumberShape

MAX_ENDINGS = 256
MAX_PLACES = 20
TRIED_VALUES = 1000
MAX_DIGITS = 64  # before the point, and behind it; more where a bound has more
_DIGITS = f"[0-9]{{1,{MAX_DIGITS}}}"
_PRIMES = (3, 7)  # whose multiples an automaton of remainders finds
ANY_INTEGER = f"-?(0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"
# With these exponents a number has a finite value in float64.
ANY_NUMBER = rf"{ANY_INTEGER}(\.{_DIGITS})?([eE](-[0-9]{{1,3}}|\+?1?[0-9]{{1,2}}))?"


class NumberError(Exception):
    """Numbers that cannot be enforced.

    Args:
        keyword: The keyword to blame.
        message: What is wrong with it.
    """

    def __init__(self, keyword: str, message: str) -> None:
        super().__init__(message)
        self.keyword = keyword


def values_of(shape: NumberShape) -> list[Decimal]:
    """The values of a shape that lists them, in order."""
    assert shape.values is not None
    return sorted(value for value in shape.values if _fits(shape, value))


def texts_of(value: Decimal) -> list[str]:
    """How a value may be written: plainly, and as the schema has it."""
    texts = [str(value)] if "E" in str(value) else []
    plain = f"{value:f}"
    if len(plain) <= 40 or not texts:
        texts += [plain, plain.rstrip("0").rstrip(".") if "." in plain else plain]
    return list(dict.fromkeys(texts))


def has_value(shape: NumberShape) -> bool | None:
    """Whether a shape that lists no values has one; None: it takes a closer look to tell."""
    low, high = (None if bound is None else Fraction(bound[0]) for bound in (shape.low, shape.high))
    factors = [*map(Fraction, shape.multiples), *([Fraction(1)] if shape.whole else [])]
    step = _common_multiple(factors)
    if not factors and low is not None and high is not None:
        step = (high - low) / 1024 or step
    sign, begin = (1, low or 0) if low is not None or high is None else (-1, high)
    first = -(-begin // step) if sign > 0 else begin // step
    for n in range(TRIED_VALUES):
        value = (first + sign * n) * step
        if _fits(shape, value):
            return True
        if (sign > 0 and high is not None and value > high) or (sign < 0 and low is not None and value < low):
            return False if factors else None
    return None


def _common_multiple(factors: list[Fraction]) -> Fraction:
    """The least number that is a multiple of all; an eighth of none."""
    if not factors:
        return Fraction(1, 8)
    denominator = lcm(*(factor.denominator for factor in factors))
    return Fraction(lcm(*(int(factor * denominator) for factor in factors)), denominator)


class NumberLanguages:
    """Makes the languages of number shapes that list no values."""

    def __init__(self, languages: Languages) -> None:
        self._all = languages
        self._digit = languages.characters(characters.DIGITS)
        self._digits = languages.repeat(self._digit, 0, None)
        self._nonzero = languages.characters(characters.of((0x31, 0x39)))
        point = languages.text(".")
        whole = languages.union([languages.text("0"), languages.sequence([self._nonzero, self._digits])])
        fraction = languages.sequence([point, languages.repeat(self._digit, 1, None)])
        self._some_fraction = languages.sequence([point, self._digits, self._nonzero, self._digits])
        self._whole = whole
        self._magnitude = languages.sequence([whole, languages.repeat(fraction, 0, 1)])
        self._broken = languages.sequence([whole, self._some_fraction])

    def of(self, shape: NumberShape) -> Language:
        """The texts of the numbers of a shape.

        Raises:
            NumberError: They cannot be enforced.
        """
        every = self._all
        listed = _listed(shape)
        if listed is not None:
            return every.union([every.text(str(value)) for value in listed])
        base = {None: self._magnitude, True: self._whole, False: self._broken}[shape.whole]
        above, below = [base], [base]
        if shape.low is not None:
            self._bound(shape.low, above, below)
        if shape.high is not None:
            self._bound((-shape.high[0], shape.high[1]), below, above)
        below.append(self._at_least(Decimal(0), exclusive=True))
        demands = [self._multiples(factor) for factor in sorted(shape.multiples)]
        demands += [every.complement(self._multiples(factor)) for factor in sorted(shape.no_multiples)]
        above += demands
        below += demands
        for value in shape.excluded:
            (below if value < 0 else above).append(every.complement(self._equal(abs(value))))
        negative = every.sequence([every.text("-"), every.intersection(below)])
        found = every.union([every.intersection(above), negative])
        factors = [Fraction(factor).numerator for factor in (*shape.multiples, *shape.no_multiples)]
        if any(factor % prime == 0 for factor in factors for prime in _PRIMES):
            return found  # the automaton of remainders, times so many digits, would be too much for the library
        bounds = [bound[0] for bound in (shape.low, shape.high) if bound is not None]
        return every.intersection([found, self._not_too_long(bounds)])

    def _not_too_long(self, bounds: list[Decimal]) -> Language:
        """Numbers that have no more digits than are let in, or than these bounds have."""
        every = self._all
        parts = [_parts(abs(bound)) for bound in bounds]
        before = max([MAX_DIGITS, *(len(whole) + 1 for whole, _ in parts)])
        behind = max([MAX_DIGITS, *(len(fraction) + 1 for _, fraction in parts)])
        sign = every.repeat(every.text("-"), 0, 1)
        fraction = every.sequence([every.text("."), every.repeat(self._digit, 1, behind)])
        return every.sequence([sign, every.repeat(self._digit, 1, before), every.repeat(fraction, 0, 1)])

    def _bound(self, bound: tuple[Decimal, bool], up: list[Language], down: list[Language]) -> None:
        """Demand that numbers are at least ``bound``: of the magnitudes above zero (``up``) and below it (``down``)."""
        value, exclusive = bound
        above = (
            self._all.complement(self._at_least(-value, exclusive=not exclusive)) if value <= 0 else self._all.nothing
        )
        down.append(above)
        if value >= 0:
            up.append(self._at_least(value, exclusive=exclusive))

    def _at_least(self, value: Decimal, *, exclusive: bool) -> Language:
        """Magnitudes not below ``value``, or above it."""
        every = self._all
        whole, fraction = _parts(value)
        tail = self._fraction_at_least(fraction, exclusive=exclusive)
        rest = every.repeat(every.sequence([every.text("."), every.repeat(self._digit, 1, None)]), 0, 1)
        longer = [self._nonzero, every.repeat(self._digit, len(whole), None), rest]
        options = [every.sequence(longer)]
        for i, digit in enumerate(whole):
            if digit < "9":
                bigger = every.characters(characters.of((ord(digit) + 1, 0x39)))
                more = every.repeat(self._digit, len(whole) - i - 1, len(whole) - i - 1)
                options.append(every.sequence([every.text(whole[:i]), bigger, more, rest]))
        options.append(every.sequence([every.text(whole), tail]))
        return every.union(options)

    def _fraction_at_least(self, fraction: str, *, exclusive: bool) -> Language:
        """What may follow the whole part of a bound, point and digits."""
        every = self._all
        if not fraction:
            any_fraction = every.sequence([every.text("."), every.repeat(self._digit, 1, None)])
            return self._some_fraction if exclusive else every.repeat(any_fraction, 0, 1)
        last = every.sequence([self._digits, self._nonzero, self._digits]) if exclusive else self._digits
        options = [every.sequence([every.text("." + fraction), last])]
        for i, digit in enumerate(fraction):
            if digit < "9":
                bigger = every.characters(characters.of((ord(digit) + 1, 0x39)))
                options.append(every.sequence([every.text("." + fraction[:i]), bigger, self._digits]))
        return every.union(options)

    def _equal(self, value: Decimal) -> Language:
        """The magnitudes equal to a value."""
        whole, fraction = _parts(value)
        zeros = self._all.repeat(self._all.text("0"), 0, None)
        if fraction:
            return self._all.sequence([self._all.text(f"{whole}.{fraction}"), zeros])
        tail = self._all.sequence([self._all.text(".0"), zeros])
        return self._all.sequence([self._all.text(whole), self._all.repeat(tail, 0, 1)])

    def _multiples(self, factor: Decimal) -> Language:
        """Magnitudes that are multiples of a factor: of its 2s and 5s the last digits tell, of its 3s and 7s an
        automaton."""
        fraction = Fraction(factor)
        places = next((n for n in range(MAX_PLACES) if (fraction * 10**n).denominator == 1), None)
        if places is None:
            raise NumberError("multipleOf", f"has more than {MAX_PLACES} places after the point; use a rounder number")
        step = int(fraction * 10**places)
        parts = [self._magnitude]
        for prime in _PRIMES:
            if step % prime == 0:
                step //= prime
                parts.append(self._remainder_zero(prime))
        width = next((n for n in range(MAX_PLACES) if 10**n % step == 0), None)
        if width is None or 10**width // step > MAX_ENDINGS:
            message = "cannot be enforced for such a number; use one of the factors 2 and 5, and of 3 and 7 once each"
            raise NumberError("multipleOf", message)
        # In units of the last place, the last digits have to be one of these.
        ends = [f"{n:0{width}d}" if width else "" for n in range(0, 10**width, step)]
        options = [self._ending(end, places) for end in ends]
        return self._all.intersection([*parts, self._all.union(options)])

    def _ending(self, end: str, places: int) -> Language:
        """Numbers whose digits up to a place after the point end with these, and are zero after it."""
        every = self._all
        whole, fraction = end[: max(0, len(end) - places)], end[max(0, len(end) - places) :]
        zeros = every.repeat(every.text("0"), 0, None)
        # A shorter whole part is one with zeros before it.
        ends = [every.text(whole[i:]) for i in range(1, len(whole)) if not whole[:i].strip("0")]
        before = every.union([every.sequence([self._digits, every.text(whole)]), *ends])
        free = every.repeat(self._digit, places - len(fraction), places - len(fraction))
        kept = fraction.rstrip("0")
        if kept:
            return every.sequence([before, every.text("."), free, every.text(kept), zeros])
        fewer = every.repeat(self._digit, 0, places - len(fraction))
        return every.sequence([before, every.repeat(every.sequence([every.text("."), fewer, zeros]), 0, 1)])

    def _remainder_zero(self, prime: int) -> Language:
        """Digits, with a point anywhere, that are a multiple of a prime which is no factor of 10: where the point is
        and how many zeros follow does not matter then. The automaton of remainders, its states eliminated."""
        every = self._all
        ways: dict[tuple[int, int], Language] = {}
        for state in range(prime):
            for after in range(prime):
                digits = "".join(str(digit) for digit in range(10) if (10 * state + digit) % prime == after)
                ways[state, after] = every.characters(characters.of(digits + ("." if state == after else "")))
        for middle in range(prime - 1, 0, -1):
            loop = every.repeat(ways[middle, middle], 0, None)
            for state, after in product(range(middle), repeat=2):
                around = every.sequence([ways[state, middle], loop, ways[middle, after]])
                ways[state, after] = every.union([ways[state, after], around])
        return every.repeat(ways[0, 0], 0, None)


def _listed(shape: NumberShape) -> list[int] | None:
    """The values of a shape that are better listed; None: an expression tells them.

    The expression for multiples of 7 has 28,000 characters, more than the library follows within bounds.

    Raises:
        NumberError: They are too many to be listed, and too many for an expression.
    """
    sevens = any(Fraction(factor).numerator % 7 == 0 for factor in (*shape.multiples, *shape.no_multiples))
    if not sevens or not any(bound is not None and bound[0] for bound in (shape.low, shape.high)):
        return None
    step = _common_multiple([*map(Fraction, shape.multiples), *([Fraction(1)] if shape.whole else [])])
    if shape.low is not None and shape.high is not None and step.denominator == 1:
        multiples = range(-(-Fraction(shape.low[0]) // step), Fraction(shape.high[0]) // step + 1)
        if len(multiples) <= limits.MAX_ALTERNATIVES:
            return [n * step.numerator for n in multiples if _fits(shape, Fraction(n) * step)]
    message = "of 7 cannot be enforced within such bounds; leave them out, or bring them nearer"
    raise NumberError("multipleOf", message)


def _parts(value: Decimal) -> tuple[str, str]:
    """The digits before and after the point of a number that is not negative, without zeros at the ends."""
    whole, _, fraction = (
        f"{value:f}".partition(".") if abs(value.adjusted()) < limits.MAX_BOUND_DIGITS else ("", "", "")
    )
    if not 0 < len(whole) + len(fraction) <= 2 * limits.MAX_BOUND_DIGITS:
        message = f"has more than {limits.MAX_BOUND_DIGITS} digits; use a rounder number, or leave it out"
        raise NumberError("minimum", message)
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def _fits(shape: NumberShape, value: Decimal | Fraction) -> bool:
    number = Fraction(value)
    low, high = shape.low, shape.high
    return (
        (low is None or number > Fraction(low[0]) or (number == Fraction(low[0]) and not low[1]))
        and (high is None or number < Fraction(high[0]) or (number == Fraction(high[0]) and not high[1]))
        and (shape.whole is None or shape.whole == (number.denominator == 1))
        and all((number / Fraction(factor)).denominator == 1 for factor in shape.multiples)
        and not any((number / Fraction(factor)).denominator == 1 for factor in shape.no_multiples)
        and not any(number == Fraction(excluded) for excluded in shape.excluded)
    )
