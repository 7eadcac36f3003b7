"""``Pairs``: the arguments of a call, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.text.formats.dialect import PYTHON, Dialect
from headrace.text.formats.kinds import BOTH, OTHER, STRING
from headrace.text.formats.parts import Fixed, Kinds, Part
from headrace.text.formats.pattern import Piece
from headrace.text.formats.scanning import begins, end_of_space
from headrace.text.formats.values import ValueReader, Verdict

MOST_PAIRS = 1024


@dataclass(slots=True)
class RawText:
    """Text up to a text that ends it, which is left where it is."""

    until: str
    value: str = ""
    _resume: int = 0

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Take it once its end is seen."""
        end = text.find(self.until, max(at, self._resume))
        if end < 0:
            self._resume = max(at, len(text) - len(self.until) + 1)
            return (Verdict.FAIL, len(text)) if final else (Verdict.MORE, at)
        self.value = text[at:end]
        return Verdict.DONE, end


@dataclass(slots=True)
class PairValue:
    """A value up to a text that ends it, which is left where it is.

    A string is written as it is, and ends where ``until`` first comes. All else is JSON, whose strings may hold
    ``until``; some templates show containers as Python does, and models learn it from them.

    Attributes:
        key: The argument's name, once it is read.
        kinds: What arguments may be; of those not named nothing is known.
        dialect: How what is no string is written.
        until: What ends the value.
        space: The white space that the pattern has before and behind it, which is no part of a string.
        value: It, once it is read.
    """

    key: RawText
    kinds: Kinds
    dialect: Dialect
    until: str
    space: tuple[str, str]
    value: Any = None
    _begin: int = -1
    _at: int = 0
    _readers: list[ValueReader] = field(default_factory=list)
    _raw: RawText | None = None

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Take it once its end is seen."""
        if self._begin < 0:
            first = end_of_space(text, at)
            if first == len(text) and not final:
                return Verdict.MORE, at
            self._begin = self._at = at
            self._begin_with(text[first : first + 1])
        while self._readers:
            verdict = self._read_value(text, final)
            if verdict is not Verdict.FAIL:
                return verdict, self._at
            self._readers.pop(0)
            self._at = self._begin if self._readers or self._raw else self._at
        if self._raw is None:
            return Verdict.FAIL, self._at
        verdict, self._at = self._raw.read(text, self._at, final=final)
        if verdict is Verdict.DONE:
            self.value = self._raw.value.removeprefix(self.space[0]).removesuffix(self.space[1])
        return verdict, self._at

    def _begin_with(self, char: str) -> None:
        """Decide how it may be read: where it may be a string, what stands in quotes is one, quotes included."""
        kinds = self.kinds.get(self.key.value.strip(), BOTH)
        if STRING in kinds:
            self._raw = RawText(self.until)
        if OTHER in kinds and not (STRING in kinds and char in PYTHON.quotes):
            self._readers = [ValueReader(self.dialect), ValueReader(PYTHON)]

    def _read_value(self, text: str, final: bool) -> Verdict:
        """Go on with it as something else than a string."""
        reader = self._readers[0]
        verdict, self._at = reader.read(text, self._at, final=final)
        if verdict is not Verdict.DONE:
            return verdict
        there = begins(self.until, text, end_of_space(text, self._at), final=final)
        if there:
            self.value, self._at = reader.value, end_of_space(text, self._at)
            return Verdict.DONE
        return Verdict.MORE if there is None else Verdict.FAIL


@dataclass(slots=True)
class Pairs:
    """Arguments one after the other, each as a pattern says, up to what is none.

    Attributes:
        pattern: Of one.
        dialect: How values that are no strings are written.
        kinds: What an argument may be, by the tool's schema: ``string``, ``other``, or both.
        written: The arguments as JSON, once they are read.
    """

    pattern: Sequence[Piece]
    dialect: Dialect
    kinds: Kinds
    written: str = ""
    _values: dict[str, Any] = field(default_factory=dict)
    _parts: list[Part] = field(default_factory=list)
    _value: PairValue = field(init=False)  # that of the pair being read
    _index: int = 0

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Go on with them."""
        while True:
            if not self._parts:
                begin = end_of_space(text, at)
                there = begins(self.pattern[0].text.split()[0], text, begin, final=final)
                if there is None:
                    return Verdict.MORE, begin
                if not there:
                    self.written = json.dumps(self._values, ensure_ascii=False)
                    return Verdict.DONE, begin
                at = begin
                self._parts, self._index = self._pair(), 0
            while self._index < len(self._parts):
                verdict, at = self._parts[self._index].read(text, at, final=final)
                if verdict is not Verdict.DONE:
                    return verdict, at
                self._index += 1
            if not self._keep() or len(self._values) > MOST_PAIRS:
                return Verdict.FAIL, at
            self._parts = []

    def _pair(self) -> list[Part]:
        opening, middle, closing = (piece.text for piece in self.pattern if not piece.is_field)
        key = RawText(middle.split()[0])
        # White space around a value is a part of the pattern or of the value.
        space = middle[len(middle.rstrip()) :], closing[: len(closing) - len(closing.lstrip())]
        self._value = PairValue(key, self.kinds, self.dialect, closing.split()[0], space)
        return [Fixed.of(opening), key, Fixed.of(middle.rstrip()), self._value, Fixed.of(closing.strip())]

    def _keep(self) -> bool:
        """Note the pair that was just read; whether it has a key."""
        key = self._value.key.value.strip()
        self._values[key] = self._value.value
        return bool(key)
