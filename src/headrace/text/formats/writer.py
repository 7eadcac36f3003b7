"""Writing calls as a format has them: for models whose chat template cannot, and to check formats with."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.call_reader import CallReader, name_in
from headrace.text.formats.dialect import Dialect, dialect_of
from headrace.text.formats.notation import Calls
from headrace.text.formats.pattern import Piece, RecordForm
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.values import Verdict

_LETTERS = string.ascii_letters + string.digits
_RANDOM = {"$random9": 9, "$random24": 24}


def write_calls(calls: Calls, made: Sequence[ToolCall]) -> str:
    """Calls as the model would write them.

    Args:
        calls: How calls are written.
        made: The calls; the arguments of each are JSON, an object.

    Raises:
        InvalidInput: Arguments are no JSON object, or cannot be written in this format.
    """
    if not made:
        return ""
    written = [write_call(calls, call, index) for index, call in enumerate(made)]
    return calls.begin + calls.separator.join(written) + calls.end


def write_call(calls: Calls, call: ToolCall, index: int) -> str:
    """One call of a message, the ``index``-th; see ``write_calls``."""
    arguments = _object(call.arguments)
    if calls.arguments.sorted:
        arguments = _sorted(arguments)
    identifier = call.id or ""
    if not identifier or ("$name" in calls.id and name_in(calls.id, identifier) != call.name):
        identifier = new_id(calls, call.name, index)
    dialect = dialect_of(calls.arguments)
    try:
        fields = {"name": call.name, "id": identifier, "arguments": _arguments(calls, dialect, arguments)}
        if calls.records:
            fields["record"] = _record(calls.records[0], dialect, call.name, arguments, identifier)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be written in this model's format: {error}", field="arguments") from error
    written = "".join(fields[piece.name] if piece.is_field else piece.text for piece in calls.patterns[0])
    if not _is_read(calls, written, call.name, arguments):
        raise InvalidInput("cannot be written in this model's format: they would be read as others", field="arguments")
    return written


def _is_read(calls: Calls, written: str, name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is read as it was meant; not every format has a way to write every text."""
    kinds = {key: frozenset({"string" if isinstance(value, str) else "other"}) for key, value in arguments.items()}
    reader = CallReader(calls, "", {name: kinds}, 0)
    verdict, end = reader.read(written, final=True)
    read = reader.call
    whole = verdict is Verdict.DONE and end >= len(written.rstrip())
    return whole and read is not None and read.name == name and json.loads(read.arguments) == arguments


def new_id(calls: Calls, name: str, index: int) -> str:
    """An id for a call that has none.

    Args:
        calls: Says what ids look like.
        name: Of the tool.
        index: Which of the message's calls it is.
    """
    made = calls.id.replace("$name", name).replace("$index", str(index))
    for place, length in _RANDOM.items():
        made = made.replace(place, "".join(secrets.choice(_LETTERS) for _ in range(length)))
    return made


def _sorted(value: Any) -> Any:
    """A value whose members are in the order of their names, as Jinja's ``dictsort`` has it."""
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _sorted(item) for key, item in sorted(value.items(), key=lambda item: item[0].lower())}


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"must be JSON: {error}", field="arguments") from error
    if not isinstance(value, dict):
        raise InvalidInput("must be a JSON object", field="arguments")
    return value


def _arguments(calls: Calls, dialect: Dialect, arguments: Mapping[str, Any]) -> str:
    if calls.arguments.syntax == "python":
        return ", ".join(f"{key}={dialect.write(value)}" for key, value in arguments.items())
    if calls.arguments.syntax == "pairs":
        return "".join(_pair(calls.pair, dialect, key, value) for key, value in arguments.items())
    return dialect.write(dict(arguments))


def _pair(pattern: Sequence[Piece], dialect: Dialect, key: str, value: Any) -> str:
    fields = {"key": key, "value": dialect.bare(value)}
    return "".join(fields[piece.name] if piece.is_field else piece.text for piece in pattern)


def _record(form: RecordForm, dialect: Dialect, name: str, arguments: Mapping[str, Any], identifier: str) -> str:
    values = {"$name": name, "$arguments": dict(arguments), "$id": identifier}

    def filled(template: Any) -> Any:
        if isinstance(template, Mapping):
            return {key: filled(item) for key, item in template.items()}
        return values.get(template, template) if isinstance(template, str) else template

    return dialect.write(filled(form.template))
