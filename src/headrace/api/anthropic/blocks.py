"""Content blocks and messages, as requests hold them (Anthropic API reference, "Messages")."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from headrace.api.fields import Request, refused

_NO_TOOLSETS = "There are no toolsets here: leave it out."


class CacheControl(Request, frozen=True):
    """A mark of the end of a reusable prefix. Accepted; every page boundary is one here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlockParam(Request, frozen=True, tag_field="type", tag="text"):
    """A piece of text. ``citations`` of an earlier answer are not shown to the model."""

    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class PlainTextBlock(Request, frozen=True):
    """A piece of text, where there is nothing else."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = None


class ThinkingBlockParam(Request, frozen=True, tag_field="type", tag="thinking"):
    """Earlier reasoning, shown to models whose chat template wants it. The signature is not verified."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlockParam(Request, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only its maker can read. Accepted, not used."""

    data: str


class ToolUseBlockParam(Request, frozen=True, tag_field="type", tag="tool_use"):
    """A call that the model made; a tool_result answers to its id."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: Annotated[Any, refused([None, {"type": "direct"}], "Only the model itself calls tools.")] = None
    toolset_name: Annotated[Any, refused([None], _NO_TOOLSETS)] = None


class ToolResultBlockParam(Request, frozen=True, tag_field="type", tag="tool_result"):
    """What a tool returned. Text only. With ``is_error`` the model is shown that it is one."""

    tool_use_id: str
    content: str | list[PlainTextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: Annotated[Any, refused([None], _NO_TOOLSETS)] = None


UserContent = str | Annotated[list[TextBlockParam | ToolResultBlockParam], Meta(min_length=1)]
AssistantBlock = TextBlockParam | ThinkingBlockParam | RedactedThinkingBlockParam | ToolUseBlockParam
SystemContent = str | list[PlainTextBlock]


class UserTurn(Request, frozen=True, tag_field="role", tag="user"):
    """What the user says, and what tools returned."""

    content: UserContent


class AssistantTurn(Request, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer. If it is the last message, the model continues it."""

    content: str | list[AssistantBlock]


class SystemTurn(Request, frozen=True, tag_field="role", tag="system"):
    """Instructions in the middle of a conversation, for models whose chat template takes them there."""

    content: str | Annotated[list[PlainTextBlock], Meta(min_length=1)]


Turn = UserTurn | AssistantTurn | SystemTurn
