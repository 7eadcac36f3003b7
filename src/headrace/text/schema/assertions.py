"""What each keyword that looks at one type of value says: of what shape a value is that passes, and one that fails.

Values of other types pass. So the values that a keyword admits are the passing shapes and all of the other types; those
that it does not are the failing shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace.text.schema import limits
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.shapes import (
    ANYTHING,
    ArrayShape,
    Count,
    Goal,
    Keys,
    NumberShape,
    ObjectShape,
    SeenItems,
    SeenKeys,
    Shape,
    StringShape,
)


@dataclass(frozen=True, slots=True)
class Split:
    """The values of one type, parted by a keyword."""

    passing: tuple[Shape, ...]
    failing: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """A schema whose keywords are read.

    Attributes:
        schema: It.
        place: Where it stands.
        goal: Of a subschema, by its way from here: that it holds (True) or does not.
        nothing: The goal that no value reaches.
    """

    schema: dict[str, Any]
    place: Place
    goal: Callable[[Place, bool], Goal]
    nothing: Goal


def number_of(value: float) -> Decimal:
    """A number of a schema, exactly as it was written."""
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def splits(context: Context, keyword: str) -> Iterator[Split]:
    """What a keyword says, in parts that all have to pass; none if it says nothing about values of one type."""
    reader = _READERS.get(keyword)
    if reader is not None:
        yield from reader(context, context.schema[keyword])


def _count(context: Context, keyword: str, default: int | None = None) -> int | None:
    value = context.schema.get(keyword, default)
    if value is not None and value > limits.MAX_COUNT:
        raise Refused((*context.place, keyword), f"is larger than {limits.MAX_COUNT}; leave it out")
    return None if value is None else int(value)


def _multiple_of(context: Context, value: float) -> Iterator[Split]:
    factor = frozenset([number_of(value)])
    yield Split((NumberShape(multiples=factor),), (NumberShape(no_multiples=factor),))


def _bound(*, upper: bool, exclusive: bool) -> Callable[[Context, float], Iterator[Split]]:
    def read(context: Context, value: float) -> Iterator[Split]:
        inside, outside = (number_of(value), exclusive), (number_of(value), not exclusive)
        below, above = NumberShape(high=inside), NumberShape(low=outside)
        if not upper:
            below, above = NumberShape(low=inside), NumberShape(high=outside)
        yield Split((below,), (above,))

    return read


def _size(
    keyword: str, shape: type[StringShape] | type[ArrayShape] | type[ObjectShape], *, upper: bool
) -> Callable[[Context, Any], Iterator[Split]]:
    def read(context: Context, _: Any) -> Iterator[Split]:
        count = _count(context, keyword) or 0
        if upper:
            yield Split((shape(high=count),), (shape(low=count + 1),))
        elif count:
            yield Split((shape(low=count),), (shape(high=count - 1),))

    return read


def _pattern(context: Context, value: str) -> Iterator[Split]:
    pattern = frozenset([value])
    yield Split((StringShape(patterns=pattern),), (StringShape(no_patterns=pattern),))


def _prefix_items(context: Context, value: list[Any]) -> Iterator[Split]:
    goals = tuple(context.goal(("prefixItems", i), True) for i in range(len(value)))
    failing = [
        ArrayShape(first=(*[ANYTHING] * i, context.goal(("prefixItems", i), False)), low=i + 1)
        for i in range(len(value))
    ]
    yield Split((ArrayShape(first=goals, seen=SeenItems(first=len(goals))),), tuple(failing))


def _items(context: Context, _: Any) -> Iterator[Split]:
    begin = len(context.schema.get("prefixItems", ()))
    passing = ArrayShape(first=(ANYTHING,) * begin, rest=context.goal(("items",), True), seen=SeenItems(every=True))
    denied = context.goal(("items",), False)
    failing = ArrayShape(counts=frozenset([Count(begin, denied, 1, None)]))
    yield Split((passing,), () if denied == context.nothing else (failing,))


def _contains(context: Context, _: Any) -> Iterator[Split]:
    goal = context.goal(("contains",), True)
    low, high = _count(context, "minContains", 1) or 0, _count(context, "maxContains")
    failing = []
    if low:
        failing.append(ArrayShape(counts=frozenset([Count(0, goal, 0, low - 1)])))
    if high is not None:
        failing.append(ArrayShape(counts=frozenset([Count(0, goal, high + 1, None)])))
    seen = SeenItems(matching=frozenset([goal]))
    if high is not None and low > high:
        yield Split((), (ArrayShape(),))
    elif low or high is not None:
        yield Split((ArrayShape(counts=frozenset([Count(0, goal, low, high)]), seen=seen),), tuple(failing))
    else:
        yield Split((ArrayShape(seen=seen),), ())


def _unique_items(context: Context, value: bool) -> Iterator[Split]:
    if value:
        yield Split((ArrayShape(unique=True),), (ArrayShape(unique=False),))


def _properties(context: Context, value: dict[str, Any]) -> Iterator[Split]:
    named = tuple((name, context.goal(("properties", name), True)) for name in value)
    denied = [(name, context.goal(("properties", name), False)) for name in value]
    failing = [
        ObjectShape(named=((name, goal),), required=frozenset([name]))
        for name, goal in denied
        if goal != context.nothing
    ]
    yield Split((ObjectShape(named=named, seen=SeenKeys(names=frozenset(value))),), tuple(failing))


def _pattern_properties(context: Context, value: dict[str, Any]) -> Iterator[Split]:
    covers = [(Keys(pattern=pattern), context.goal(("patternProperties", pattern), True)) for pattern in value]
    denied = [(Keys(pattern=pattern), context.goal(("patternProperties", pattern), False)) for pattern in value]
    failing = [ObjectShape(some=frozenset([some])) for some in denied if some[1] != context.nothing]
    passing = ObjectShape(covers=frozenset(covers), seen=SeenKeys(patterns=frozenset(value)))
    yield Split((passing,), tuple(failing))


def _additional_properties(context: Context, _: Any) -> Iterator[Split]:
    keys = Keys(
        no_names=frozenset(context.schema.get("properties", ())),
        no_patterns=frozenset(context.schema.get("patternProperties", ())),
    )
    passing = frozenset([(keys, context.goal(("additionalProperties",), True))])
    denied = context.goal(("additionalProperties",), False)
    failing = () if denied == context.nothing else (ObjectShape(some=frozenset([(keys, denied)])),)
    yield Split((ObjectShape(covers=passing, seen=SeenKeys(every=True)),), failing)


def _property_names(context: Context, _: Any) -> Iterator[Split]:
    others = Keys(goal=context.goal(("propertyNames",), False))
    yield Split(
        (ObjectShape(covers=frozenset([(others, context.nothing)])),),
        (ObjectShape(some=frozenset([(others, ANYTHING)])),),
    )


def _required(context: Context, value: list[str]) -> Iterator[Split]:
    failing = tuple(_without(context, name) for name in value)
    yield Split((ObjectShape(required=frozenset(value)),), failing)


def _dependent_required(context: Context, value: dict[str, list[str]]) -> Iterator[Split]:
    for name, needed in value.items():
        passing = (_without(context, name), ObjectShape(required=frozenset([name, *needed])))
        failing = tuple(
            ObjectShape(named=((other, context.nothing),), required=frozenset([name]))
            for other in needed
            if other != name
        )
        yield Split(passing, failing)


def _without(context: Context, name: str) -> ObjectShape:
    return ObjectShape(named=((name, context.nothing),))


_READERS: dict[str, Callable[[Context, Any], Iterator[Split]]] = {
    "multipleOf": _multiple_of,
    "maximum": _bound(upper=True, exclusive=False),
    "exclusiveMaximum": _bound(upper=True, exclusive=True),
    "minimum": _bound(upper=False, exclusive=False),
    "exclusiveMinimum": _bound(upper=False, exclusive=True),
    "maxLength": _size("maxLength", StringShape, upper=True),
    "minLength": _size("minLength", StringShape, upper=False),
    "pattern": _pattern,
    "prefixItems": _prefix_items,
    "items": _items,
    "contains": _contains,
    "maxItems": _size("maxItems", ArrayShape, upper=True),
    "minItems": _size("minItems", ArrayShape, upper=False),
    "uniqueItems": _unique_items,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "required": _required,
    "dependentRequired": _dependent_required,
    "maxProperties": _size("maxProperties", ObjectShape, upper=True),
    "minProperties": _size("minProperties", ObjectShape, upper=False),
}
