"""Regular expressions of ECMA-262 (with the u flag), parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from headrace.text.schema import characters
from headrace.text.schema.characters import Characters

MAX_REPEAT = 1000
MAX_NESTING = 40
MAX_LENGTH = 2000
CLASSES = {"d": characters.DIGITS, "w": characters.WORD, "s": characters.SPACE}
CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
SYNTAX = "^$\\.*+?()[]{}|/"


class PatternError(Exception):
    """A pattern that is malformed, or that cannot be enforced; the message follows the pattern."""


@dataclass(frozen=True, slots=True)
class One:
    """One character of a set."""

    members: Characters


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any of them."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times."""

    part: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """The beginning or the end of the text."""

    at_end: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What follows begins with this, or does not."""

    part: Expression
    negated: bool


Expression = One | Sequence | Choice | Repeat | Edge | Look


class PatternParser:
    """Reads one pattern."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> Expression:
        """The expression.

        Raises:
            PatternError: It is malformed, or of a kind not known here.
        """
        if len(self._text) > MAX_LENGTH:
            raise PatternError(f"is longer than {MAX_LENGTH} characters")
        expression = self._choice()
        if self._at < len(self._text):
            self._fail("has a ) without a (")
        return expression

    def _fail(self, message: str) -> NoReturn:
        raise PatternError(f"{message} (character {self._at})")

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._fail("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail(f"nests deeper than {MAX_NESTING} groups")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            atom = self._atom()
            parts.append(self._repeated(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Expression:
        character = self._next()
        match character:
            case "^":
                return Edge(at_end=False)
            case "$":
                return Edge(at_end=True)
            case "(":
                return self._group()
            case "[":
                return One(self._class())
            case ".":
                return One(characters.complement(characters.LINE_ENDS))
            case "\\":
                return One(self._escape(in_class=False))
            case "*" | "+" | "?" | "{":
                self._at -= 1
                self._fail(f"has nothing to repeat before {character}")
            case "}" | "]":
                self._at -= 1
                self._fail(f"has a {character} without its beginning; write \\{character}")
        return One(characters.of(character))

    def _group(self) -> Expression:
        if self._take("?<=") or self._take("?<!"):
            self._fail("looks back, which cannot be enforced")
        negated = self._text.startswith("?!", self._at)
        looks = negated or self._text.startswith("?=", self._at)
        if looks:
            self._at += 2
        elif self._take("?<"):
            while self._next() != ">":
                pass
        elif self._take("?") and not self._take(":"):
            self._fail("has a group of a kind not known here")
        inner = self._choice()
        if not self._take(")"):
            self._fail("has a ( without a )")
        return Look(inner, negated) if looks else inner

    def _repeated(self, atom: Expression) -> Expression:
        low, high = 1, None
        if self._take("*"):
            low = 0
        elif self._take("?"):
            low, high = 0, 1
        elif self._take("{"):
            low, high = self._counts()
        elif not self._take("+"):
            return atom
        self._take("?")  # lazy: the same texts
        if isinstance(atom, Edge | Look):
            self._fail("repeats an assertion")
        return Repeat(atom, low, high)

    def _counts(self) -> tuple[int, int | None]:
        low = self._number()
        high: int | None = low
        if self._take(","):
            high = None if self._text.startswith("}", self._at) else self._number()
        if not self._take("}"):
            self._fail("has a { that is no count; write \\{")
        if high is not None and high < low:
            self._fail("counts down")
        if max(low, high or 0) > MAX_REPEAT:
            self._fail(f"repeats more than {MAX_REPEAT} times")
        return low, high

    def _number(self) -> int:
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        if begin == self._at or self._at - begin > 9:
            self._fail("has a { that is no count; write \\{")
        return int(self._text[begin : self._at])

    def _class(self) -> Characters:
        negated = self._take("^")
        members: list[Characters] = []
        while not self._take("]"):
            first = self._class_atom()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._class_atom()
                if not (_is_single(first) and _is_single(last)) or first > last:
                    self._fail("has a range that is none; write \\-")
                first = characters.of((first[0][0], last[0][0]))
            members.append(first)
        found = characters.union(*members)
        return characters.complement(found) if negated else found

    def _class_atom(self) -> Characters:
        character = self._next()
        return self._escape(in_class=True) if character == "\\" else characters.of(character)

    def _escape(self, *, in_class: bool) -> Characters:
        character = self._next()
        if character.lower() in CLASSES:
            members = CLASSES[character.lower()]
            return characters.complement(members) if character.isupper() else members
        if character in CONTROLS:
            return characters.of((CONTROLS[character], CONTROLS[character]))
        if character in "pP" and self._take("{"):
            return self._property(negated=character == "P")
        if character in "xuc0":
            return self._code_point(character)
        if in_class and character == "b":
            return characters.of("\b")
        if character in SYNTAX or not (character.isalnum() or character == "_"):
            return characters.of(character)
        what = {"b": "looks back (\\b)", "B": "looks back (\\B)", "k": "refers back (\\k)"}
        if character.isdigit():
            self._fail(f"refers back (\\{character}), which cannot be enforced")
        self._fail(what.get(character, f"has \\{character}, which is no escape of ECMA-262"))

    def _property(self, *, negated: bool) -> Characters:
        end = self._text.find("}", self._at)
        name = self._text[self._at : end] if end >= 0 else ""
        members = characters.property_named(name)
        if members is None:
            self._fail(f"names a property of characters that is not known here ({name[:40]!r})")
        self._at = end + 1
        return characters.complement(members) if negated else members

    def _code_point(self, kind: str) -> Characters:
        if kind == "0":
            if self._text[self._at : self._at + 1].isdigit():
                self._fail("has an octal escape")
            return characters.of("\0")
        if kind == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                self._fail("has \\c without a letter")
            return characters.of(chr(ord(letter) % 32))
        if kind == "u" and self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : end] if end >= 0 else ""
            self._at = end + 1
            return self._point(digits, range(1, 7))
        digits = self._hex(2 if kind == "x" else 4)
        point = int(digits, 16)
        if 0xD800 <= point < 0xDC00 and self._take("\\u"):
            low = int(self._hex(4), 16)
            if not 0xDC00 <= low < 0xE000:
                self._fail("has half a surrogate pair")
            point = 0x10000 + (point - 0xD800) * 0x400 + low - 0xDC00
        return self._point(f"{point:x}", range(1, 7))

    def _hex(self, count: int) -> str:
        digits = self._text[self._at : self._at + count]
        self._at += count
        if len(digits) < count or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            self._fail("has an escape without its hexadecimal digits")
        return digits

    def _point(self, digits: str, lengths: range) -> Characters:
        right = len(digits) in lengths and all(digit in "0123456789abcdefABCDEF" for digit in digits)
        members = characters.of((int(digits, 16), int(digits, 16))) if right else characters.NONE
        if not members:
            self._fail("has an escape that names no character")
        return members


def _is_single(members: Characters) -> bool:
    return len(members) == 1 and members[0][0] == members[0][1]
