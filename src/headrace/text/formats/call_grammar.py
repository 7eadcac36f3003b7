"""``CallGrammar``: the grammar of the calls of a message, for some tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.lark import ANY_TEXT, GrammarWriter, either, quoted, sequence, text_pattern
from headrace.text.formats.notation import Calls
from headrace.text.formats.pattern import Piece
from headrace.text.formats.value_grammar import ArgumentGrammar

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called.

    Attributes:
        name: Of it.
        parameters: JSON Schema of its arguments.
    """

    name: str
    parameters: Mapping[str, Any]


class CallGrammar:
    """Writes the rules of calls.

    Args:
        writer: Takes them.
        calls: How calls are written.
        tools: That may be called.
        parallel: Several calls may be made.
        primed: What of the message stands in the prompt already.
    """

    def __init__(
        self, writer: GrammarWriter, calls: Calls, tools: tuple[CallableTool, ...], *, parallel: bool, primed: str
    ) -> None:
        self._writer, self._calls, self._tools, self._primed = writer, calls, tools, primed
        self._parallel = parallel and calls.parallel
        self._known_arguments: dict[int, str] = {}

    # --- all calls of a message ---------------------------------------------------------------------------------

    def section(self) -> str:
        """All calls of a message, in one place."""
        begin = self._calls.begin
        if begin and not self._calls.at_start:
            return sequence(self._writer.literal(begin), self._one(""), self._more(), self._end())
        return sequence(self._one(begin), self._more(), self._end())

    def begun_section(self, *, begun_only: bool = False) -> str:
        """The same at the beginning of a message, of which a part may stand in the prompt.

        Args:
            begun_only: Only calls that the prompt has begun.
        """
        begin = self._calls.begin
        if not self._primed or (begin and not self._calls.at_start):
            return self.section()
        patterns = tuple(p for p in self._calls.patterns if self._is_begun(p)) if begun_only else self._calls.patterns
        return sequence(self._one(begin, self._primed, patterns), self._more(), self._end())

    def openings(self) -> list[str]:
        """The fixed texts with which calls begin."""
        if self._calls.begin:
            return [self._calls.begin.rstrip()]
        return [_marker(pattern) for pattern in self._calls.patterns]

    def sections(self) -> list[tuple[str, str]]:
        """All calls of a message: each fixed text that they may begin with, and what comes after it."""
        begin = self._calls.begin
        if begin:
            return [(begin.rstrip(), sequence(self._one(_space_after(begin)), self._more(), self._end()))]
        out = []
        for pattern in self._calls.patterns:
            marker = _marker(pattern)
            rest = (Piece(text=pattern[0].text[len(marker) :]), *pattern[1:])
            first = self._any_tool((rest,))
            out.append((marker, sequence(first, self._more(), self._end())))
        return out

    def begun_openings(self) -> list[str]:
        """With what a message begins whose call was begun in the prompt, up to the first control token."""
        openings = [pattern[0].text for pattern in self._calls.patterns if self._is_begun(pattern)]
        return [re.split(r"[<\[]", opening.removeprefix(self._primed))[0] for opening in openings]

    def not_a_call(self) -> str:
        """Texts that do not begin like a call, where nothing marks one."""
        pieces = (Piece(text=self._calls.begin), *self._calls.patterns[0])
        if self._calls.records:
            pieces = (Piece(text=_before_name(self._flat_record())),)
        begin = ""
        for piece in pieces:
            if piece.is_field:
                begin += r"[\w.\-]+\s*\("
                break
            begin += r"\s*".join(text_pattern(char) for char in piece.text if not char.isspace())
        return rf"{ANY_TEXT} & ~/\s*{begin}(?s:.*)/"

    def _is_begun(self, pattern: tuple[Piece, ...]) -> bool:
        return bool(self._primed) and pattern[0].text.startswith(self._primed) and pattern[0].text != self._primed

    def _more(self) -> str:
        """Further calls."""
        return f"({self._one(self._calls.separator)})*" if self._parallel else ""

    def _end(self) -> str:
        return self._writer.literal(self._calls.end)

    # --- one call -----------------------------------------------------------------------------------------------

    def _one(self, before: str, primed: str = "", patterns: tuple[tuple[Piece, ...], ...] = ()) -> str:
        """A call, with the text that stands before it, which is one word with the call's own for the lexer."""
        known = patterns or self._calls.patterns
        return self._any_tool(tuple(_after(primed, (Piece(text=before), *pattern)) for pattern in known))

    def _any_tool(self, patterns: tuple[tuple[Piece, ...], ...]) -> str:
        tools = enumerate(self._tools)
        return self._writer.rule(either(*(self._call(p, tool, i) for i, tool in tools for p in patterns)))

    def _call(self, pattern: tuple[Piece, ...], tool: CallableTool, index: int) -> str:
        """A call of one tool. Fixed texts next to each other are one word for the lexer."""
        parts: list[Piece] = []
        for piece in pattern:
            parts += self._record(tool) if piece.name == "record" else self._filled(piece, tool)
        rules, text = [], ""
        for piece in parts:
            if not piece.is_field:
                text += piece.text
                continue
            rules.append(self._writer.literal(text))
            text = ""
            is_arguments = piece.name == "arguments"
            rules.append(self._arguments(tool, index) if is_arguments else self._writer.terminal(piece.name))
        rules.append(self._writer.literal(text))
        return self._writer.rule(sequence(*rules))

    def _filled(self, piece: Piece, tool: CallableTool) -> list[Piece]:
        """A piece of a pattern for one tool: its name is fixed text, an id a terminal."""
        if piece.name == "name":
            return [Piece(text=tool.name)]
        if piece.name == "id":
            before, place, after = self._calls.id.replace("$name", tool.name).partition("$")
            kind = place + after
            length = kind.removeprefix("$random")
            pattern = "/[0-9]{1,4}/" if kind == "$index" else f"/[A-Za-z0-9]{{{length or 9}}}/"
            return [Piece(text=before), Piece(name=pattern)]
        return [piece]

    def _record(self, tool: CallableTool) -> list[Piece]:
        """The pieces of a call that is an object."""
        return [part for piece in self._flat_record() for part in self._filled(piece, tool)]

    def _flat_record(self) -> list[Piece]:
        return _flat(self._calls.records[0].template, dialect_of(self._calls.arguments))

    def _arguments(self, tool: CallableTool, index: int) -> str:
        if index not in self._known_arguments:
            schema = tool.parameters or ANY_OBJECT
            try:
                grammar = ArgumentGrammar(self._writer, self._calls, schema)
                self._known_arguments[index] = grammar.arguments()
            except InvalidInput as error:
                field = f"tools[{index}].function.parameters{error.field or ''}"
                raise InvalidInput(error.message, field=field, code=error.code) from error
        return self._known_arguments[index]


def _flat(template: Any, dialect: Dialect) -> list[Piece]:
    """A record's template as text with places in it, written as JSON."""
    if isinstance(template, Mapping):
        out = []
        for i, (key, value) in enumerate(template.items()):
            before = "{" if i == 0 else dialect.comma
            out += [Piece(text=before + quoted(key) + dialect.colon), *_flat(value, dialect)]
        return [*out, Piece(text="}")]
    if template == "$arguments":
        return [Piece(name="arguments")]
    if isinstance(template, str) and template.startswith("$"):
        return [Piece(text='"'), Piece(name=template[1:]), Piece(text='"')]
    return [Piece(text=quoted(template) if isinstance(template, str) else str(template))]


def _before_name(record: Iterable[Piece]) -> str:
    """The text of a record up to the tool's name."""
    text = ""
    for piece in record:
        if piece.is_field:
            break
        text += piece.text
    return text.rstrip('"').rstrip()


def _marker(pattern: tuple[Piece, ...]) -> str:
    """The text with which a call is seen to begin: of a pattern's first text, the first line."""
    return pattern[0].text.split("\n")[0].rstrip()


def _after(primed: str, pattern: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A pattern without the text that stands already."""
    text = ""
    for i, piece in enumerate(pattern):
        if piece.is_field:
            return (Piece(text=text.removeprefix(primed)), *pattern[i:])
        text += piece.text
    return (Piece(text=text.removeprefix(primed)),)


def _space_after(text: str) -> str:
    return text[len(text.rstrip()) :]
