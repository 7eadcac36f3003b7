"""``Format``: how a model writes tool calls and reasoning, as a file says it (docs/formats.md)."""

from __future__ import annotations

import re
import tomllib
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from headrace.errors import InvalidInput
from headrace.text.formats.pattern import IDENTIFIER, Piece, RecordForm, parse_pattern, parse_record

LARGEST = 1 << 16  # bytes of a file
SHORTEST = 3  # characters of a marker
ID_PLACES = frozenset({"$name", "$index", "$random9", "$random24"})


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
        return _marker(self.begin)

    @cached_property
    def openings(self) -> tuple[str, ...]:
        """With what a call is found to begin, a text for each pattern that begins with text."""
        found = [_marker(pattern[0].text) for pattern in self.patterns if pattern]
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
        tools: Joined to the system message; ``$tools`` is the list of tools as JSON.
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


def read_format(source: str, name: str) -> Format:
    """The format that a file describes.

    Args:
        source: TOML.
        name: Of the file, for errors.

    Raises:
        InvalidInput: It is not a format; the message says where and why.
    """
    if len(source.encode()) > LARGEST:
        raise InvalidInput(f"{name} has more than {LARGEST} bytes", field="tool_format")
    try:
        table = tomllib.loads(source)
        found = msgspec.convert(table, Format)
    except RecursionError as error:
        raise InvalidInput(f"{name} is nested too deeply", field="tool_format") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{name} is not TOML: {error}", field="tool_format") from error
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name} is not a format: {error}", field="tool_format") from error
    for problem in _problems(found):
        raise InvalidInput(f"{name} is not a format: {problem}", field="tool_format")
    return found


def load_format(path: Path) -> Format:
    """The format in a file.

    Raises:
        InvalidInput: The file cannot be read, or is not a format.
    """
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}", field="tool_format") from error
    return read_format(source, path.name)


def _problems(found: Format) -> list[str]:
    """What a type cannot say."""
    problems = []
    if found.reasoning is not None and not (found.reasoning.open.strip() and found.reasoning.close.strip()):
        problems.append("reasoning needs open and close")
    if not all(marker.strip() for marker in found.answer.markers):
        problems.append("a marker is empty")
    return problems + ([] if found.calls is None else _call_problems(found.calls))


def _call_problems(calls: Calls) -> list[str]:
    try:
        patterns, records, pair = calls.patterns, calls.records, calls.pair
    except ValueError as error:
        return [str(error)]
    if not patterns or not all(patterns):
        return ["calls.call is empty"]
    problems = [problem for pattern in patterns for problem in _pattern_problems(pattern, calls.arguments.syntax)]
    if any(Piece(name="record") in pattern for pattern in patterns) != bool(records):
        problems.append("calls.call has $record if and only if calls.record is given")
    if (calls.arguments.syntax == "pairs") != bool(pair) or (pair and not _is_pair(pair)):
        problems.append(
            "calls.arguments.pair is given if and only if syntax is pairs; it holds $key and $value, in this order, "
            "with text before, between and behind them"
        )
    if (
        any({piece.name for piece in pattern} & {"id", "name"} == {"id"} for pattern in patterns)
        and "$name" not in calls.id
    ):
        problems.append("calls.call has $id and no $name, so calls.id must have $name")
    if set(re.findall(r"\$[a-z]+[0-9]*", calls.id)) - ID_PLACES:
        problems.append(f"calls.id may have {', '.join(sorted(ID_PLACES))} and no other places")
    if not calls.arguments.quote.strip():
        problems.append("calls.arguments.quote is blank")
    if (
        not calls.at_start
        and not calls.begin.strip()
        and not all(len(_marker(p[0].text)) >= SHORTEST for p in patterns)
    ):
        problems.append(
            "nothing marks a call: give calls.begin, or begin calls.call with a text of three characters or more, "
            "or set calls.at_start"
        )
    return problems


def _pattern_problems(pattern: tuple[Piece, ...], syntax: str) -> list[str]:
    fields = [piece.name for piece in pattern if piece.is_field]
    complete = {"record"}, {"name", "arguments"}, {"id", "arguments"}, {"id", "name", "arguments"}
    if len(fields) != len(set(fields)) or set(fields) not in complete:
        return ["calls.call needs $name (or an $id that holds it) and $arguments, or $record, each once"]
    for place, following in pairwise(pattern):
        if place.name in ("name", "id") and following.text and IDENTIFIER.match(following.text[0]):
            return [f"text behind ${place.name} cannot begin with {following.text[0]!r}, which may be part of it"]
    if syntax == "json":
        return []
    problems = ["calls.record is JSON, so calls.arguments.syntax must be json"] if "record" in fields else []
    if fields[-1] != "arguments":
        problems.append(f"calls.call has $arguments last, for they are {syntax}")
    at = next((i for i, piece in enumerate(pattern) if piece.name == "arguments"), 0)
    before, after = pattern[at - 1].text, pattern[at + 1].text if at + 1 < len(pattern) else ""
    if syntax == "python" and not (at and before.endswith("(") and after.startswith(")")):
        problems.append("calls.call has $arguments in parentheses, for they are python")
    return problems


def _is_pair(pair: tuple[Piece, ...]) -> bool:
    fixed = [piece.text.strip() for piece in pair]
    return [piece.name for piece in pair] == ["", "key", "", "value", ""] and all(fixed[::2])


def _marker(text: str) -> str:
    """What is looked for in a message to find a text: its first line without brackets that open a value.

    For models are free with the white space around those.
    """
    line = text.strip().split("\n")[0]
    short = line.rstrip(" [{(")
    return short if len(short) >= SHORTEST else line.rstrip()


def _several(one_or_more: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one_or_more,) if isinstance(one_or_more, str) else one_or_more
