"""Reading files that describe formats, and saying what is wrong with one."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.errors import InvalidInput
from headrace.text.formats.notation import SHORTEST, Calls, Format, marker_of
from headrace.text.formats.pattern import IDENTIFIER, Piece

LARGEST = 1 << 16
"""Bytes that a file has at most."""

ID_PLACES = frozenset({"$name", "$index", "$random9", "$random24"})


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
    elif found.reasoning is not None and found.reasoning.open.strip() == found.reasoning.close.strip():
        problems.append("reasoning.open and reasoning.close are the same")
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
        and not all(len(marker_of(p[0].text)) >= SHORTEST for p in patterns)
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
