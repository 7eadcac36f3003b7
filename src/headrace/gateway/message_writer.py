"""``BlockWriter``: the pieces of a message as Anthropic's blocks, and as the events of their stream."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.api.anthropic.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageEvent,
    SignatureDelta,
    TextBlockDelta,
    ThinkingBlockDelta,
)
from headrace.api.anthropic.message import Block, TextBlock, ThinkingBlock, ToolUseBlock, signature_of, tool_use_id
from headrace.text.formats.pieces import MessagePiece, Text, Thought, ToolCall


class BlockWriter:
    """A message's blocks so far.

    Attributes:
        blocks: Those that are whole.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._kind: type[Text | Thought] | None = None  # of the block that is open
        self._texts: list[str] = []

    def take(self, pieces: Iterable[MessagePiece]) -> list[MessageEvent]:
        """Write pieces; returns the events."""
        events: list[MessageEvent] = []
        for piece in pieces:
            if isinstance(piece, ToolCall):
                events += [*self.close(), *self._call(piece)]
                continue
            if self._kind is not type(piece):
                events += self.close()
                self._kind = type(piece)
                blank = TextBlock("") if isinstance(piece, Text) else ThinkingBlock("", "")
                events.append(BlockStart(len(self.blocks), blank))
            self._texts.append(piece.text)
            delta = TextBlockDelta(piece.text) if isinstance(piece, Text) else ThinkingBlockDelta(piece.text)
            events.append(BlockDelta(len(self.blocks), delta))
        return events

    def close(self) -> list[MessageEvent]:
        """End the block that is open, if there is one; returns the events."""
        kind, text, index = self._kind, "".join(self._texts), len(self.blocks)
        self._kind, self._texts = None, []
        if kind is None:
            return []
        if kind is Text:
            self.blocks.append(TextBlock(text))
            return [BlockStop(index)]
        signature = signature_of(text)
        self.blocks.append(ThinkingBlock(text, signature))
        return [BlockDelta(index, SignatureDelta(signature)), BlockStop(index)]

    def _call(self, call: ToolCall) -> list[MessageEvent]:
        index, identifier = len(self.blocks), tool_use_id(call.id or "")
        self.blocks.append(ToolUseBlock(identifier, call.name, msgspec.json.decode(call.arguments)))
        return [
            BlockStart(index, ToolUseBlock(identifier, call.name, {})),
            BlockDelta(index, InputJsonDelta(call.arguments)),
            BlockStop(index),
        ]
