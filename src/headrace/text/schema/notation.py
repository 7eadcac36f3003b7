"""Languages written down for llguidance: as texts, or as what stands between the quotes of a JSON string.

In JSON a character has several spellings. Where a language tells characters apart, one that has to be escaped is
written in all the ways there are, and any other as itself alone. So complements and lengths stay exact, and every text
can be written.
"""

from __future__ import annotations

import json
import re

from headrace.text.schema import characters
from headrace.text.schema.characters import Characters
from headrace.text.schema.regex import Kind, Language, Languages, TooLarge

MOST_NODES = 100_000
SHORT_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}
# As in llguidance, whose fast paths know this set: U+007F is written as an escape too.
ESCAPED = characters.of((0, 31), (127, 127), '"\\')
PLAIN = characters.complement(ESCAPED)

_HEX = "[0-9a-fA-F]"
ANY_ESCAPED = rf'\\(["\\bfnrt]|u00([01]{_HEX}|22|5[cC]|7[fF]))'
# Any string, with every escape that JSON has, surrogates in pairs only: one character.
ANY_CHARACTER = (
    r'([^"\\\x00-\x1F\x7F]|\\["\\bfnrt\/]'
    rf"|\\u([0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}))"
)


def as_string(languages: Languages, language: Language) -> str:
    """A Lark terminal: the insides of the JSON strings whose texts belong to ``language``.

    Raises:
        TooLarge: What is one node in several places would be written out too often.
    """
    _check_size(language)
    return _Writer(languages, quoted=True).terminal(language)


def as_text(languages: Languages, language: Language) -> str:
    """A Lark terminal: the texts themselves; raises as ``as_string``."""
    _check_size(language)
    return _Writer(languages, quoted=False).terminal(language)


def _check_size(language: Language) -> None:
    if language.size > MOST_NODES:
        raise TooLarge


def literal(text: str) -> str:
    """A Lark literal, which is written like a JSON string."""
    return json_string(text)


def json_string(text: str) -> str:
    """The JSON text of a string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Writer:
    def __init__(self, languages: Languages, *, quoted: bool) -> None:
        self._quoted = quoted
        self._anything = f"/{self._expression(languages.anything)}/"
        self._is_plain: dict[int, bool] = {}

    def terminal(self, node: Language) -> str:
        """Lark for it; one regular expression where neither intersection nor complement is in it."""
        if self._plain(node):
            expression = self._expression(node)
            return f"/{expression}/" if expression else '""'
        inner = [self.terminal(part) for part in node.parts]
        match node.kind:
            case Kind.SEQUENCE:
                return "(" + " ".join(inner) + ")"
            case Kind.UNION:
                return "(" + " | ".join(inner) + ")"
            case Kind.INTERSECTION:
                return "(" + " & ".join(inner) + ")"
            case Kind.COMPLEMENT:
                return f"({self._anything} & ~{inner[0]})"
        high = "" if node.high is None else node.high
        return f"({inner[0]}{{{node.low},{high}}})"

    def _plain(self, node: Language) -> bool:
        found = self._is_plain.get(node.number)
        if found is None:
            found = node.kind not in {Kind.INTERSECTION, Kind.COMPLEMENT} and all(map(self._plain, node.parts))
            self._is_plain[node.number] = found
        return found

    def _expression(self, node: Language) -> str:
        match node.kind:
            case Kind.CHARACTERS:
                return self._one(node.characters)
            case Kind.SEQUENCE:
                return "".join(map(self._expression, node.parts))
            case Kind.UNION:
                return "(" + "|".join(map(self._expression, node.parts)) + ")"
        counts = "*" if (node.low, node.high) == (0, None) else _counts(node.low, node.high)
        return f"({self._expression(node.parts[0])}){counts}"

    def _one(self, members: Characters) -> str:
        if not self._quoted:
            return _class_of(members)
        plain = characters.intersection(members, PLAIN)
        options = [_class_of(plain)] if plain else []
        escaped = characters.intersection(members, ESCAPED)
        if escaped == ESCAPED:
            options.append(ANY_ESCAPED)
        else:
            options += [_escape(point) for first, last in escaped for point in range(first, last + 1)]
        return options[0] if len(options) == 1 else "(" + "|".join(options) + ")"


def _counts(low: int, high: int | None) -> str:
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _escape(point: int) -> str:
    digits = "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{point:04x}")
    short = SHORT_ESCAPES.get(point)
    return rf"\\u{digits}" if short is None else rf"\\({re.escape(short)}|u{digits})"


def _class_of(members: Characters) -> str:
    if len(members) == 1 and members[0][0] == members[0][1]:
        return _point(members[0][0])
    return "[" + "".join(_point(a) if a == b else f"{_point(a)}-{_point(b)}" for a, b in members) + "]"


def _point(point: int) -> str:
    character = chr(point)
    return character if character.isascii() and character.isalnum() else f"\\u{{{point:x}}}"
