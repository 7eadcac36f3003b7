"""``AnthropicMessage``, the answer of ``/v1/messages``, field for field as Anthropic documents it; its relatives."""

from __future__ import annotations

import hashlib
import uuid
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Literal

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
_CODED = "toolu_b64_"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of the answer."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning. The signature is a hash of it, for clients that want one."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A tool that the model uses; a tool_result answers to its id."""

    id: str
    name: str
    input: Any


Block = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct, frozen=True):
    """Of the output's tokens, how many were reasoning."""

    thinking_tokens: int = 0


class AnthropicUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. ``input_tokens`` are those of the prompt that did not come from the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingTokens = ThinkingTokens()

    @classmethod
    def of(cls, prompt: int, output: int, cached: int, reasoning: int) -> AnthropicUsage:
        """From token counts."""
        return cls(
            input_tokens=prompt - cached,
            output_tokens=output,
            cache_read_input_tokens=cached,
            output_tokens_details=ThinkingTokens(reasoning),
        )


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer of ``/v1/messages``; ``stop_sequence`` is the one that ended it."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: AnthropicUsage


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """A model that is served. ``max_input_tokens``: most tokens of prompt and answer together."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class ModelInfoList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/models`` to Anthropic's clients."""

    data: list[ModelInfo]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


def new_message_id() -> str:
    """A fresh id of an answer."""
    return f"msg_{uuid.uuid4().hex}"


def signature_of(thinking: str) -> str:
    """What stands where Anthropic's servers sign reasoning: clients may drop what has no signature."""
    return b64encode(hashlib.sha256(thinking.encode("utf-8", "replace")).digest()).decode()


def tool_use_id(identifier: str) -> str:
    """The id of a call as Anthropic's clients take it: of letters, digits, ``_`` and ``-`` alone.

    Some models write ids with dots and colons; those are coded, and ``call_id`` gives them back.
    """
    if identifier and _PLAIN.issuperset(identifier) and not identifier.startswith(_CODED):
        return identifier
    return _CODED + urlsafe_b64encode(identifier.encode("utf-8", "replace")).decode().rstrip("=")


def call_id(tool_use: str) -> str:
    """The id of a call as the model wrote it."""
    if not tool_use.startswith(_CODED):
        return tool_use
    coded = tool_use.removeprefix(_CODED)
    try:
        identifier = urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode("utf-8")
    except ValueError:
        return tool_use
    return identifier if tool_use_id(identifier) == tool_use else tool_use  # it may not be of this server
