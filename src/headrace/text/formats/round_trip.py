"""What is written in a format must be read as what it was: else the format contradicts itself."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import ToolCall, calls_in, reasoning_of
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.writer import write_calls

_ARGUMENTS: tuple[dict[str, Any], ...] = ({"city": "Oslo", "days": 2}, {}, {"city": "Rome"})
_THOUGHT = "It depends."


def contradiction(found: Format) -> str | None:
    """What a format writes and does not read back; None: it reads reasoning and calls as they were written."""
    text, reasoning, calls = "", found.reasoning, found.calls
    if reasoning is not None:
        text = reasoning.open + _THOUGHT + reasoning.close
    some = () if calls is None else _ARGUMENTS[: None if calls.parallel else 1]
    if calls is not None:
        try:
            text += write_calls(calls, [ToolCall("get_weather", json.dumps(one), "") for one in some])
        except InvalidInput as error:
            return f"calls: {error}"
    reader = FormatReader(found, any_tool=True)
    pieces = [*reader.push(text), *reader.finish()]
    if reasoning is not None and reasoning_of(pieces) != _THOUGHT:
        return f"reasoning is not read back from {text!r}"
    made = [json.loads(call.arguments) for call in calls_in(pieces)]
    return None if made == list(some) else f"calls: {len(some)} calls are not read back from {text!r}"
