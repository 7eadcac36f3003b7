"""``message_grammar``: the grammar that holds a model to its own format, from the same data that it is read by.

Text and calls follow each other freely where calls may be made, and nothing but calls comes where they must be. A
marker that is a control token ends a text by itself; one that is spelled belongs to the lexer's word for the text
before it, since that lexer takes the longest word and does not go back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import InvalidInput
from headrace.text.formats.lark import (
    ANY_TEXT,
    SOME_TEXT,
    GrammarWriter,
    either,
    nested,
    quoted,
    sequence,
    text_pattern,
    without,
)
from headrace.text.formats.notation import Calls, Format
from headrace.text.formats.pattern import Piece
from headrace.text.formats.value_grammar import ArgumentGrammar

SOME_SPACE = "/[ \\n]{1,2}/"
CallMode = Literal["none", "may", "must"]
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


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a message may consist of.

    Attributes:
        tools: That may be called.
        calls: Whether they need not, may or must be called.
        parallel: Whether several calls may be made.
        answer: The grammar of the answer; None: any text.
    """

    tools: tuple[CallableTool, ...] = ()
    calls: CallMode = "none"
    parallel: bool = True
    answer: str | None = None


def message_grammar(
    found: Format,
    form: MessageForm,
    *,
    primed: str = "",
    specials: Mapping[str, int] | None = None,
) -> str:
    """A grammar in llguidance's form of Lark.

    Args:
        found: How the model writes.
        form: What it may write.
        primed: What of the message stands in the prompt already.
        specials: Control tokens of the vocabulary, by their texts.

    Raises:
        InvalidInput: A tool's schema cannot be enforced; ``field`` is ``tools[i]`` and the way to the keyword.
    """
    return _MessageGrammar(found, form, primed, specials or {}).source()


class _MessageGrammar:
    def __init__(self, found: Format, form: MessageForm, primed: str, specials: Mapping[str, int]) -> None:
        self._format, self._form, self._primed = found, form, primed
        markers = {text: token for text, token in specials.items() if any(text in marker for marker in found.markers)}
        self._writer = GrammarWriter(markers)
        self._known_arguments: dict[int, str] = {}

    def source(self) -> str:
        writer, form = self._writer, self._form
        thinking = self._format.reasoning is not None and self._primed.strip() == self._format.reasoning.open.strip()
        before = [self._thought_end()] if thinking else []
        if form.calls != "must" and form.answer is None:
            return writer.source(sequence(*before, self._free()))
        choices = []
        if form.calls != "none":
            choices.append(self._section())
        if form.calls != "must":
            choices.append(self._answer())
        rest = either(*choices)
        if self._format.reasoning is None or thinking:
            return writer.source(sequence(*before, self._gap(), rest))
        thought = sequence(writer.literal(self._format.reasoning.open.rstrip()), self._thought_end(), self._gap())
        first = either(*([self._section(primed=True)] if form.calls != "none" else []), *choices[-1:])
        if form.calls == "must":
            first = self._section(primed=True)
        return writer.source(either(first, sequence(writer.rule(thought), rest)))

    # --- a message of free text and calls -----------------------------------------------------------------------

    def _free(self) -> str:
        """Text, reasoning and calls, in any order; after calls that may not be followed by others, the end."""
        writer = self._writer
        entries = self._entries()
        openings = [*(marker for marker, _, _ in entries), *self._openings()]
        spelled = dict.fromkeys(opening for opening in openings if writer.is_spelled(opening))
        # Texts alone, without what begins a marker: for what a call must not be mistaken for.
        body = without(spelled)
        begun = self._begun_openings()
        if begun:
            body = f"{body} & ~/({'|'.join(map(text_pattern, begun))})(?s:.*)/"
        if self._calls.at_start:
            text = writer.terminal(self._not_a_call(ANY_TEXT))
            return text if self._form.calls == "none" else either(self._section(), text)
        text = writer.terminal(body.replace(ANY_TEXT, SOME_TEXT, 1))
        again: list[str] = []
        last: list[str] = []
        for marker, rest, repeats in entries:
            if writer.begins_special(marker):
                rule = sequence(f"{text}?", writer.literal(marker), rest)
            else:
                first = writer.split(marker)[0]
                before = writer.terminal(f"({body}) {quoted(first)}")
                rule = sequence(before, writer.literal(marker[len(first) :]), rest)
            (again if repeats else last).append(rule)
        # A text never follows a text, or one could be read in many ways.
        loop = f"({writer.rule(either(*again))})*" if again else ""
        end = writer.rule(either(f"{text}?", *last) if last else f"{text}?")
        whole = sequence(loop, end)
        return (
            either(sequence(self._section(primed=True), whole if self._form.parallel else ""), whole)
            if begun
            else whole
        )

    def _begun_openings(self) -> list[str]:
        """With what a message begins whose call was begun in the prompt, up to the first control token."""
        openings = [pattern[0].text for pattern in self._calls.patterns if self._is_begun(pattern)]
        return [re.split("[<\\[]", opening.removeprefix(self._primed))[0] for opening in openings]

    def _is_begun(self, pattern: tuple[Piece, ...]) -> bool:
        return bool(self._primed) and pattern[0].text.startswith(self._primed) and pattern[0].text != self._primed

    def _entries(self) -> list[tuple[str, str, bool]]:
        """What interrupts a text: the marker, what comes after it, and whether text may follow that."""
        found, entries = self._format, []
        if found.reasoning is not None:
            entries.append((found.reasoning.open.rstrip(), self._thought_end(), True))
        entries += [(marker, "", True) for marker in found.answer.markers if self._writer.begins_special(marker)]
        if self._form.calls != "none":
            entries += [(opening, rest, self._form.parallel) for opening, rest in self._sections()]
        return entries

    def _openings(self) -> list[str]:
        """The fixed texts with which calls begin."""
        if self._calls.begin:
            return [self._calls.begin.rstrip()]
        return [_marker(pattern) for pattern in self._calls.patterns]

    def _sections(self) -> list[tuple[str, str]]:
        """The ways in which calls begin: a fixed text, and what comes after it."""
        calls = self._calls
        if calls.begin:
            return [(calls.begin.rstrip(), sequence(self._one(_space_after(calls.begin)), self._more(), self._end()))]
        return [(marker, sequence(rest, self._more(), self._end())) for marker, rest in self._split_openings()]

    def _split_openings(self) -> list[tuple[str, str]]:
        """Calls by the fixed text that all calls of a pattern begin with."""
        out = []
        for pattern in self._calls.patterns:
            marker = _marker(pattern)
            rest = (Piece(text=pattern[0].text[len(marker) :]), *pattern[1:])
            out.append((marker, either(*(self._call(rest, tool, i) for i, tool in enumerate(self._form.tools)))))
        return out

    def _not_a_call(self, body: str) -> str:
        """Texts that do not begin like a call where nothing marks one."""
        pieces = (Piece(text=self._calls.begin), *self._calls.patterns[0])
        if self._calls.records:
            record = self._calls.records[0]
            pieces = (Piece(text=_before_name(record.template)),)
        begin = ""
        for piece in pieces:
            begin += (
                r"[\w.\-]+" if piece.is_field else r"\s*".join(text_pattern(c) for c in piece.text if not c.isspace())
            )
            if piece.is_field:
                begin += r"\s*\("
                break
        return rf"{body} & ~/\s*{begin}(?s:.*)/"

    # --- calls --------------------------------------------------------------------------------------------------

    @property
    def _calls(self) -> Calls:
        assert self._format.calls is not None
        return self._format.calls

    def _section(self, *, primed: bool = False) -> str:
        """All calls of a message. ``primed``: what stands in the prompt is not written again."""
        calls = self._calls
        if calls.begin and not calls.at_start:
            return sequence(self._writer.literal(calls.begin), self._one(""), self._more(), self._end())
        first = self._one(calls.begin, self._primed if primed else "")
        return sequence(first, self._more(), self._end())

    def _one(self, before: str, primed: str = "") -> str:
        """A call, with the text that stands before it, which is one word with the call's own for the lexer."""
        known = self._calls.patterns
        if primed and self._form.calls == "may":  # all others are entered from the text
            known = tuple(pattern for pattern in known if self._is_begun(pattern)) or known
        patterns = [_after(primed, (Piece(text=before), *pattern)) for pattern in known]
        tools = enumerate(self._form.tools)
        return self._writer.rule(either(*(self._call(p, tool, i) for i, tool in tools for p in patterns)))

    def _more(self) -> str:
        """Further calls."""
        if not (self._form.parallel and self._calls.parallel):
            return ""
        return f"({self._one(self._calls.separator)})*"

    def _end(self) -> str:
        return self._writer.literal(self._calls.end)

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
            rules.append(
                self._arguments(tool, index) if piece.name == "arguments" else self._writer.terminal(piece.name)
            )
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
        dialect_text: list[Piece] = []
        _flatten(self._calls.records[0].template, dialect_text)
        return [part for piece in dialect_text for part in self._filled(piece, tool)]

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

    # --- reasoning and answer -----------------------------------------------------------------------------------

    def _thought_end(self) -> str:
        """Reasoning that has been opened, up to what closes it, and some white space."""
        assert self._format.reasoning is not None
        close = self._format.reasoning.close.strip()
        if self._writer.begins_special(close):
            return sequence(f"{self._writer.terminal(SOME_TEXT)}?", self._writer.literal(close), self._space())
        return sequence(self._writer.terminal(f"({without([close])}) {quoted(close)}"), self._space())

    def _space(self) -> str:
        """White space between reasoning and what comes next, where that is not free text."""
        free = self._form.calls != "must" and self._form.answer is None
        return "" if free else f"{self._writer.terminal(SOME_SPACE)}?"

    def _gap(self) -> str:
        """Markers that may stand between reasoning and what comes next."""
        openings = [pattern[0].text for pattern in (self._calls.patterns if self._format.calls else ())]
        gaps = [m for m in self._format.answer.markers if any(text.startswith(m) and text != m for text in openings)]
        return f"({either(*(self._writer.literal(marker) for marker in gaps))})?" if gaps else ""

    def _answer(self) -> str:
        answer = self._format.answer
        body = self._writer.terminal(ANY_TEXT) if self._form.answer is None else nested(self._form.answer)
        return sequence(self._writer.literal(answer.open), self._writer.rule(body), self._writer.literal(answer.close))


def _flatten(template: Any, out: list[Piece]) -> None:
    """A record's template as text with places in it, written as JSON."""
    if isinstance(template, Mapping):
        for i, (key, value) in enumerate(template.items()):
            out.append(Piece(text=("{" if i == 0 else ", ") + f'"{key}": '))
            _flatten(value, out)
        out.append(Piece(text="}"))
    elif template == "$arguments":
        out.append(Piece(name="arguments"))
    elif isinstance(template, str) and template.startswith("$"):
        out += [Piece(text='"'), Piece(name=template[1:]), Piece(text='"')]
    else:
        out.append(Piece(text=quoted(template) if isinstance(template, str) else str(template)))


def _before_name(template: Mapping[str, Any]) -> str:
    pieces: list[Piece] = []
    _flatten(template, pieces)
    text = ""
    for piece in pieces:
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
