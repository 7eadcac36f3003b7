"""The events of a streamed response, field for field as OpenAI documents them (API reference, "Streaming events")."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.api.responses.output import OutputItem, OutputLogprob, OutputReasoningText, OutputText, Response


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What all events have. ``sequence_number`` counts the events of a stream from 0."""

    sequence_number: int


class Created(ResponseEvent, frozen=True, kw_only=True, tag_field="type", tag="response.created"):
    """The first event."""

    response: Response


class InProgress(ResponseEvent, frozen=True, kw_only=True, tag_field="type", tag="response.in_progress"):
    """The second event."""

    response: Response


class Completed(ResponseEvent, frozen=True, kw_only=True, tag_field="type", tag="response.completed"):
    """The last event of a response that is complete."""

    response: Response


class Incomplete(ResponseEvent, frozen=True, kw_only=True, tag_field="type", tag="response.incomplete"):
    """The last event of a response that was cut at its length."""

    response: Response


class Failed(ResponseEvent, frozen=True, kw_only=True, tag_field="type", tag="response.failed"):
    """The last event of a response that failed."""

    response: Response


class ItemEvent(ResponseEvent, frozen=True, kw_only=True):
    """What events of an item have. ``output_index`` is its place in the output."""

    output_index: int


class ItemAdded(ItemEvent, frozen=True, kw_only=True, tag_field="type", tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class ItemDone(ItemEvent, frozen=True, kw_only=True, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    item: OutputItem


class PartEvent(ItemEvent, frozen=True, kw_only=True):
    """What events of a piece of content have. Items have one piece."""

    item_id: str
    content_index: Annotated[int, Meta(ge=0)] = 0


class PartAdded(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.content_part.added"):
    """A piece of content begins."""

    part: OutputText | OutputReasoningText


class PartDone(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.content_part.done"):
    """A piece of content is whole."""

    part: OutputText | OutputReasoningText


class TextDelta(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    """More of a text."""

    delta: str
    logprobs: list[OutputLogprob]


class TextDone(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.output_text.done"):
    """A text is whole."""

    text: str
    logprobs: list[OutputLogprob]


class ReasoningDelta(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(PartEvent, frozen=True, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    """Reasoning is whole."""

    text: str


class ArgumentsDelta(
    ItemEvent, frozen=True, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"
):
    """Arguments of a call; they come whole."""

    item_id: str
    delta: str


class ArgumentsDone(
    ItemEvent, frozen=True, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"
):
    """Arguments of a call are whole."""

    item_id: str
    arguments: str


StreamEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
