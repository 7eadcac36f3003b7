"""Regular languages of characters, with intersection and complement, and whether they are empty.

A language is a node; equal nodes are one object, so that the derivatives by which emptiness and membership are
decided (Brzozowski 1964) meet again. Nodes belong to the ``Languages`` that made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.text.schema import characters
from headrace.text.schema.characters import Characters


class Kind(Enum):
    """What a node is made by."""

    CHARACTERS = "characters"
    SEQUENCE = "sequence"
    UNION = "union"
    INTERSECTION = "intersection"
    COMPLEMENT = "complement"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """A regular language.

    Attributes:
        kind: What it is made by.
        parts: What of. None for characters.
        characters: The set, of one character.
        low: Repetitions at least.
        high: At most; None: any number.
        nullable: Whether the empty text belongs to it.
        number: Its place among those made.
        size: Nodes below and with it, those in several places counted as often.
    """

    kind: Kind
    parts: tuple[Language, ...]
    characters: Characters
    low: int
    high: int | None
    nullable: bool
    number: int
    size: int


class TooLarge(Exception):
    """A language has more states than may be looked at."""


@dataclass(slots=True)
class Languages:
    """Makes languages and answers questions about them.

    Args:
        states: How many states of a language may be looked at for one question.
        budget: How many derivatives may be taken in all.
    """

    states: int = 2000
    budget: int = 200_000
    _made: dict[tuple[object, ...], Language] = field(default_factory=dict)
    _derived: dict[tuple[int, int], Language] = field(default_factory=dict)

    @property
    def empty_text(self) -> Language:
        """The language of the empty text alone."""
        return self._node(Kind.SEQUENCE)

    @property
    def nothing(self) -> Language:
        """The language of no text."""
        return self._node(Kind.UNION)

    @property
    def anything(self) -> Language:
        """The language of all texts."""
        return self.repeat(self.characters(characters.ANY), 0, None)

    def characters(self, members: Characters) -> Language:
        """One character of a set."""
        return self._node(Kind.CHARACTERS, members=members) if members else self.nothing

    def text(self, text: str) -> Language:
        """One text."""
        return self.sequence([self.characters(characters.of(character)) for character in text])

    def sequence(self, parts: Iterable[Language]) -> Language:
        """One after the other."""
        flat: list[Language] = []
        for part in parts:
            if part is self.nothing:
                return part
            flat += part.parts if part.kind is Kind.SEQUENCE else [part]
        return flat[0] if len(flat) == 1 else self._node(Kind.SEQUENCE, flat)

    def union(self, parts: Iterable[Language]) -> Language:
        """Any of them."""
        flat = self._flat(Kind.UNION, parts)
        if self.anything in flat:
            return self.anything
        singles = [part.characters for part in flat if part.kind is Kind.CHARACTERS]
        if len(singles) > 1:
            rest = [part for part in flat if part.kind is not Kind.CHARACTERS]
            flat = self._flat(Kind.UNION, [*rest, self.characters(characters.union(*singles))])
        return flat[0] if len(flat) == 1 else self._node(Kind.UNION, flat)

    def intersection(self, parts: Iterable[Language]) -> Language:
        """All of them."""
        flat = [part for part in self._flat(Kind.INTERSECTION, parts) if part is not self.anything]
        if self.nothing in flat or any(self.complement(part) in flat for part in flat):
            return self.nothing
        if not flat:
            return self.anything
        return flat[0] if len(flat) == 1 else self._node(Kind.INTERSECTION, flat)

    def complement(self, part: Language) -> Language:
        """All texts but these."""
        if part.kind is Kind.COMPLEMENT:
            return part.parts[0]
        if part is self.nothing:
            return self.anything
        if part is self.anything:
            return self.nothing
        return self._node(Kind.COMPLEMENT, [part])

    def repeat(self, part: Language, low: int, high: int | None) -> Language:
        """Between ``low`` and ``high`` times one after the other."""
        if high == 0 or part is self.empty_text:
            return self.empty_text
        if part is self.nothing:
            return self.empty_text if low == 0 else part
        if (low, high) == (1, 1) or (part.kind is Kind.REPEAT and (part.low, part.high) == (0, None)):
            return part
        return self._node(Kind.REPEAT, [part], low=low, high=high)

    def is_empty(self, language: Language) -> bool:
        """Whether no text belongs to it.

        Raises:
            TooLarge: It has too many states to tell.
        """
        letters = self._letters(language)
        seen, todo = {language.number}, [language]
        for state in todo:
            if state.nullable or state is self.anything:
                return False
            for letter in letters:
                after = self._derivative(state, letter)
                if after is not self.nothing and after.number not in seen:
                    seen.add(after.number)
                    todo.append(after)
            if len(todo) > self.states:
                raise TooLarge
        return True

    def has(self, language: Language, text: str) -> bool:
        """Whether a text belongs to it.

        Raises:
            TooLarge: So many questions were asked that it must stop.
        """
        for character in text:
            language = self._derivative(language, ord(character))
        return language.nullable

    def _derivative(self, language: Language, letter: int) -> Language:
        """What may follow ``letter`` in texts of the language."""
        key = language.number, letter
        found = self._derived.get(key)
        if found is None:
            self.budget -= 1 + language.size // 8
            if self.budget < 0:
                raise TooLarge
            found = self._derived[key] = self._derive(language, letter)
        return found

    def _derive(self, language: Language, letter: int) -> Language:
        parts = language.parts
        match language.kind:
            case Kind.CHARACTERS:
                return self.empty_text if characters.contains(language.characters, letter) else self.nothing
            case Kind.SEQUENCE:
                options = []
                for i, part in enumerate(parts):
                    options.append(self.sequence([self._derivative(part, letter), *parts[i + 1 :]]))
                    if not part.nullable:
                        break
                return self.union(options)
            case Kind.UNION:
                return self.union([self._derivative(part, letter) for part in parts])
            case Kind.INTERSECTION:
                return self.intersection([self._derivative(part, letter) for part in parts])
            case Kind.COMPLEMENT:
                return self.complement(self._derivative(parts[0], letter))
        high = None if language.high is None else language.high - 1
        rest = self.repeat(parts[0], max(0, language.low - 1), high)
        return self.sequence([self._derivative(parts[0], letter), rest])

    def _letters(self, language: Language) -> list[int]:
        """One character of each kind that the language tells apart."""
        sets: dict[Characters, None] = {}
        seen, todo = {language.number}, [language]
        for node in todo:
            if node.kind is Kind.CHARACTERS:
                sets[node.characters] = None
            for part in node.parts:
                if part.number not in seen:
                    seen.add(part.number)
                    todo.append(part)
        bounds = sorted({point for one in sets for first, last in one for point in (first, last + 1)} | {0, 0xE000})
        kinds: dict[tuple[bool, ...], int] = {}
        for point in bounds:
            if characters.contains(characters.ANY, point):
                kinds.setdefault(tuple(characters.contains(one, point) for one in sets), point)
        return list(kinds.values())

    def _flat(self, kind: Kind, parts: Iterable[Language]) -> list[Language]:
        """The parts in one order, each once, with those of parts of the same kind for them."""
        flat: dict[int, Language] = {}
        for part in parts:
            for inner in part.parts if part.kind is kind else (part,):
                flat[inner.number] = inner
        return [flat[number] for number in sorted(flat)]

    def _node(
        self,
        kind: Kind,
        parts: Sequence[Language] = (),
        *,
        members: Characters = (),
        low: int = 0,
        high: int | None = None,
    ) -> Language:
        key = kind, tuple(part.number for part in parts), members, low, high
        found = self._made.get(key)
        if found is None:
            size = 1 + sum(part.size for part in parts)
            nullable = _is_nullable(kind, parts, low)
            found = Language(kind, tuple(parts), members, low, high, nullable, len(self._made), size)
            self._made[key] = found
        return found


def _is_nullable(kind: Kind, parts: Sequence[Language], low: int) -> bool:
    match kind:
        case Kind.CHARACTERS:
            return False
        case Kind.UNION:
            return any(part.nullable for part in parts)
        case Kind.COMPLEMENT:
            return not parts[0].nullable
        case Kind.REPEAT:
            return low == 0 or parts[0].nullable
    return all(part.nullable for part in parts)
