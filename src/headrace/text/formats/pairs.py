"""``Pairs``: the arguments of a call, one after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.text.formats.dialect import PYTHON, Dialect
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
        parts: list[Part] = []
        for i, piece in enumerate(self.pattern):
            if piece.is_field:
                parts.append(RawText(self.pattern[i + 1].text.split()[0]))
            else:
                # White space around a value is a part of the pattern or of the value, as ``_keep`` finds out.
                before_value = i + 1 < len(self.pattern) and self.pattern[i + 1].name == "value"
                text = piece.text.rstrip() if before_value or i + 1 == len(self.pattern) else piece.text
                parts.append(Fixed.of(text.lstrip() if i and self.pattern[i - 1].name == "value" else text))
        return parts

    def _keep(self) -> bool:
        """Note the pair that was just read; whether its value is one."""
        values = iter([part.value for part in self._parts if isinstance(part, RawText)])
        key, value = next(values).strip(), next(values)
        at = next(i for i, piece in enumerate(self.pattern) if piece.name == "value")
        before, after = self.pattern[at - 1].text, self.pattern[at + 1].text
        value = value.removeprefix(before[len(before.rstrip()) :])
        value = value.removesuffix(after[: len(after) - len(after.lstrip())])
        try:
            self._values[key] = self._value(value, self.kinds.get(key, frozenset({"string", "other"})))
        except ValueError:
            return False
        return bool(key)

    def _value(self, text: str, kinds: frozenset[str]) -> Any:
        """What a text means, for an argument that may be so: a string is written as it is, all else as JSON.

        Some templates show containers as Python does, and models learn it from them.
        """
        if "other" in kinds:
            stripped = text.strip()
            for dialect in (self.dialect, PYTHON):
                reader = ValueReader(dialect)
                verdict, end = reader.read(stripped, 0, final=True)
                whole = verdict is Verdict.DONE and end == len(stripped)
                if whole and ("string" not in kinds or not isinstance(reader.value, str)):
                    return reader.value
            if "string" not in kinds:
                raise ValueError(text)
        return text
