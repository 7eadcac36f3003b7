"""Strings as languages of texts."""

from __future__ import annotations

from headrace.text.schema import characters, limits
from headrace.text.schema.expressions import PatternError
from headrace.text.schema.patterns import pattern_language
from headrace.text.schema.refusal import Place, Refused
from headrace.text.schema.regex import Language, Languages, TooLarge
from headrace.text.schema.shapes import Keys, StringShape


class StringLanguages:
    """Makes the languages of strings and keys.

    Args:
        languages: Where they are made.
        places: Where each pattern of the schema stands, for blame.
    """

    def __init__(self, languages: Languages, places: dict[str, Place]) -> None:
        self.all = languages
        self._places = places
        self._patterns: dict[str, Language] = {}

    def of(self, shape: StringShape) -> Language:
        """The texts of the strings of a shape.

        Raises:
            Refused: They cannot be enforced.
        """
        if shape.values is not None:
            return self.all.union([self.all.text(value) for value in self.values(shape)])
        parts = [self.pattern(pattern) for pattern in sorted(shape.patterns)]
        parts += [self.all.complement(self.pattern(pattern)) for pattern in sorted(shape.no_patterns)]
        if len(parts) > limits.MAX_PATTERNS:
            place = self._places[min(shape.patterns | shape.no_patterns)]
            raise Refused(place, f"is one of more than {limits.MAX_PATTERNS} patterns for one string; use fewer")
        if shape.low or shape.high is not None:
            any_character = self.all.characters(characters.ANY)
            parts.append(self.all.repeat(any_character, shape.low, shape.high))
        if shape.excluded:
            excluded = self.all.union([self.all.text(value) for value in sorted(shape.excluded)])
            parts.append(self.all.complement(excluded))
        return self.all.intersection(parts)

    def values(self, shape: StringShape) -> list[str]:
        """The values of a shape that lists them, in order."""
        assert shape.values is not None
        return sorted(value for value in shape.values if self._fits(shape, value))

    def has(self, shape: StringShape, text: str) -> bool:
        """Whether a string is of a shape."""
        return (shape.values is None or text in shape.values) and self._fits(shape, text)

    def pattern(self, pattern: str) -> Language:
        """The texts in which a pattern matches.

        Raises:
            Refused: It is malformed or cannot be enforced.
        """
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = pattern_language(self.all, pattern)
            except PatternError as error:
                raise Refused(self._places[pattern], f"{error}: {pattern[:100]!r}") from None
        return self._patterns[pattern]

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a pattern matches in a text."""
        try:
            return self.all.has(self.pattern(pattern), text)
        except TooLarge:
            raise Refused(self._places[pattern], "is too complex to be compared; use a simpler pattern") from None

    def names_fit(self, keys: Keys, name: str) -> bool:
        """Whether a key is of a kind, its goal aside."""
        return (
            name not in keys.no_names
            and (keys.pattern is None or self.matches(keys.pattern, name))
            and not any(self.matches(pattern, name) for pattern in keys.no_patterns)
        )

    def _fits(self, shape: StringShape, text: str) -> bool:
        return (
            shape.low <= len(text)
            and (shape.high is None or len(text) <= shape.high)
            and text not in shape.excluded
            and all(self.matches(pattern, text) for pattern in shape.patterns)
            and not any(self.matches(pattern, text) for pattern in shape.no_patterns)
        )
