"""Lengths, fixed or drawn from a law that is written as a short text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput

MOST = 10_000_000
MOST_SIGMA = 5.0  # beyond e^5 times the median either way nothing is a length any more
MOST_CHOICES = 10_000

FORMS = (
    "a number such as 512, uniform:LOW:HIGH, normal:MEAN:SD[:MAX], lognormal:MEDIAN:SIGMA[:MAX] or choice:A,B,..., "
    f"with lengths from 1 to {MOST}"
)
WHOLE = re.compile(r"[0-9]{1,20}", re.ASCII)
DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?", re.ASCII)

Ints = npt.NDArray[np.int64]
Kind = Literal["constant", "uniform", "normal", "lognormal", "choice"]


class LengthLaw(msgspec.Struct, frozen=True):
    """A law of lengths. Made by ``parse_lengths``, which checks it.

    Attributes:
        kind: Its family.
        values: constant: the length; uniform: lowest and highest, both possible; normal: mean and standard deviation;
            lognormal: median and standard deviation of the natural logarithm; choice: the lengths, equally likely.
        most: No length is drawn above this: higher ones become this.
    """

    kind: Kind
    values: tuple[float, ...]
    most: int = MOST

    def draw(self, rng: np.random.Generator, n: int) -> Ints:
        """Lengths, each from 1 to ``most``; normal and lognormal ones are rounded to the nearest integer.

        Args:
            rng: Where the randomness comes from. A constant takes none.
            n: How many.

        Returns:
            int64[n].
        """
        first, *rest = self.values
        drawn: npt.NDArray[Any]
        match self.kind:
            case "constant":
                drawn = np.full(n, first)
            case "uniform":
                drawn = rng.integers(int(first), int(rest[0]), n, endpoint=True)
            case "normal":
                drawn = rng.normal(first, rest[0], n)
            case "lognormal":
                drawn = first * np.exp(rest[0] * rng.standard_normal(n))
            case "choice":
                drawn = rng.choice(np.array(self.values), n)
        lengths: Ints = np.clip(np.rint(drawn), 1, self.most).astype(np.int64)
        return lengths

    def __str__(self) -> str:
        """The text that gives this law."""
        values = [np.format_float_positional(value, trim="-") for value in self.values]
        if self.kind == "constant":
            return values[0]
        most = [str(self.most)] if self.most < MOST else []
        return f"{self.kind}:{','.join(values) if self.kind == 'choice' else ':'.join(values + most)}"


def parse_lengths(text: str, field: str) -> LengthLaw:
    """The law that a text names.

    Args:
        text: ``512``; ``uniform:100:200``, both ends included; ``normal:512:64``, mean and standard deviation;
            ``lognormal:512:0.8``, median and standard deviation of the logarithm; either of these with an upper bound
            as one more part; ``choice:128,512,2048``, equally likely.
        field: What the caller calls the text, for errors.

    Raises:
        InvalidInput: It is none of these, or its values are out of range.
    """
    if WHOLE.fullmatch(text):
        return LengthLaw("constant", (_length(text, field),))
    kind, _, rest = text.partition(":")
    reader = READERS.get(kind)
    if reader is None or not rest:
        raise InvalidInput(f"{text[:80]!r} is no law of lengths; write {FORMS}", field=field)
    return reader(rest.split("," if kind == "choice" else ":"), field)


def _uniform(parts: Sequence[str], field: str) -> LengthLaw:
    _count(parts, "uniform:LOW:HIGH", 2, 2, field)
    low, high = (_length(part, field) for part in parts)
    if low > high:
        raise InvalidInput(f"uniform: the lowest, {low}, is above the highest, {high}; exchange them", field=field)
    return LengthLaw("uniform", (low, high))


def _normal(parts: Sequence[str], field: str) -> LengthLaw:
    _count(parts, "normal:MEAN:SD[:MAX]", 2, 3, field)
    mean = _number(parts[0], "the mean", 1, MOST, field)
    deviation = _number(parts[1], "the standard deviation", 0, MOST, field)
    return LengthLaw("normal", (mean, deviation), _most(parts[2:], mean, field))


def _lognormal(parts: Sequence[str], field: str) -> LengthLaw:
    _count(parts, "lognormal:MEDIAN:SIGMA[:MAX]", 2, 3, field)
    median = _number(parts[0], "the median", 1, MOST, field)
    sigma = _number(parts[1], "sigma", 0, MOST_SIGMA, field)
    return LengthLaw("lognormal", (median, sigma), _most(parts[2:], median, field))


def _choice(parts: Sequence[str], field: str) -> LengthLaw:
    if len(parts) > MOST_CHOICES:
        raise InvalidInput(f"choice: {len(parts)} lengths are more than {MOST_CHOICES}; give fewer", field=field)
    return LengthLaw("choice", tuple(_length(part, field) for part in parts))


READERS: dict[str, Callable[[Sequence[str], str], LengthLaw]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "choice": _choice,
}


def _count(parts: Sequence[str], form: str, least: int, most: int, field: str) -> None:
    if not least <= len(parts) <= most:
        raise InvalidInput(f"there are {len(parts)} values; write {form}", field=field)


def _length(text: str, field: str) -> int:
    if not WHOLE.fullmatch(text) or not 1 <= int(text) <= MOST:
        raise InvalidInput(f"{text[:80]!r} is no length; write a whole number from 1 to {MOST}", field=field)
    return int(text)


def _number(text: str, name: str, least: float, most: float, field: str) -> float:
    """A decimal number; ``least`` itself is allowed unless it is 0."""
    value = float(text) if DECIMAL.fullmatch(text) else -1.0
    if not (least <= value <= most and value > 0):
        low = f"from {least:g}" if least else "above 0 and"
        raise InvalidInput(f"{name}, {text[:80]!r}, must be a number {low} up to {most:g}", field=field)
    return value


def _most(parts: Sequence[str], centre: float, field: str) -> int:
    if not parts:
        return MOST
    most = _length(parts[0], field)
    if most < centre:
        raise InvalidInput(f"the upper bound, {most}, is below the middle of the law, {centre:g}", field=field)
    return most
