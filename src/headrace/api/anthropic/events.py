"""The events of a streamed message, field for field as Anthropic documents them ("Streaming Messages")."""

from __future__ import annotations

import msgspec

from headrace.api.anthropic.message import AnthropicMessage, AnthropicUsage, Block, StopReason


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event: the message, still without content."""

    message: AnthropicMessage


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing new."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature of reasoning, at its end."""

    signature: str


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """The input of a tool as JSON; it comes whole."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is whole."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The last event but one: the end, and the token counts of the whole message."""

    delta: MessageEnd
    usage: AnthropicUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


MessageEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
