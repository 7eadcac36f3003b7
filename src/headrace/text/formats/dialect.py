"""``Dialect``: the ways in which models write values, as differences from JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.text.formats.notation import Arguments

JSON_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
PYTHON_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}

_PYTHON_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {
    **{char: char for char in "\\'\""},
    **{"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""},
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How values are written.

    Attributes:
        quotes: What may stand before and after a string.
        escapes: What a backslash in a string does: as in JSON, as in Python, or nothing.
        words: How true, false and null are written; both ways are read in every dialect.
        bare_keys: Keys are written without quotes.
        comma, colon: Between members, and between key and value, as they are written.
    """

    quotes: tuple[str, ...] = ('"',)
    escapes: Literal["json", "python", "none"] = "json"
    words: Literal["json", "python"] = "json"
    bare_keys: bool = False
    comma: str = ", "
    colon: str = ": "

    @property
    def is_json(self) -> bool:
        """Whether what is written is JSON."""
        return self.escapes == "json" and self.words == "json" and not self.bare_keys

    def word(self, text: str) -> Any:
        """The value of a word.

        Raises:
            ValueError: It is none.
        """
        for words in (JSON_WORDS, PYTHON_WORDS):
            if text in words:
                return words[text]
        raise ValueError(f"{text!r} is no value")

    def unquote(self, written: str, quote: str) -> str:
        """The string that stands between quotes.

        Args:
            written: It, quotes included.
            quote: Which ones.

        Raises:
            ValueError: An escape in it is malformed.
        """
        inner = written[len(quote) : -len(quote)]
        if self.escapes == "none" or "\\" not in inner:
            return inner
        text = (
            str(json.loads(f'"{inner}"', strict=False)) if self.escapes == "json" else _PYTHON_ESCAPE.sub(_meant, inner)
        )
        return text.encode("utf-16", "surrogatepass").decode("utf-16")  # a lone surrogate is no text

    def write(self, value: Any) -> str:
        """A value of JSON's types, written.

        Raises:
            ValueError: A number is not finite, or a string holds the quote and nothing can escape it.
        """
        if self.is_json:
            return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon), allow_nan=False)
        if isinstance(value, str):
            return self._quoted(value)
        if isinstance(value, dict):
            members = [f"{self.key(key)}{self.colon}{self.write(item)}" for key, item in value.items()]
            return "{" + self.comma.join(members) + "}"
        if isinstance(value, list | tuple):
            return "[" + self.comma.join(self.write(item) for item in value) + "]"
        if value is None or isinstance(value, bool):
            words = PYTHON_WORDS if self.words == "python" else JSON_WORDS
            return next(word for word, meant in words.items() if meant is value)
        return json.dumps(value, allow_nan=False)

    def bare(self, value: Any) -> str:
        """A value that stands by itself: a string as it is, objects and arrays as JSON."""
        if isinstance(value, str):
            return value
        if isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon))
        return self.write(value)

    def key(self, key: str) -> str:
        """A key, written."""
        return key if self.bare_keys else self._quoted(key)

    def _quoted(self, text: str) -> str:
        if self.escapes == "none":
            quote = self.quotes[0]
            if quote in text:
                raise ValueError(f"a string cannot hold {quote}")
            return f"{quote}{text}{quote}"
        return json.dumps(text, ensure_ascii=False)


JSON = Dialect()
PYTHON = Dialect(quotes=('"', "'"), escapes="python", words="python")


def dialect_of(arguments: Arguments) -> Dialect:
    """How a format writes the values of arguments."""
    if arguments.syntax == "python":
        return PYTHON
    comma, colon = (", ", ": ") if arguments.spaced else (",", ":")
    if arguments.syntax == "pairs" or arguments.quote == '"':
        return Dialect(words=arguments.literals, bare_keys=arguments.bare_keys, comma=comma, colon=colon)
    return Dialect(
        (arguments.quote,), "none", words=arguments.literals, bare_keys=arguments.bare_keys, comma=comma, colon=colon
    )


def _meant(escape: re.Match[str]) -> str:
    """What an escape of Python's means; a backslash before what needs none stands for itself."""
    code = escape[1]
    if code in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[code]
    if code[0] in "01234567":
        return chr(int(code, 8))
    if code in ("x", "u", "U"):
        raise ValueError(f"digits are missing in {escape[0]}")
    return chr(int(code[1:], 16)) if code[0] in "xuU" else escape[0]
