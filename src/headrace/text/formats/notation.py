"""``Format``: how a model writes tool calls and reasoning, as a file says it (docs/formats.md)."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from headrace.text.formats.pattern import Piece, RecordForm, parse_pattern, parse_record

SHORTEST = 3
"""Characters that a marker has at least."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A table of a format's file."""


class Reasoning(_Table, frozen=True):
    """What stands around reasoning.

    Attributes:
        open: Before it.
        close: After it.
    """

    open: str
    close: str


class Answer(_Table, frozen=True):
    """What stands around the answer itself.

    Attributes:
        open: Before it; a grammar writes it.
        close: After it; a grammar writes it.
        markers: Texts that belong to the format and not to the answer, wherever they stand.
    """

    open: str = ""
    close: str = ""
    markers: tuple[str, ...] = ()


class Arguments(_Table, frozen=True):
    """How the arguments of a call are written.

    Attributes:
        syntax: ``json``: an object; ``python``: keyword arguments; ``pairs``: one after the other as ``pair`` says.
        pair: Pattern of an argument, with ``$key`` and ``$value``. A string is written as it is, other values as JSON.
        literals: How true, false and null are written: as JSON does, or as Python.
        quote: In JSON: what stands before and after a string, which then has no escapes.
        bare_keys: In JSON: keys are written without quotes.
        spaced: In JSON: a space follows commas and colons.
        sorted: Arguments are written in the order of their names.
    """

    syntax: Literal["json", "python", "pairs"] = "json"
    pair: str | None = None
    literals: Literal["json", "python"] = "json"
    quote: str = '"'
    bare_keys: bool = False
    spaced: bool = True
    sorted: bool = False


class Calls(_Table, frozen=True):
    """How tool calls are written.

    Attributes:
        call: Pattern of a call, with ``$name``, ``$arguments`` and ``$id``, or with ``$record``. Of several, a grammar
            and a writer use the first; all are read.
        record: What ``$record`` stands for: a JSON object, with ``$name``, ``$arguments`` and ``$id`` as values.
        begin: Before the first call.
        separator: Between calls.
        end: After the last one.
        at_start: Calls are the whole message, for nothing marks them.
        parallel: A message may hold several.
        id: What a call's id looks like, with ``$name``, ``$index`` and ``$random9`` or ``$random24`` (so many
            letters and digits).
        arguments: How arguments are written.
    """

    call: str | tuple[str, ...]
    record: str | tuple[str, ...] = ()
    begin: str = ""
    separator: str = ""
    end: str = ""
    at_start: bool = False
    parallel: bool = True
    id: str = "call_$random24"
    arguments: Arguments = Arguments()

    @cached_property
    def patterns(self) -> tuple[tuple[Piece, ...], ...]:
        """The patterns of ``call``, read."""
        return tuple(parse_pattern(pattern) for pattern in _several(self.call))

    @cached_property
    def begin_marker(self) -> str:
        """With what the first call is found to begin; empty if nothing stands before it."""
        return marker_of(self.begin)

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """With what a call is found to begin, a text for each pattern that begins with text."""
        found = [marker_of(pattern[0].text) for pattern in self.patterns if pattern]
        return tuple(dict.fromkeys(opening for opening in found if opening))

    @cached_property
    def records(self) -> tuple[RecordForm, ...]:
        """The forms of ``record``, read."""
        return tuple(parse_record(record) for record in _several(self.record))

    @cached_property
    def pair(self) -> tuple[Piece, ...]:
        """The pattern of an argument, read."""
        return parse_pattern(self.arguments.pair or "")


class Prompt(_Table, frozen=True):
    """What a model is told whose chat template knows no tools.

    Attributes:
        tools: Joined to the system message; ``$tools`` is the list of tools as JSON, ``$example`` a call.
        result: The result of a call, as a message of the user; ``$content``.
    """

    tools: str
    result: str


class Format(_Table, frozen=True):
    """How a model writes what is not plain text.

    Attributes:
        name: What it is called.
        models: Which models write so, for people.
        detect: Texts that the chat template of such a model holds, all of them.
        reasoning: How reasoning is marked; None: there is none.
        answer: What stands around the answer.
        calls: How tools are called; None: they are not.
        prompt: For models whose chat template knows no tools.
    """

    name: str
    models: str
    detect: tuple[str, ...] = ()
    reasoning: Reasoning | None = None
    answer: Answer = Answer()
    calls: Calls | None = None
    prompt: Prompt | None = None

    @cached_property
    def markers(self) -> tuple[str, ...]:
        """All fixed texts of the format, white space around them left out."""
        texts = list(self.answer.markers)
        if self.reasoning is not None:
            texts += [self.reasoning.open, self.reasoning.close]
        if self.calls is not None:
            texts += [self.calls.begin, self.calls.end]
            patterns = (*self.calls.patterns, self.calls.pair)
            texts += [piece.text for pattern in patterns for piece in pattern]
            texts.append(self.calls.arguments.quote)
        return tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))


def marker_of(text: str) -> str:
    """What is looked for in a message to find a text: its first line without brackets that open a value.

    For models are free with the white space around those.
    """
    line = text.strip().split("\n")[0]
    short = line.rstrip(" [{(")
    return short if len(short) >= SHORTEST else line.rstrip()


def _several(one_or_more: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one_or_more,) if isinstance(one_or_more, str) else one_or_more
