"""``const`` and ``enum``: values as shapes, and all other values as shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.text.schema.assertions import number_of
from headrace.text.schema.meeting import Merger
from headrace.text.schema.shapes import (
    ALL_SHAPES,
    ANYTHING,
    ArrayShape,
    BooleanShape,
    Goal,
    Keys,
    NullShape,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)

ValueGoal = Callable[[Any, bool], Goal]
"""The goal that a value is equal to another (True), or is not."""


def one_of(values: Sequence[Any], goal: ValueGoal, nothing: Goal) -> tuple[Shape, ...]:
    """The shapes of these values."""
    shapes: list[Shape] = []
    numbers = frozenset(number_of(value) for value in values if _is_number(value))
    strings = frozenset(value for value in values if isinstance(value, str))
    shapes += [StringShape(values=strings)] if strings else []
    shapes += [NumberShape(values=numbers)] if numbers else []
    shapes += [BooleanShape(flag) for flag in (True, False) if any(value is flag for value in values)]
    shapes += [NullShape()] if None in values else []
    shapes += [_object(value, goal, nothing) for value in values if isinstance(value, dict)]
    shapes += [_array(value, goal) for value in values if isinstance(value, list)]
    return tuple(dict.fromkeys(shapes))


def none_of(values: Sequence[Any], goal: ValueGoal, nothing: Goal, merger: Merger) -> tuple[Shape, ...]:
    """The shapes of all values but these."""
    numbers = frozenset(number_of(value) for value in values if _is_number(value))
    strings = frozenset(value for value in values if isinstance(value, str))
    others: list[Shape] = [StringShape(excluded=strings), NumberShape(excluded=numbers)]
    others += [BooleanShape(flag) for flag in (True, False) if not any(value is flag for value in values)]
    others += [] if None in values else [NullShape()]
    arrays: tuple[Shape, ...] = (ArrayShape(),)
    objects: tuple[Shape, ...] = (ObjectShape(),)
    for value in values:
        if isinstance(value, list):
            arrays = merger.both(arrays, _no_array(value, goal))
        elif isinstance(value, dict):
            objects = merger.both(objects, _no_object(value, goal, nothing))
    return merger.either([(*others, *arrays, *objects)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _array(value: list[Any], goal: ValueGoal) -> ArrayShape:
    return ArrayShape(first=tuple(goal(item, True) for item in value), low=len(value), high=len(value))


def _no_array(value: list[Any], goal: ValueGoal) -> tuple[Shape, ...]:
    size = len(value)
    shapes = [ArrayShape(low=size + 1), *([ArrayShape(high=size - 1)] if size else [])]
    shapes += [
        ArrayShape(first=(*[ANYTHING] * i, goal(item, False)), low=size, high=size) for i, item in enumerate(value)
    ]
    return tuple(shapes)


def _object(value: dict[str, Any], goal: ValueGoal, nothing: Goal) -> ObjectShape:
    named = tuple((name, goal(inner, True)) for name, inner in value.items())
    others = Keys(no_names=frozenset(value))
    return ObjectShape(named=named, required=frozenset(value), covers=frozenset([(others, nothing)]))


def _no_object(value: dict[str, Any], goal: ValueGoal, nothing: Goal) -> tuple[Shape, ...]:
    shapes = [ObjectShape(some=frozenset([(Keys(no_names=frozenset(value)), ANYTHING)]))]
    shapes += [ObjectShape(named=((name, nothing),)) for name in value]
    shapes += [
        ObjectShape(named=((name, goal(inner, False)),), required=frozenset([name])) for name, inner in value.items()
    ]
    return tuple(shapes)


_TYPES: dict[str, Shape] = {
    "object": ObjectShape(),
    "array": ArrayShape(),
    "string": StringShape(),
    "number": NumberShape(),
    "boolean": BooleanShape(),
    "null": NullShape(),
}


def of_types(names: Sequence[str], *, holds: bool) -> tuple[Shape, ...]:
    """The shapes of the values of these types, or of all others."""
    if "number" in names or "integer" not in names:
        return tuple(shape for name, shape in _TYPES.items() if (name in names) == holds)
    rest = tuple(shape for name, shape in _TYPES.items() if name != "number" and (name in names) == holds)
    return (*rest, NumberShape(whole=holds))


assert set(_TYPES.values()) == set(ALL_SHAPES)
