"""The parts of a call as they are read: each takes what is its own from a text that arrives in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.text.formats.dialect import JSON
from headrace.text.formats.pattern import IDENTIFIER, RecordForm
from headrace.text.formats.scanning import begins, end_of_space
from headrace.text.formats.values import ValueReader, Verdict

_SPACES = re.compile(r"(\s+)")
_LONGEST_IDENTIFIER = 256

Kinds = Mapping[str, frozenset[str]]
"""What the arguments of a tool may be, by name: ``string``, ``other``, or both. Of those not named nothing is known."""


class Part(Protocol):
    """Reads one part of a call; made anew for each call."""

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Go on from a place that an earlier call returned; see ``ValueReader.read``."""
        ...


@dataclass(slots=True)
class Fixed:
    """Text that must stand there; where it has white space, any amount of it or none may stand."""

    words: Sequence[str]
    _next: int = 0

    @classmethod
    def of(cls, text: str) -> Fixed:
        """Of a pattern's text."""
        return cls([word for word in _SPACES.split(text) if word])

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Take as much of it as is there."""
        while self._next < len(self.words):
            word = self.words[self._next]
            if word.isspace():
                at = end_of_space(text, at)
                if at == len(text) and not final:
                    return Verdict.MORE, at
            else:
                there = begins(word, text, at, final=final)
                if not there:
                    return (Verdict.MORE if there is None else Verdict.FAIL), at
                at += len(word)
            self._next += 1
        return Verdict.DONE, at


@dataclass(slots=True)
class Identifier:
    """A name or an id: as many letters, digits and such as there are."""

    value: str = ""

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Take it once its end is seen."""
        found = IDENTIFIER.match(text, at)
        end = at if found is None else found.end()
        if end - at > _LONGEST_IDENTIFIER:
            return Verdict.FAIL, at + _LONGEST_IDENTIFIER
        if end == len(text) and not final:
            return Verdict.MORE, at
        if end == at:
            return Verdict.FAIL, at
        self.value = text[at:end]
        return Verdict.DONE, end


@dataclass(slots=True)
class Arguments:
    """Arguments as one value: an object, or keyword arguments up to a closing bracket.

    Attributes:
        reader: Reads it.
        written: The arguments as JSON, once they are read.
    """

    reader: ValueReader
    written: str = ""
    _began: int = -1

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Go on with it."""
        if self._began < 0:
            self._began = at
        verdict, at = self.reader.read(text, at, final=final)
        if verdict is Verdict.DONE:
            value = self.reader.value
            raw = text[self._began : at].strip() if self.reader.dialect.is_json and not self.reader.members else None
            written = as_arguments(value, raw)
            if written is None:
                return Verdict.FAIL, at
            self.written = written
        return verdict, at


@dataclass(slots=True)
class Record:
    """A whole call as one JSON object.

    Attributes:
        forms: What it may look like.
        reader: Reads it.
        found: Of the fields ``name``, ``arguments`` and ``id`` those that it has.
    """

    forms: Sequence[RecordForm]
    reader: ValueReader
    found: dict[str, str] = field(default_factory=dict)

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Go on with it."""
        verdict, at = self.reader.read(text, at, final=final)
        if verdict is Verdict.DONE and not any(self._matches(form, text) for form in self.forms):
            return Verdict.FAIL, at
        return verdict, at

    def _matches(self, form: RecordForm, text: str) -> bool:
        value = self.reader.value
        try:
            name, arguments = form.find(value, "name"), form.find(value, "arguments")
        except KeyError:
            return False
        begin, end = self.reader.spans.get(form.paths["arguments"], (0, 0))
        written = as_arguments(arguments, text[begin:end])
        if not isinstance(name, str) or not name or written is None:
            return False
        self.found = {"name": name, "arguments": written}
        if "id" in form.paths:
            try:
                given = form.find(value, "id")
            except KeyError:
                given = None
            if isinstance(given, str) and given:
                self.found["id"] = given
        return True


def as_arguments(value: object, raw: str | None) -> str | None:
    """Arguments as JSON: as they were written where that is JSON, else written anew; None: they are none.

    Some models write the object into a string.
    """
    if isinstance(value, str):
        raw = value.strip() or "{}"
        reader = ValueReader(JSON)
        verdict, end = reader.read(raw, 0, final=True)
        value = reader.value if verdict is Verdict.DONE and end == len(raw) else None
    if not isinstance(value, dict):
        return None
    try:
        if raw is not None:
            json.loads(raw)
            return raw
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None
