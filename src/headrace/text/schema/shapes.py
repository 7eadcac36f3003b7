"""Shapes: sets of JSON values of one type, given by constraints that all hold.

A schema is a union of shapes (``alternatives.py``). What a shape says of the values inside an array or object it says
by goals: sets of schemas, each asserted or denied, that all have to hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """That a schema holds, or does not.

    Attributes:
        schema: Its number in the document.
        scope: The resources on the way to it, the outermost first; empty where no ``$dynamicRef`` can ask.
        holds: Whether it does.
    """

    schema: int
    scope: tuple[str, ...] = ()
    holds: bool = True


Goal = frozenset[Claim]
"""Claims about one value that all have to hold; none: any value will do."""

ANYTHING: Goal = frozenset()


@dataclass(frozen=True, slots=True)
class NullShape:
    """``null``."""


@dataclass(frozen=True, slots=True)
class BooleanShape:
    """``true`` or ``false``; None: either."""

    value: bool | None = None


@dataclass(frozen=True, slots=True)
class NumberShape:
    """Numbers.

    Attributes:
        low: The least, and whether it is itself excluded; None: no bound.
        high: The same of the greatest.
        whole: Whether they are integers; None: either.
        multiples: What they are multiples of.
        no_multiples: What they are no multiples of.
        values: The only ones; None: any.
        excluded: Not these.
    """

    low: tuple[Decimal, bool] | None = None
    high: tuple[Decimal, bool] | None = None
    whole: bool | None = None
    multiples: frozenset[Decimal] = frozenset()
    no_multiples: frozenset[Decimal] = frozenset()
    values: frozenset[Decimal] | None = None
    excluded: frozenset[Decimal] = frozenset()


@dataclass(frozen=True, slots=True)
class StringShape:
    """Strings; lengths in characters.

    Attributes:
        low: The least length.
        high: The greatest; None: no bound.
        patterns: Regular expressions that match somewhere.
        no_patterns: Regular expressions that match nowhere.
        values: The only ones; None: any.
        excluded: Not these.
    """

    low: int = 0
    high: int | None = None
    patterns: frozenset[str] = frozenset()
    no_patterns: frozenset[str] = frozenset()
    values: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Count:
    """How many items from a place on reach a goal.

    Attributes:
        start: The first place that counts.
        goal: What is counted.
        low: The least number.
        high: The greatest; None: no bound.
    """

    start: int
    goal: Goal
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The items that subschemas have evaluated, for ``unevaluatedItems``.

    Attributes:
        first: So many at the beginning.
        every: All of them.
        matching: Those that reach one of these goals.
    """

    first: int = 0
    every: bool = False
    matching: frozenset[Goal] = frozenset()


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Arrays.

    Attributes:
        first: Goals of the first items, in so far as they are there.
        rest: The goal of every item after them.
        low: The least number of items.
        high: The greatest; None: no bound.
        counts: How many items reach certain goals.
        unique: Whether no two items are equal (True) or two are (False); None: either.
        seen: What has been evaluated.
    """

    first: tuple[Goal, ...] = ()
    rest: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    counts: frozenset[Count] = frozenset()
    unique: bool | None = None
    seen: SeenItems = field(default_factory=SeenItems)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of an object that all of this is true of.

    Attributes:
        pattern: They match it; None: no matter.
        no_names: They are none of these.
        no_patterns: They match none of these.
        goal: They reach it, as strings.
    """

    pattern: str | None = None
    no_names: frozenset[str] = frozenset()
    no_patterns: frozenset[str] = frozenset()
    goal: Goal = ANYTHING


def by_keys(demand: tuple[Keys, Goal]) -> tuple[object, ...]:
    """An order of what is demanded of kinds of keys, the same in every process."""
    keys, goal = demand
    return keys.pattern or "", sorted(keys.no_names), sorted(keys.no_patterns), sorted(keys.goal), sorted(goal)


@dataclass(frozen=True, slots=True)
class SeenKeys:
    """The keys that subschemas have evaluated, for ``unevaluatedProperties``."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every: bool = False


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """Objects.

    Attributes:
        named: Goals of the values of certain keys, in so far as they are there; in the order in which they are
            written.
        required: Keys that are there.
        covers: Goals of the values of all keys of a kind.
        some: For each, there is a key of that kind whose value reaches the goal.
        low: The least number of keys.
        high: The greatest; None: no bound.
        seen: What has been evaluated.
    """

    named: tuple[tuple[str, Goal], ...] = ()
    required: frozenset[str] = frozenset()
    covers: frozenset[tuple[Keys, Goal]] = frozenset()
    some: frozenset[tuple[Keys, Goal]] = frozenset()
    low: int = 0
    high: int | None = None
    seen: SeenKeys = field(default_factory=SeenKeys)


Shape = NullShape | BooleanShape | NumberShape | StringShape | ArrayShape | ObjectShape

ALL_SHAPES: tuple[Shape, ...] = (
    ObjectShape(),
    ArrayShape(),
    StringShape(),
    NumberShape(),
    BooleanShape(),
    NullShape(),
)
