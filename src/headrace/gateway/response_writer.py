"""``OutputWriter``: the pieces of a message as items of a response, and as the events of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import count
from typing import Any

from msgspec.structs import replace

from headrace.api.logprobs import writable
from headrace.api.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    StreamEvent,
    TextDelta,
    TextDone,
)
from headrace.api.responses.items import ItemStatus
from headrace.api.responses.output import (
    OutputFunctionCall,
    OutputItem,
    OutputLogprob,
    OutputMessage,
    OutputReasoning,
    OutputReasoningText,
    OutputText,
    OutputTopLogprob,
    new_item_id,
    sealed,
)
from headrace.engine.messages import PositionLogprobs
from headrace.gateway.job import SampleDelta
from headrace.text.formats.pieces import MessagePiece, Text, Thought, ToolCall
from headrace.text.tokenizer import Tokenizer


class OutputWriter:
    """A response's output so far.

    Args:
        tokenizer: Whose tokens log probabilities are of.
        seals_reasoning: Whether reasoning is returned as ``encrypted_content`` too.
        wants_events: Whether events are kept for ``drain``.

    Attributes:
        items: Those that are whole.
        numbers: Of the stream's events.
    """

    def __init__(self, tokenizer: Tokenizer, *, seals_reasoning: bool, wants_events: bool) -> None:
        self._tokenizer = tokenizer
        self._seals = seals_reasoning
        self._wants_events = wants_events
        self._events: list[StreamEvent] = []
        self._pending: list[PositionLogprobs] = []
        self._open: _OpenItem | None = None
        self.items: list[OutputItem] = []
        self.numbers = count(2)  # after the two events of the head

    def take(self, delta: SampleDelta) -> None:
        """Write what a step brought."""
        for piece, entries in self._with_logprobs(delta.pieces, delta.logprobs):
            match piece:
                case Text(text):
                    self._write(_Kind.MESSAGE, text, entries)
                case Thought(text):
                    self._write(_Kind.REASONING, text, [])
                case ToolCall():
                    self._call(piece)

    def end(self, status: ItemStatus) -> None:
        """Close what is open; an answer without anything is an empty message."""
        if self._open is None and not self.items:
            self._write(_Kind.MESSAGE, "", [])
        self._close(status)

    def drain(self) -> list[StreamEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def _write(self, kind: _Kind, text: str, entries: list[OutputLogprob]) -> None:
        """More text or reasoning, in the item that is open or in a new one."""
        now = self._open
        if now is None or now.kind is not kind:
            self._close("completed")
            now = self._open = _OpenItem(kind, self._seals)
            self._emit(ItemAdded, item=now.item("in_progress", content=[]))
            self._emit(PartAdded, item_id=now.id, part=kind.part("", []))
        now.texts.append(text)
        now.logprobs += entries
        if text or entries:
            logprobs = {"logprobs": entries} if kind is _Kind.MESSAGE else {}
            self._emit(kind.delta, item_id=now.id, delta=text, **logprobs)

    def _close(self, status: ItemStatus) -> None:
        now, self._open = self._open, None
        if now is not None:
            part = now.part()
            logprobs = {"logprobs": now.logprobs} if now.kind is _Kind.MESSAGE else {}
            self._emit(now.kind.done, item_id=now.id, text=part.text, **logprobs)
            self._emit(PartDone, item_id=now.id, part=part)
            self._done(now.item(status, content=[part]))

    def _call(self, call: ToolCall) -> None:
        self._close("completed")
        item = OutputFunctionCall(
            id=new_item_id("fc"),
            status="completed",
            call_id=call.id or "",
            name=call.name,
            arguments=call.arguments,
        )
        self._emit(ItemAdded, item=replace(item, status="in_progress", arguments=""))
        self._emit(ArgumentsDelta, item_id=item.id, delta=call.arguments)
        self._emit(ArgumentsDone, item_id=item.id, arguments=call.arguments)
        self._done(item)

    def _done(self, item: OutputItem) -> None:
        self._emit(ItemDone, item=item)
        self.items.append(item)

    def _emit(self, kind: type[Any], **fields: Any) -> None:
        """An event of the item that comes next."""
        if self._wants_events:
            self._events.append(kind(sequence_number=next(self.numbers), output_index=len(self.items), **fields))

    def _with_logprobs(
        self, pieces: Sequence[MessagePiece], entries: Sequence[PositionLogprobs]
    ) -> Iterator[tuple[MessagePiece, list[OutputLogprob]]]:
        """The pieces of a step, texts with the log probabilities of their tokens.

        Those of a step without pieces wait, for the text that they belong to is held back. Those of reasoning and calls
        go with them: where a text follows in the same step, its tokens are the last ones.
        """
        pending, self._pending = [*self._pending, *entries], []
        if not pieces:
            self._pending = pending
        for i, piece in enumerate(pieces):
            others = any(not isinstance(other, Text) for other in pieces)
            if not isinstance(piece, Text) or (others and i + 1 < len(pieces)):
                yield piece, []
                continue
            yield piece, [self._entry(entry) for entry in (self._tail(pending, piece.text) if others else pending)]
            pending = []

    def _tail(self, entries: list[PositionLogprobs], text: str) -> list[PositionLogprobs]:
        """The last entries, as many as the text has room for."""
        room, start = len(text), len(entries)
        while start and (room := room - len(self._tokenizer.token_text(entries[start - 1].token))) >= 0:
            start -= 1
        return entries[start:]

    def _entry(self, entry: PositionLogprobs) -> OutputLogprob:
        text, data = self._tokenizer.token_text, self._bytes
        top = [OutputTopLogprob(text(token), writable(value), data(token)) for token, value in entry.top]
        return OutputLogprob(text(entry.token), writable(entry.logprob), data(entry.token), top)

    def _bytes(self, token: int) -> list[int]:
        return [] if token in self._tokenizer.special_ids else list(self._tokenizer.token_bytes(token))


class _Kind(Enum):
    """An item that grows."""

    MESSAGE = "msg"
    REASONING = "rs"

    @property
    def delta(self) -> type[Any]:
        return TextDelta if self is _Kind.MESSAGE else ReasoningDelta

    @property
    def done(self) -> type[Any]:
        return TextDone if self is _Kind.MESSAGE else ReasoningDone

    def part(self, text: str, logprobs: list[OutputLogprob]) -> OutputText | OutputReasoningText:
        if self is _Kind.MESSAGE:
            return OutputText(text=text, logprobs=logprobs)
        return OutputReasoningText(text=text)


class _OpenItem:
    """An item that grows, so far."""

    def __init__(self, kind: _Kind, seals: bool) -> None:
        self.kind = kind
        self.id = new_item_id("msg" if kind is _Kind.MESSAGE else "rs")
        self.texts: list[str] = []
        self.logprobs: list[OutputLogprob] = []
        self._seals = seals

    def part(self) -> OutputText | OutputReasoningText:
        return self.kind.part("".join(self.texts), self.logprobs)

    def item(self, status: ItemStatus, content: list[Any]) -> OutputItem:
        if self.kind is _Kind.MESSAGE:
            return OutputMessage(id=self.id, status=status, content=content)
        seal = sealed("".join(self.texts)) if self._seals and content else None
        return OutputReasoning(id=self.id, status=status, content=content, encrypted_content=seal)
