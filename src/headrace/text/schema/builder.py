"""From goals to rules: one rule for each goal, made when it is first asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from headrace.text.schema import limits, notation
from headrace.text.schema.alternatives import Alternatives
from headrace.text.schema.numbers import ANY_NUMBER, NumberError, NumberLanguages, has_value, texts_of, values_of
from headrace.text.schema.refusal import Refused
from headrace.text.schema.regex import Language, TooLarge
from headrace.text.schema.rules import Call, Part, Rules, Terminal
from headrace.text.schema.shapes import (
    ANYTHING,
    ArrayShape,
    BooleanShape,
    Goal,
    Keys,
    NumberShape,
    ObjectShape,
    Shape,
    StringShape,
)
from headrace.text.schema.spacing import Spacing
from headrace.text.schema.strings import StringLanguages

LONGEST = 2_000_000_000  # no text is longer; a bound beyond it is none


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that is no array or object.

    Attributes:
        value: It; numbers as ``Decimal``, so that True and 1 differ by type.
        body: Its texts, as a Lark terminal.
    """

    value: Decimal | str | bool | None
    body: str


class Builder:
    """What the makers of arrays and objects share.

    Attributes:
        alternatives: What goals come apart into.
        strings: Languages of strings and keys.
        rules: The rules made so far.
        spacing: How JSON is laid out.
    """

    def __init__(self, alternatives: Alternatives, strings: StringLanguages, rules: Rules, spacing: Spacing) -> None:
        self.alternatives = alternatives
        self.strings = strings
        self.rules = rules
        self.spacing = spacing
        self._numbers = NumberLanguages(strings.all)
        self._names: dict[Goal, str] = {}
        self._todo: deque[Goal] = deque()

    def goal(self, goal: Goal) -> Call:
        """The rule of the values that reach a goal."""
        if goal not in self._names:
            self._names[goal] = self.rules.new_name()
            self._todo.append(goal)
        return Call(self._names[goal])

    def pending(self) -> Iterable[tuple[Goal, str]]:
        """The goals whose rules have not been made, with the names of the rules; grows while they are."""
        while self._todo:
            goal = self._todo.popleft()
            yield goal, self._names[goal]

    def refused(self, goal: Goal, keyword: str, message: str) -> Refused:
        """An error about a keyword of the schemas of a goal, or of one below them."""
        return Refused(self.alternatives.place(goal, keyword), message)

    def scalars(self, goal: Goal, shapes: Iterable[Shape]) -> list[Part]:
        """What of these shapes is no array or object: one terminal if there is any."""
        bodies = [body for shape in shapes for body in self._bodies(goal, shape)]
        return [Terminal(bodies[0] if len(bodies) == 1 else "(" + " | ".join(bodies) + ")")] if bodies else []

    def is_empty(self, goal: Goal, language: Language, keyword: str = "pattern") -> bool:
        """Whether a language has no text; ``keyword`` is to blame where that cannot be told."""
        try:
            return self.strings.all.is_empty(language)
        except TooLarge:
            raise self.refused(
                goal, keyword, "is too complex together with what stands beside it; use a simpler one"
            ) from None

    def string_body(self, language: Language) -> str:
        """The JSON strings of a language, as a Lark terminal."""
        return '("\\"" ' + notation.as_string(self.strings.all, language) + ' "\\"")'

    def key_goal(self, keys: Keys) -> Language:
        """The texts of the keys of a kind.

        Raises:
            Refused: They cannot be enforced.
        """
        every = self.strings.all
        parts = [self.strings.pattern(keys.pattern)] if keys.pattern is not None else []
        parts += [every.complement(self.strings.pattern(pattern)) for pattern in sorted(keys.no_patterns)]
        if keys.goal != ANYTHING:
            shapes = self.alternatives.of(keys.goal)
            parts.append(every.union([self.strings.of(shape) for shape in shapes if isinstance(shape, StringShape)]))
        return every.intersection(parts)

    def has_key(self, keys: Keys, name: str) -> bool:
        """Whether a key is of a kind."""
        if not self.strings.names_fit(keys, name):
            return False
        shapes = self.alternatives.of(keys.goal) if keys.goal != ANYTHING else (StringShape(),)
        return any(isinstance(shape, StringShape) and self.strings.has(shape, name) for shape in shapes)

    def listed(self, goal: Goal) -> list[Scalar] | None:
        """The values that reach a goal, if they are no arrays or objects and not too many."""
        found: dict[tuple[str, object], Scalar] = {}
        for shape in self.alternatives.of(goal):
            scalars = self._listed_shape(shape)
            if scalars is None:
                return None
            found.update({(type(scalar.value).__name__, scalar.value): scalar for scalar in scalars})
        return list(found.values()) if len(found) <= limits.MAX_UNIQUE_VALUES else None

    def _listed_shape(self, shape: Shape) -> list[Scalar] | None:
        match shape:
            case ArrayShape() | ObjectShape():
                return None
            case StringShape():
                if shape.values is None:
                    return None
                return [
                    Scalar(value, notation.literal(notation.json_string(value))) for value in self.strings.values(shape)
                ]
            case NumberShape():
                if shape.values is None:
                    return None
                return [Scalar(value, _options(texts_of(value))) for value in values_of(shape)]
            case BooleanShape(value):
                flags = (True, False) if value is None else (value,)
                return [Scalar(flag, f'"{str(flag).lower()}"') for flag in flags]
        return [Scalar(None, '"null"')]

    def _bodies(self, goal: Goal, shape: Shape) -> list[str]:
        match shape:
            case ArrayShape() | ObjectShape():
                return []
            case StringShape(values=None):
                return self._free_string(goal, shape)
            case NumberShape(values=None):
                return self._free_number(goal, shape)
        return [scalar.body for scalar in self._listed_shape(shape) or ()]

    def _free_string(self, goal: Goal, shape: StringShape) -> list[str]:
        high = None if shape.high is None or shape.high > LONGEST else shape.high
        if not (shape.patterns or shape.no_patterns or shape.excluded):
            return [f'("\\"" {_repeated(f"/{notation.ANY_CHARACTER}/", shape.low, high)} "\\"")']
        if shape.low > LONGEST:
            raise self.refused(
                goal, "minLength", "is too large to be enforced together with a pattern; use a lower one"
            )
        language = self.strings.of(
            StringShape(shape.low, high, shape.patterns, shape.no_patterns, None, shape.excluded)
        )
        return [] if self.is_empty(goal, language) else [self.string_body(language)]

    def _free_number(self, goal: Goal, shape: NumberShape) -> list[str]:
        if shape == NumberShape():
            return [f"/{ANY_NUMBER}/"]
        try:
            language = self._numbers.of(shape)
        except NumberError as error:
            raise self.refused(goal, error.keyword, str(error)) from None
        found = has_value(shape)
        if found is None:
            found = not self.is_empty(goal, language, "multipleOf")
        return [notation.as_text(self.strings.all, language)] if found else []


def _repeated(body: str, low: int, high: int | None) -> str:
    """A Lark terminal repeated; a count that Lark cannot read is made of two."""
    if high == 0:
        return '""'
    if low > LONGEST:
        millions, rest = divmod(low, 1_000_000)
        return f"(({body}{{1000000}}){{{millions}}} {body}{{{rest},}})"
    if (low, high) == (0, None):
        return f"{body}*"
    return f"{body}{{{low},{'' if high is None else high}}}"


def _options(texts: list[str]) -> str:
    return notation.literal(texts[0]) if len(texts) == 1 else "(" + " | ".join(map(notation.literal, texts)) + ")"
