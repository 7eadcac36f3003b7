"""The messages of a chat, and their plain form for a chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.api.fields import Request, refused

_TEXT_JOINT = "\n"


class CacheBreakpoint(Request, frozen=True):
    """OpenAI's mark of the end of a reusable prefix. Accepted; every page boundary is one here."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class TextPart(Request, frozen=True):
    """A piece of text."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class AssistantTextPart(Request, frozen=True, tag_field="type", tag="text"):
    """A piece of an earlier answer."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class RefusalPart(Request, frozen=True, tag_field="type", tag="refusal"):
    """An earlier refusal of the assistant."""

    refusal: str


TextContent = str | Annotated[list[TextPart], Meta(min_length=1)]


class DeveloperMessage(Request, frozen=True, tag_field="role", tag="developer"):
    """Instructions of the application's developer."""

    content: TextContent
    name: str | None = None


class SystemMessage(Request, frozen=True, tag_field="role", tag="system"):
    """Instructions that hold for the whole conversation."""

    content: TextContent
    name: str | None = None


class UserMessage(Request, frozen=True, tag_field="role", tag="user"):
    """What the user says. Text only: images, audio and files are refused."""

    content: TextContent
    name: str | None = None


class FunctionCall(Request, frozen=True):
    """A call that the assistant made.

    Attributes:
        name: Name of the function.
        arguments: The arguments as a string of JSON, as the assistant wrote it.
    """

    name: str
    arguments: str


class FunctionToolCall(Request, frozen=True, tag_field="type", tag="function"):
    """A function call with the id that a tool message answers to."""

    id: str
    function: FunctionCall


class CustomCall(Request, frozen=True):
    """A call with free text as input."""

    name: str
    input: str


class CustomToolCall(Request, frozen=True, tag_field="type", tag="custom"):
    """A custom tool call with the id that a tool message answers to."""

    id: str
    custom: CustomCall


class AssistantMessage(Request, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer. Content is required unless there are tool calls.

    ``reasoning_content``, or ``reasoning`` as others call it, is shown to models whose chat template wants it.
    """

    content: str | Annotated[list[AssistantTextPart | RefusalPart], Meta(min_length=1)] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[FunctionToolCall | CustomToolCall] | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: Annotated[Any, refused([None], "Audio is not supported: leave audio out.")] = None


class ToolMessage(Request, frozen=True, tag_field="role", tag="tool"):
    """The result of a tool call."""

    content: TextContent
    tool_call_id: str


class FunctionMessage(Request, frozen=True, tag_field="role", tag="function"):
    """The result of a function call (OpenAI's older form)."""

    name: str
    content: str | None = None


Message = DeveloperMessage | SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


def template_messages(messages: list[Message], *, developer_as: str = "system") -> list[dict[str, Any]]:
    """The messages as plain dictionaries, the form that chat templates take.

    Text parts are joined by a newline, since the templates of text models expect a string. Tool-call arguments that
    are JSON objects are decoded: templates print them with their own spacing (the convention of Transformers).

    Args:
        messages: The request's messages.
        developer_as: Role under which developer messages appear; most templates know ``system`` only.
    """
    return [_plain(message, developer_as) for message in messages]


def _plain(message: Message, developer_as: str) -> dict[str, Any]:
    role = str(message.__struct_config__.tag)
    plain: dict[str, Any] = {
        "role": developer_as if role == "developer" else role,
        "content": _text(message.content),
    }
    name = getattr(message, "name", None)
    if name is not None:
        plain["name"] = name
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        if message.refusal is not None and message.content is None:
            plain["content"] = message.refusal
        if message.tool_calls:
            plain["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
        reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
        if reasoning is not None:
            plain["reasoning_content"] = reasoning
        if message.function_call is not None:
            plain["function_call"] = _plain_function(message.function_call)
    return plain


def _text(content: str | list[Any] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return _TEXT_JOINT.join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def _plain_call(call: FunctionToolCall | CustomToolCall) -> dict[str, Any]:
    if isinstance(call, CustomToolCall):
        # Templates know functions only: the free text stands where the arguments would.
        function: dict[str, Any] = {"name": call.custom.name, "arguments": call.custom.input}
        return {"id": call.id, "type": "function", "function": function}
    return {"id": call.id, "type": "function", "function": _plain_function(call.function)}


def _plain_function(call: FunctionCall) -> dict[str, Any]:
    arguments: Any = call.arguments
    try:
        decoded = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    return {"name": call.name, "arguments": decoded if isinstance(decoded, dict) else arguments}
