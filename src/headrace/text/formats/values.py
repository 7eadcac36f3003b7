"""``ValueReader``: one value, read as its text arrives.

A stack machine over whole words of the language (a string, a number, a bracket). What it finds, and where it fails,
depends on the text alone and not on how it was cut.
"""

from __future__ import annotations

import enum
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from headrace.text.formats.dialect import Dialect
from headrace.text.formats.scanning import begins

MAX_DEPTH = 64

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z_]+")
_BARE_KEY = re.compile(r"[^\s\"'{}\[\]():=,]+")
_NUMBER = re.compile(r"-?[0-9.eE+-]*")
_PROPER_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# Words longer than these are none; so what is looked at again when more text arrives is bounded.
_LONGEST_WORD = 16
_LONGEST_NUMBER = 512
_LONGEST_KEY = 1024
_QUOTE_OR_SLASH = {quote: re.compile(rf"[\\{quote}]") for quote in ("'", '"')}
_CLOSES = {"{": "}", "[": "]", "(": ")"}


class Verdict(enum.Enum):
    """What became of a text."""

    MORE = enum.auto()
    DONE = enum.auto()
    FAIL = enum.auto()


class _Mismatch(Exception):
    """The text is no value; ``at`` is the first character that could not be."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass(slots=True)
class _Open:
    """A container that is not closed yet.

    Attributes:
        bracket: What opened it.
        items: What it holds so far.
        key: Of the member whose value comes next.
        keyed_at: Where that value begins.
    """

    bracket: str
    items: Any
    key: str | None = None
    began: int = 0


@dataclass(slots=True)
class ValueReader:
    """Reads one value.

    Attributes:
        dialect: How it is written.
        members: Read keyword arguments up to a closing bracket, which is left, instead of a value.
        value: What was read, once it is done.
        spans: Where the values of members stand, by the way to them, at most two steps.
    """

    dialect: Dialect
    members: bool = False
    value: Any = None
    spans: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)
    _stack: list[_Open] = field(default_factory=list)
    _expects: str = "value"
    _resume: int = -1  # within a string that is not closed: where to go on looking for its end
    _done: bool = False

    def __post_init__(self) -> None:
        if self.members:
            self._stack.append(_Open("(", {}))
            self._expects = "first"

    def read(self, text: str, at: int, *, final: bool) -> tuple[Verdict, int]:
        """Go on from a place that an earlier call returned.

        Args:
            text: All text so far; it only grows between calls.
            at: Where to go on.
            final: No more text will come.

        Returns:
            What became of it, and where: to go on, behind the value, or at the first character that does not fit.
        """
        try:
            while True:
                # A number at the very end of a text has no end of its own: nothing is skipped behind a value.
                here = at if self._done else _skip(text, at)
                if self._done:
                    return Verdict.DONE, at
                if here >= len(text):
                    return (Verdict.FAIL if final else Verdict.MORE), here
                step = self._step(text, here, final)
                if step is None:
                    return (Verdict.FAIL if final else Verdict.MORE), (len(text) if final else here)
                at = step
        except _Mismatch as mismatch:
            return Verdict.FAIL, mismatch.at

    def _step(self, text: str, at: int, final: bool) -> int | None:
        """Read one word; where it ends, or None if its end is not there yet."""
        char = text[at]
        if self._expects in ("value", "first", "key"):
            closes = self._stack and char == _CLOSES[self._stack[-1].bracket]
            if closes and self._expects == "first":
                return self._close(at)
            if self._stack and self._stack[-1].bracket != "[" and self._stack[-1].key is None:
                return self._read_key(text, at, final)
            return self._read_value(text, at, final)
        top = self._stack[-1]
        if self._expects == "colon":
            if char != ("=" if top.bracket == "(" else ":"):
                raise _Mismatch(at)
            self._expects, top.began = "value", _skip(text, at + 1)
            return at + 1
        if char == ",":
            self._expects = "value" if top.bracket == "[" else "key"
            return at + 1
        if char == _CLOSES[top.bracket]:
            return self._close(at)
        raise _Mismatch(at)

    def _close(self, at: int) -> int:
        opened = self._stack.pop()
        end = at if opened.bracket == "(" else at + 1
        return self._got(opened.items, end)

    def _got(self, value: Any, end: int) -> int:
        """A value is complete; it ends at ``end``."""
        if not self._stack:
            self.value, self._done = value, True
            return end
        top = self._stack[-1]
        if top.bracket == "[":
            top.items.append(value)
        else:
            key = top.key or ""
            top.items[key] = value
            if len(self._stack) <= 2:
                way = tuple(opened.key or "" for opened in self._stack)
                self.spans[way] = (top.began, end)
            top.key = None
        self._expects = "comma"
        return end

    def _read_key(self, text: str, at: int, final: bool) -> int | None:
        top = self._stack[-1]
        if top.bracket == "(" or self.dialect.bare_keys:
            found = _BARE_KEY.match(text, at)
            if found is not None:
                if found.end() - at > _LONGEST_KEY:
                    raise _Mismatch(at)
                if found.end() == len(text) and not final:
                    return None
                top.key, self._expects = found[0], "colon"
                return found.end()
            if top.bracket == "(":
                raise _Mismatch(at)
        got = self._read_string(text, at, final)
        if got is None:
            return None
        top.key, self._expects = got[0], "colon"
        return got[1]

    def _read_value(self, text: str, at: int, final: bool) -> int | None:
        char = text[at]
        top = self._stack[-1] if self._stack else None
        if top is not None and top.bracket != "[":
            top.began = at
        if char in "{[":
            if len(self._stack) >= MAX_DEPTH:
                raise _Mismatch(at)
            self._stack.append(_Open(char, {} if char == "{" else []))
            self._expects = "first"
            return at + 1
        if char == "-" or char.isdigit():
            return self._read_number(text, at, final)
        if char.isalpha() and char.isascii():
            return self._read_word(text, at, final)
        got = self._read_string(text, at, final)
        return None if got is None else self._got(*got)

    def _read_number(self, text: str, at: int, final: bool) -> int | None:
        found = _NUMBER.match(text, at)
        end = at if found is None else found.end()
        if end - at <= _LONGEST_NUMBER:
            if end == len(text) and not final:
                return None
            if _PROPER_NUMBER.fullmatch(text, at, end):
                value = json.loads(text[at:end])
                if value not in (math.inf, -math.inf):  # what is too large is not JSON when it is written again
                    return self._got(value, end)
        raise _Mismatch(at)

    def _read_word(self, text: str, at: int, final: bool) -> int | None:
        found = _WORD.match(text, at)
        end = at if found is None else found.end()
        if end - at <= _LONGEST_WORD and end == len(text) and not final:
            return None
        try:
            return self._got(self.dialect.word(text[at:end][: _LONGEST_WORD + 1]), end)
        except ValueError:
            raise _Mismatch(at) from None

    def _read_string(self, text: str, at: int, final: bool) -> tuple[str, int] | None:
        """The string that begins here, and where it ends."""
        for quote in self.dialect.quotes:
            there = begins(quote, text, at, final=final)
            if there is None:
                return None
            if there:
                break
        else:
            raise _Mismatch(at)
        end = self._string_end(text, max(self._resume, at + len(quote)), quote)
        if end is None:
            return None
        self._resume = -1
        try:
            return self.dialect.unquote(text[at:end], quote), end
        except ValueError:
            raise _Mismatch(at) from None

    def _string_end(self, text: str, at: int, quote: str) -> int | None:
        if self.dialect.escapes == "none":
            end = text.find(quote, at)
            if end >= 0:
                return end + len(quote)
            self._resume = max(at, len(text) - len(quote) + 1)
            return None
        for found in _QUOTE_OR_SLASH[quote].finditer(text, at):
            if found.start() < at:  # escaped
                continue
            if found[0] == quote:
                return found.end()
            at = found.end() + 1
        self._resume = len(text) if at <= len(text) else at - 2  # a backslash at the end waits
        return None


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
