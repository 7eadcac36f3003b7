"""One schema, keyword by keyword, as a union of shapes: of the values that pass, or of those that fail.

``unevaluatedItems`` and ``unevaluatedProperties`` depend on which subschemas hold. Under them alternatives are made
disjoint, and each shape notes what has been evaluated ("tracked").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Protocol

from headrace.text.schema.assertions import Context, splits
from headrace.text.schema.constants import none_of, of_types, one_of
from headrace.text.schema.document import Document, Either, Node
from headrace.text.schema.meeting import Merger, meet_arrays
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.shapes import (
    ALL_SHAPES,
    ANYTHING,
    ArrayShape,
    Claim,
    Count,
    Goal,
    Keys,
    ObjectShape,
    SeenItems,
    SeenKeys,
    Shape,
)

Shapes = tuple[Shape, ...]
"""A union of shapes."""

MAX_TRACKED = 5  # members of an `anyOf` that are made disjoint


class Claims(Protocol):
    """What a reader asks about other schemas; ``Alternatives`` is it."""

    document: Document
    merger: Merger
    nothing: Goal

    def of(self, goal: Goal) -> Shapes:
        """The shapes of the values that reach a goal."""

    def of_claim(self, claim: Claim, *, tracked: bool = False) -> Shapes:
        """The shapes of the values for which a claim is true."""

    def goal_of(self, number: int, scope: tuple[str, ...], holds: bool) -> Goal:
        """The goal that a schema holds, or does not."""

    def all_of(self, unions: Sequence[Shapes]) -> Shapes:
        """The intersection of unions of shapes."""


class SchemaReader:
    """Reads the keywords of one schema."""

    def __init__(self, claims: Claims, node: Node, schema: dict[str, Any], claim: Claim, tracked: bool) -> None:
        self._claims = claims
        self._node = node
        self._schema = schema
        self._scope = claim.scope
        self._number = claim.schema
        self._merger = claims.merger
        # What is evaluated matters under an unevaluated... keyword, of this schema or of one around it.
        own = "unevaluatedItems" in schema or "unevaluatedProperties" in schema
        self._tracked = tracked or own
        self._context = Context(schema, node.place, self._inner, claims.nothing)

    def holding(self) -> Shapes:
        """The shapes of the values that pass all keywords."""
        shapes = self._claims.all_of([self._passing(keyword) for keyword in self._schema])
        shapes = tuple(map(self._with_unevaluated, shapes))
        return self._merger.either([shapes])

    def failing(self) -> Shapes:
        """The shapes of the values that fail one."""
        unions = [self._failing(keyword) for keyword in self._schema]
        if "unevaluatedItems" in self._schema or "unevaluatedProperties" in self._schema:
            passing = self._claims.all_of([self._passing(keyword) for keyword in self._schema])
            unions.append(tuple(bad for shape in passing for bad in self._breaking_unevaluated(shape)))
        return self._merger.either(unions)

    def _inner(self, way: Place, holds: bool) -> Goal:
        return self._claims.goal_of(self._claims.document.number((*self._node.place, *way)), self._scope, holds)

    def _value(self, value: Any, holds: bool) -> Goal:
        return frozenset([Claim(self._claims.document.add({"const": value}, self._node.place), (), holds)])

    def _apply(self, way: Place, holds: bool) -> Shapes:
        """The shapes for which a subschema, applied to the same value, holds or does not."""
        return self._reached(self._inner(way, holds), holds)

    def _reached(self, goal: Goal, holds: bool) -> Shapes:
        tracked = self._tracked and holds
        return self._claims.all_of([self._claims.of_claim(claim, tracked=tracked) for claim in sorted(goal)])

    def _passing(self, keyword: str) -> Shapes:
        value, schema = self._schema[keyword], self._schema
        match keyword:
            case "type":
                return of_types([value] if isinstance(value, str) else value, holds=True)
            case "enum" | "const":
                return one_of(value if keyword == "enum" else [value], self._value, self._claims.nothing)
            case "allOf":
                return self._claims.all_of([self._apply((keyword, i), True) for i in range(len(value))])
            case "anyOf" if self._tracked:
                return self._any_of(len(value))
            case "anyOf":
                return self._merger.either([self._apply((keyword, i), True) for i in range(len(value))])
            case "oneOf":
                return self._one_of(len(value))
            case "not":
                return self._apply((keyword,), False)
            case "if" if "then" in schema or "else" in schema or self._tracked:
                then = self._merger.both(self._apply(("if",), True), self._optional("then", True))
                other = self._merger.both(self._apply(("if",), False), self._optional("else", True))
                return self._merger.either([then, other])
            case "dependentSchemas":
                return self._claims.all_of([self._dependent(name, True) for name in value])
            case "$ref" | "$dynamicRef":
                return self._reached(self._target(keyword, True), True)
        parts = [(*_others(split.passing, split.failing), *split.passing) for split in splits(self._context, keyword)]
        return self._claims.all_of(parts)

    def _failing(self, keyword: str) -> Shapes:
        value, schema = self._schema[keyword], self._schema
        match keyword:
            case "type":
                return of_types([value] if isinstance(value, str) else value, holds=False)
            case "enum" | "const":
                values = value if keyword == "enum" else [value]
                return none_of(values, self._value, self._claims.nothing, self._merger)
            case "allOf":
                return self._merger.either([self._apply((keyword, i), False) for i in range(len(value))])
            case "anyOf":
                return self._claims.all_of([self._apply((keyword, i), False) for i in range(len(value))])
            case "oneOf":
                return self._not_one_of(len(value))
            case "not":
                return self._apply((keyword,), True)
            case "if" if "then" in schema or "else" in schema:
                then = self._merger.both(self._apply(("if",), True), self._optional("then", False))
                other = self._merger.both(self._apply(("if",), False), self._optional("else", False))
                return self._merger.either([then, other])
            case "dependentSchemas":
                return self._merger.either([self._dependent(name, False) for name in value])
            case "$ref" | "$dynamicRef":
                return self._reached(self._target(keyword, False), False)
        return self._merger.either([split.failing for split in splits(self._context, keyword)])

    def _optional(self, keyword: str, holds: bool) -> Shapes:
        if keyword in self._schema:
            return self._apply((keyword,), holds)
        return ALL_SHAPES if holds else ()

    def _any_of(self, count: int) -> Shapes:
        """At least one, parted by which: so that it is known what has been evaluated."""
        if count > MAX_TRACKED:
            message = f"has more than {MAX_TRACKED} members under an unevaluated... keyword; use additionalProperties"
            raise Refused((*self._node.place, "anyOf"), message)
        none: Shapes = ALL_SHAPES
        some: Shapes = ()
        for i in range(count):
            holds, fails = self._apply(("anyOf", i), True), self._apply(("anyOf", i), False)
            grown = [self._merger.both(some, holds), self._merger.both(some, fails), self._merger.both(none, holds)]
            some = self._merger.either(grown)
            none = self._merger.both(none, fails)
        return some

    def _one_of(self, count: int) -> Shapes:
        """Exactly one; what cannot hold beside it need not be denied."""
        unions = []
        for i in range(count):
            shapes = self._apply(("oneOf", i), True)
            for j in range(count):
                if j != i and self._overlap(i, j):
                    shapes = self._merger.both(shapes, self._apply(("oneOf", j), False))
            unions.append(shapes)
        return self._merger.either(unions)

    def _overlap(self, i: int, j: int) -> bool:
        return bool(self._claims.of(self._inner(("oneOf", i), True) | self._inner(("oneOf", j), True)))

    def _not_one_of(self, count: int) -> Shapes:
        """None, or two."""
        unions = [self._claims.all_of([self._apply(("oneOf", i), False) for i in range(count)])]
        for i, j in combinations(range(count), 2):
            unions.append(self._merger.both(self._apply(("oneOf", i), True), self._apply(("oneOf", j), True)))
        return self._merger.either(unions)

    def _dependent(self, name: str, holds: bool) -> Shapes:
        present = self._merger.both(
            (ObjectShape(required=frozenset([name])),), self._apply(("dependentSchemas", name), holds)
        )
        if not holds:
            return present
        absent = ObjectShape(named=((name, self._claims.nothing),))
        return self._merger.either([_others((absent,), ()), (absent,), present])

    def _target(self, keyword: str, holds: bool) -> Goal:
        document = self._claims.document
        if keyword == "$ref":
            return self._claims.goal_of(document.resolve(self._number, keyword), self._scope, holds)
        return self._claims.goal_of(document.dynamic_target(self._number, self._scope), self._scope, holds)

    def _with_unevaluated(self, shape: Shape) -> Shape:
        """The shape with what the unevaluated... keywords demand of the rest."""
        if isinstance(shape, ObjectShape) and "unevaluatedProperties" in self._schema:
            cover = _unseen_keys(shape), self._inner(("unevaluatedProperties",), True)
            covers = shape.covers if shape.seen.every else shape.covers | {cover}
            return replace(shape, covers=covers, seen=SeenKeys(every=True))
        if isinstance(shape, ArrayShape) and "unevaluatedItems" in self._schema:
            if not shape.seen.every:
                rest = ArrayShape(first=(ANYTHING,) * shape.seen.first, rest=self._unseen_goal(shape, True))
                shape = meet_arrays(shape, rest)
            return replace(shape, seen=SeenItems(every=True))
        return shape

    def _breaking_unevaluated(self, shape: Shape) -> Iterator[Shape]:
        """What of a shape has something unevaluated that does not pass."""
        if isinstance(shape, ObjectShape) and "unevaluatedProperties" in self._schema and not shape.seen.every:
            bad = _unseen_keys(shape), self._inner(("unevaluatedProperties",), False)
            yield replace(shape, some=shape.some | {bad}, seen=SeenKeys())
        if isinstance(shape, ArrayShape) and "unevaluatedItems" in self._schema and not shape.seen.every:
            count = Count(shape.seen.first, self._unseen_goal(shape, False), 1, None)
            yield replace(shape, counts=shape.counts | {count}, seen=SeenItems())

    def _unseen_goal(self, shape: ArrayShape, holds: bool) -> Goal:
        """What an item must be that is not among the first: one that `contains` has seen, or one that may be unseen."""
        passing = self._inner(("unevaluatedItems",), True)
        if not shape.seen.matching:
            return self._inner(("unevaluatedItems",), holds)
        goals = (*sorted(shape.seen.matching, key=sorted), passing)
        return self._claims.goal_of(self._claims.document.add(Either(goals), self._node.place), self._scope, holds)


def _unseen_keys(shape: ObjectShape) -> Keys:
    return Keys(no_names=shape.seen.names, no_patterns=shape.seen.patterns)


def _others(passing: Shapes, failing: Shapes) -> Shapes:
    """All shapes of the types that a keyword does not look at."""
    kind = type((*passing, *failing)[0])
    return tuple(shape for shape in ALL_SHAPES if type(shape) is not kind)


def without_notes(shape: Shape) -> Shape:
    """The shape without a note of what has been evaluated."""
    if isinstance(shape, ArrayShape):
        return replace(shape, seen=SeenItems())
    return replace(shape, seen=SeenKeys()) if isinstance(shape, ObjectShape) else shape
