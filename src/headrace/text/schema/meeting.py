"""Intersections and unions of shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from headrace.text.schema import limits
from headrace.text.schema.shapes import (
    ALL_SHAPES,
    ANYTHING,
    ArrayShape,
    BooleanShape,
    Count,
    Goal,
    NumberShape,
    ObjectShape,
    SeenItems,
    SeenKeys,
    Shape,
    StringShape,
)

T = TypeVar("T")


class Conflict(Exception):
    """No value is of both shapes."""


def meet(one: Shape, other: Shape) -> Shape:
    """The values of both shapes, which are of one type.

    Raises:
        Conflict: There are none, as can be seen without a look at patterns and goals.
    """
    match one, other:
        case NumberShape(), NumberShape():
            return _meet_numbers(one, other)
        case StringShape(), StringShape():
            return _meet_strings(one, other)
        case ArrayShape(), ArrayShape():
            return meet_arrays(one, other)
        case ObjectShape(), ObjectShape():
            return _meet_objects(one, other)
        case BooleanShape(a), BooleanShape(b):
            if a is not None and b is not None and a != b:
                raise Conflict
            return BooleanShape(b if a is None else a)
    return one


def _meet_numbers(one: NumberShape, other: NumberShape) -> NumberShape:
    if one.whole is not None and other.whole is not None and one.whole != other.whole:
        raise Conflict
    low = max((bound for bound in (one.low, other.low) if bound), default=None)
    highs = [bound for bound in (one.high, other.high) if bound]
    high = min(highs, key=lambda bound: (bound[0], not bound[1]), default=None)
    if low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))):
        raise Conflict
    multiples, no_multiples = one.multiples | other.multiples, one.no_multiples | other.no_multiples
    if multiples & no_multiples:
        raise Conflict
    return NumberShape(
        low=low,
        high=high,
        whole=other.whole if one.whole is None else one.whole,
        multiples=multiples,
        no_multiples=no_multiples,
        values=_common(one.values, other.values),
        excluded=one.excluded | other.excluded,
    )


def _meet_strings(one: StringShape, other: StringShape) -> StringShape:
    low, high = _range((one.low, one.high), (other.low, other.high))
    patterns, no_patterns = one.patterns | other.patterns, one.no_patterns | other.no_patterns
    if patterns & no_patterns:
        raise Conflict
    values = _common(one.values, other.values)
    return StringShape(low, high, patterns, no_patterns, values, one.excluded | other.excluded)


def meet_arrays(one: ArrayShape, other: ArrayShape) -> ArrayShape:
    """The arrays of both shapes.

    Raises:
        Conflict: There are none, as the numbers of items show.
    """
    if one.unique is not None and other.unique is not None and one.unique != other.unique:
        raise Conflict
    low, high = _range((one.low, one.high), (other.low, other.high))
    first = tuple(
        (one.rest if a is None else a) | (other.rest if b is None else b)
        for a, b in zip_longest(one.first, other.first)
    )
    return ArrayShape(
        first=first,
        rest=one.rest | other.rest,
        low=low,
        high=high,
        counts=_joined_counts(one.counts | other.counts),
        unique=other.unique if one.unique is None else one.unique,
        seen=SeenItems(
            max(one.seen.first, other.seen.first),
            one.seen.every or other.seen.every,
            one.seen.matching | other.seen.matching,
        ),
    )


def _joined_counts(counts: Iterable[Count]) -> frozenset[Count]:
    """The same demands, with one count of what is counted alike."""
    joined: dict[tuple[int, Goal], Count] = {}
    for count in counts:
        key = count.start, count.goal
        known = joined.get(key, count)
        low, high = _range((known.low, known.high), (count.low, count.high))
        joined[key] = replace(count, low=low, high=high)
    return frozenset(joined.values())


def _meet_objects(one: ObjectShape, other: ObjectShape) -> ObjectShape:
    named = dict(one.named)
    for name, goal in other.named:
        named[name] = named.get(name, ANYTHING) | goal
    low, high = _range((one.low, one.high), (other.low, other.high))
    return ObjectShape(
        named=tuple(named.items()),
        required=one.required | other.required,
        covers=one.covers | other.covers,
        some=one.some | other.some,
        low=low,
        high=high,
        seen=SeenKeys(
            one.seen.names | other.seen.names,
            one.seen.patterns | other.seen.patterns,
            one.seen.every or other.seen.every,
        ),
    )


def _range(one: tuple[int, int | None], other: tuple[int, int | None]) -> tuple[int, int | None]:
    low = max(one[0], other[0])
    high = min((bound for bound in (one[1], other[1]) if bound is not None), default=None)
    if high is not None and low > high:
        raise Conflict
    return low, high


def _common(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    if not one & other:
        raise Conflict
    return one & other


class TooManyAlternatives(Exception):
    """A schema comes apart into more alternatives than may be looked at."""


@dataclass(slots=True)
class Merger:
    """Unions and intersections of unions of shapes, at a bounded price.

    Attributes:
        merges: Intersections of two shapes made so far.
    """

    merges: int = 0

    def either(self, unions: Iterable[tuple[Shape, ...]]) -> tuple[Shape, ...]:
        """Their union, each shape once; a type without constraints stands for all shapes of its type.

        Raises:
            TooManyAlternatives: It is too large.
        """
        shapes = dict.fromkeys(shape for union in unions for shape in union)
        free = {type(shape) for shape in shapes if shape in ALL_SHAPES}
        kept = tuple(shape for shape in shapes if type(shape) not in free or shape in ALL_SHAPES or _has_seen(shape))
        if len(kept) > limits.MAX_ALTERNATIVES:
            raise TooManyAlternatives
        return kept

    def both(self, one: tuple[Shape, ...], other: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Their intersection.

        Raises:
            TooManyAlternatives: It is too large, or so many have been made that it must stop.
        """
        if one is ALL_SHAPES or other is ALL_SHAPES:
            return other if one is ALL_SHAPES else one
        met = []
        for a in one:
            for b in other:
                if type(a) is type(b):
                    self.merges += 1
                    if self.merges > limits.MAX_MERGES:
                        raise TooManyAlternatives
                    try:
                        met.append(meet(a, b))
                    except Conflict:
                        continue
        return self.either([tuple(met)])


def _has_seen(shape: Shape) -> bool:
    """Whether it differs from a free one in what has been evaluated."""
    return isinstance(shape, ArrayShape | ObjectShape) and shape.seen not in (SeenItems(), SeenKeys())
