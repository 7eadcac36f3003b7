"""Input items: what a conversation consists of in the Responses API (OpenAI API reference, "Create a response").

They take what clients send: items that people write, and items of earlier answers sent back as they came.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import field

from headrace.api.fields import Request, refused
from headrace.api.messages import CacheBreakpoint

ItemStatus = Literal["in_progress", "completed", "incomplete"]
_NO_PROGRAMS = "Calls are made by the model itself: leave it out."


class InputTextPart(Request, frozen=True, tag_field="type", tag="input_text"):
    """A piece of text for the model."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputTextPart(Request, frozen=True, tag_field="type", tag="output_text"):
    """A piece of an earlier answer. Only its text is shown to the model."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalOutputPart(Request, frozen=True, tag_field="type", tag="refusal"):
    """An earlier refusal of the model."""

    refusal: str


MessageContent = str | list[InputTextPart | OutputTextPart | RefusalOutputPart]


class MessageItem(Request, frozen=True, tag_field="type", tag="message"):
    """A message. ``type`` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: MessageContent
    id: str | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class SummaryPart(Request, frozen=True):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningPart(Request, frozen=True):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Request, frozen=True, tag_field="type", tag="reasoning"):
    """Earlier reasoning. It is shown to models whose chat template wants it.

    Attributes:
        id: Of the item.
        summary: Shown where there is no content.
        content: The reasoning.
        encrypted_content: Of an answer of this server: the reasoning, where content was left out.
        status: Of the item.
    """

    id: str | None = None
    summary: list[SummaryPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class FunctionCallItem(Request, frozen=True, tag_field="type", tag="function_call"):
    """A call that the model made.

    Attributes:
        name: Of the function.
        arguments: A string of JSON, as the model wrote it.
        call_id: What its output refers to.
        id: Of the item.
        status: Of the item.
    """

    name: str
    arguments: str
    call_id: str
    id: str | None = None
    status: ItemStatus | None = None
    async_: Annotated[Any, refused([None, False], _NO_PROGRAMS)] = field(default=None, name="async")
    caller: Annotated[Any, refused([None, {"type": "direct"}], _NO_PROGRAMS)] = None
    namespace: Annotated[Any, refused([None], "Functions have no namespaces here.")] = None


class FunctionOutputPart(Request, frozen=True):
    """A piece of what a function returned."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class FunctionOutputItem(Request, frozen=True, tag_field="type", tag="function_call_output"):
    """What a function returned.

    Attributes:
        call_id: Of the call.
        output: Text, or pieces of it.
        id: Of the item.
        status: Of the item.
        name: Of the function.
    """

    call_id: str
    output: str | list[FunctionOutputPart]
    id: str | None = None
    status: ItemStatus | None = None
    name: str | None = None
    caller: Annotated[Any, refused([None, {"type": "direct"}], _NO_PROGRAMS)] = None
    namespace: Annotated[Any, refused([None], "Functions have no namespaces here.")] = None


class ItemReference(Request, frozen=True, tag_field="type", tag="item_reference"):
    """An item of a stored response, by its id."""

    id: str


InputItem = MessageItem | ReasoningItem | FunctionCallItem | FunctionOutputItem | ItemReference


def with_types(tree: Any) -> bool:
    """Name the type of messages that leave it out, in the tree of a body, in place; whether there were any."""
    items = tree.get("input") if isinstance(tree, dict) else None
    bare = [
        item for item in items if isinstance(item, dict) and "role" in item and item.get("type") is None
    ] if isinstance(items, list) else []  # fmt: skip
    for item in bare:
        item["type"] = "message"
    return bool(bare)
