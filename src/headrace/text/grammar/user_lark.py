"""The gate for grammars that users write: llguidance's Lark, read token by token and written anew.

Only what is known to be harmless is written: rules and terminals of literals, regular expressions, ranges, groups,
alternatives, repetitions, ``&``, ``~``, ``%ignore``, ``%import common...`` and ``%json``, whose schema passes its own
gate. What reaches control tokens, other grammars or settings of the library is refused, as is what it hides text with.
A complement is taken within the texts of UTF-8: the library's own admits control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.errors import InvalidInput
from headrace.text.schema import Spacing, schema_rules

MAX_CHARACTERS = 64 << 10
MAX_TOKENS = 20_000
MAX_RULES = 2000
MAX_NESTING = 50
MAX_REPEAT = 10_000
ANY_TEXT = "/(?s:.*)/"

_TOKENS = re.compile(
    r"""
    (?P<blank>[ \t]+|(?:\#|//)[^\n]*)
    | (?P<newline>\r?\n)
    | (?P<string>"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})|[^"\\\x00-\x1f\x7f])*"i?)
    | (?P<regex>/(?:\\[^\n]|[^/\\\n])+/[imslux]*)
    | (?P<keyword>%[a-z]+)
    | (?P<name>[!?_]*[A-Za-z][A-Za-z0-9_-]*)
    | (?P<number>[0-9]+)
    | (?P<operator>->|\.\.|[-+*?()\[\]{},:.|&~=])
    | (?P<special><[^<>\s]+>)
    | (?P<grammar>@[A-Za-z0-9_-]+)
    """,
    re.VERBOSE,
)
_WHY_NOT = {
    "special": "names a control token, which a grammar cannot ask for; use a literal in quotes for text",
    "grammar": "refers to another grammar, of which there is none",
}
_KEYWORDS_NOT = {
    "%lark": "nests a grammar; write its rules beside the others",
    "%regex": "is not supported; write a regular expression between slashes",
    "%if": "makes a rule depend on a parameter, which is not supported",
    "%declare": "is not supported",
    "%override": "is not supported",
    "%extend": "is not supported",
    "%llguidance": "changes settings of the library, which are not the grammar's to change; leave it out",
}


@dataclass(frozen=True, slots=True)
class Token:
    """A token of Lark.

    Attributes:
        kind: The name of its group in the expression of tokens, or ``json``.
        text: It.
        line: Its line, from 1.
        value: Of ``%json``, the schema.
    """

    kind: str
    text: str
    line: int
    value: Any = None


def checked_lark(text: str, *, field: str, spacing: Spacing) -> str:
    """The grammar as it is given to the library.

    Args:
        text: What the user wrote.
        field: What the caller calls it.
        spacing: How the JSON of ``%json`` is laid out.

    Raises:
        InvalidInput: It cannot be read, or says what is not allowed.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(f"the grammar is longer than {MAX_CHARACTERS >> 10} KiB", field=field, code="grammar")
    return _Writer(field, spacing).written(list(_tokens(text, field)))


def _tokens(text: str, field: str) -> Iterator[Token]:
    at, line, count = 0, 1, 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            _refuse(field, line, f"cannot be read from {text[at : at + 20]!r} on")
        kind, word, at = str(match.lastgroup), match.group(), match.end()
        if kind in _WHY_NOT:
            _refuse(field, line, f"{word[:40]} {_WHY_NOT[kind]}")
        if word == "%json":
            value, at = _json_value(text, at, line, field)
            yield Token("json", word, line, value)
        elif kind != "blank":
            yield Token(kind, word, line)
        count += 1
        if count > MAX_TOKENS:
            _refuse(field, line, f"has more than {MAX_TOKENS} tokens")
        line += text.count("\n", match.start(), at)


def _json_value(text: str, at: int, line: int, field: str) -> tuple[Any, int]:
    while text[at : at + 1].isspace():
        at += 1
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        _refuse(field, line, "has no JSON after %json")


def _refuse(field: str, line: int, message: str) -> NoReturn:
    raise InvalidInput(f"line {line} of the grammar {message}", field=field, code="grammar")


class _Writer:
    """Writes checked tokens, one space between any two."""

    def __init__(self, field: str, spacing: Spacing) -> None:
        self._field = field
        self._spacing = spacing
        self._tokens: list[Token] = []
        self._at = 0
        self._extra: list[str] = []  # rules for what stands in the user's rules by name
        self._prefix = "x"

    def written(self, tokens: list[Token]) -> str:
        self._tokens = tokens
        names = {token.text.lstrip("!?_").lower() for token in tokens if token.kind == "name"}
        while any(name.startswith(self._prefix) for name in names):
            self._prefix += "x"
        self._check_rules()
        parts = []
        while self._at < len(tokens):
            parts.append(self._part(0))
        return " ".join(parts).replace(" \n ", "\n").strip() + "\n" + "\n".join(self._extra) + "\n"

    def _check_rules(self) -> None:
        heads = [
            token
            for before, token, after in zip([None, *self._tokens], self._tokens, self._tokens[1:], strict=False)
            if token.kind == "name" and after.text == ":" and (before is None or before.kind == "newline")
        ]
        if len(heads) > MAX_RULES:
            self._refuse(heads[-1], f"has more than {MAX_RULES} rules")
        if not any(head.text.lstrip("!?") == "start" for head in heads):
            raise InvalidInput("the grammar has no rule named start", field=self._field, code="grammar")

    def _part(self, depth: int) -> str:
        """The next token, with what belongs to it."""
        token = self._next()
        if depth > MAX_NESTING:
            self._refuse(token, f"nests deeper than {MAX_NESTING} levels")
        match token.kind:
            case "json":
                return self._json(token)
            case "keyword":
                return self._keyword(token)
            case "number":
                return self._number(token)
            case "newline":
                return "\n"
        if token.text == "~":
            return self._complement(token, depth)
        if token.text in {"(", "["}:
            return self._group(token, depth)
        if token.text == ":" and self._peek() == ":":
            self._refuse(token, "has a rule with a parameter (::), which is not supported")
        return token.text

    def _group(self, begin: Token, depth: int) -> str:
        end = {"(": ")", "[": "]"}[begin.text]
        parts = [begin.text]
        while self._peek() != end:
            if self._at >= len(self._tokens):
                self._refuse(begin, f"has a {begin.text} without its {end}")
            parts.append(self._part(depth + 1))
        follows = self._next_of(self._at + 1)
        if begin.text == "[" and follows == ":":
            self._refuse(begin, "gives a rule attributes in brackets, which are not supported")
        parts.append(self._next().text)
        return " ".join(parts).replace("\n", " ")

    def _complement(self, token: Token, depth: int) -> str:
        """A terminal for a complement, taken within what is text."""
        if self._peek().isdigit():
            self._refuse(token, "repeats with ~; write {m,n}")
        inner = self._part(depth + 1)
        name = f"{self._prefix}_NOT{len(self._extra)}".upper()
        self._extra.append(f"{name}: {ANY_TEXT} & ~ {inner}")
        return name

    def _json(self, token: Token) -> str:
        prefix = f"{self._prefix}{len(self._extra)}"
        try:
            start, rules = schema_rules(token.value, field="%json", spacing=self._spacing, prefix=prefix)
        except InvalidInput as error:
            self._refuse(token, f"has a schema that cannot be enforced: {error}")
        self._extra.append(rules)
        return start

    def _keyword(self, token: Token) -> str:
        if token.text == "%ignore":
            return token.text
        if token.text != "%import":
            self._refuse(token, f"{token.text} {_KEYWORDS_NOT.get(token.text, 'is not known')}")
        if self._peek() != "common":
            self._refuse(token, "imports from elsewhere than common")
        return token.text

    def _number(self, token: Token) -> str:
        if len(token.text) > 9 or int(token.text) > MAX_REPEAT:
            self._refuse(token, f"repeats more than {MAX_REPEAT} times")
        return token.text

    def _next(self) -> Token:
        if self._at >= len(self._tokens):
            raise InvalidInput("the grammar ends too early", field=self._field, code="grammar")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._next_of(self._at)

    def _next_of(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _refuse(self, token: Token, message: str) -> NoReturn:
        _refuse(self._field, token.line, message)
