"""Which format a model writes, by its chat template: the one that reads back what the template writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.chat_template import ChatTemplate
from headrace.text.formats.call_reader import Tools
from headrace.text.formats.catalog import GENERIC, formats
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import MessagePiece, ToolCall
from headrace.text.formats.reader import FormatReader, primed_by
from headrace.text.formats.writer import new_id

LONGEST_MARKER = 64

_QUESTION = {"role": "user", "content": "What is the weather?"}
_ARGUMENTS: Sequence[dict[str, Any]] = ({"city": 'Aa "b" <c>'}, {"city": "Ålesund"})
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def detect_format(template: ChatTemplate | None) -> Format:
    """The format of a model with this chat template; the generic one if none is known to be its."""
    if template is not None:
        candidates = [one for one in formats().values() if one.detect and all(t in template.source for t in one.detect)]
        for candidate in candidates:
            if not format_problem(template, candidate):
                return candidate
        # A template that shows no calls may still say how reasoning is written.
        for candidate in candidates:
            if candidate.calls is None or (candidate.reasoning is not None and not writes_calls(template)):
                return candidate
    return formats()[GENERIC]


def shows_tools(template: ChatTemplate) -> bool:
    """Whether a template tells the model of tools."""
    try:
        return TOOL["function"]["name"] in template.render([_QUESTION], tools=[TOOL])
    except InvalidInput:
        return False


def writes_calls(template: ChatTemplate) -> bool:
    """Whether a template writes the calls that a message of the assistant made."""
    name = "zqx_lookup"  # not one of those that were offered
    call = _message([ToolCall(name, json.dumps(_ARGUMENTS[0]), "abcdefghi")])
    try:
        return name in template.render([_QUESTION, call], tools=[TOOL], add_generation_prompt=False)
    except InvalidInput:
        return False


def format_problem(template: ChatTemplate, found: Format) -> str:
    """Why calls that a template writes are not read back by a format as they were; empty if they are."""
    if found.calls is None:
        return "the format has no calls"
    count = 2 if found.calls.parallel else 1
    name = TOOL["function"]["name"]
    made = [ToolCall(name, json.dumps(_ARGUMENTS[i]), new_id(found.calls, name, i)) for i in range(count)]
    try:
        pieces = read_back(template, found, [_QUESTION], _message(made), [TOOL])
    except InvalidInput as error:
        return f"the template cannot write calls: {error}"
    read = [piece for piece in pieces if isinstance(piece, ToolCall)]
    if [(call.name, json.loads(call.arguments)) for call in read] != [
        (call.name, json.loads(call.arguments)) for call in made
    ]:
        return f"the template writes {made}, and what is read is {read}"
    return ""


def read_back(
    template: ChatTemplate,
    found: Format,
    before: Sequence[dict[str, Any]],
    answer: dict[str, Any],
    tools: Sequence[dict[str, Any]],
    kinds: Tools | None = None,
) -> list[MessagePiece]:
    """What a format reads in the text that a template writes for an answer.

    Args:
        template: Writes it.
        found: Reads it.
        before: The conversation up to the answer.
        answer: The assistant's message.
        tools: The tools that were offered.
        kinds: What the arguments of each tool may be; None: anything, of any tool.

    Raises:
        InvalidInput: The template refuses the conversation.
    """
    prompt = template.render(before, tools=tools)
    whole = template.render([*before, answer], tools=tools, add_generation_prompt=False)
    begin = _whole_markers(found, whole, _agree(prompt, whole))
    reader = FormatReader(found, kinds, primed_by(found, whole[:begin]), any_tool=kinds is None)
    return reader.push(whole[begin:]) + reader.finish()


def _agree(one: str, other: str) -> int:
    """How many of their first characters are the same."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _whole_markers(found: Format, text: str, at: int) -> int:
    """``at``, or the beginning of the marker in whose middle it is."""
    for back in range(1, min(LONGEST_MARKER, at) + 1):
        if any(len(marker) > back and text.startswith(marker, at - back) for marker in found.markers):
            return at - back
    return at


def _message(made: Sequence[ToolCall]) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in made
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
