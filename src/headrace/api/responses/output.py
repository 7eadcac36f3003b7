"""``Response`` and the items of it, field for field as OpenAI documents them (API reference, "The response object")."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Any, Literal

import msgspec

from headrace.api.responses.items import ItemStatus

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]
_SEALED = "plain:"


class OutputTopLogprob(msgspec.Struct, frozen=True):
    """A likely token of a position."""

    token: str
    logprob: float
    bytes: list[int]


class OutputLogprob(msgspec.Struct, frozen=True):
    """The token of a position, and the likeliest ones there. ``bytes`` of a control token are none."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[OutputTopLogprob]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """A piece of the answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[OutputLogprob] = []


class OutputRefusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal, of an earlier answer."""

    refusal: str


class OutputReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """A piece of reasoning."""

    text: str


class OutputSummaryText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """A summary of reasoning, of an earlier answer."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText | OutputRefusal]


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning. ``encrypted_content`` is there where it was asked for: the reasoning itself, in base64."""

    id: str
    status: ItemStatus
    summary: list[OutputSummaryText] = []
    content: list[OutputReasoningText]
    encrypted_content: str | None = None


class OutputFunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls. A function_call_output answers to its ``call_id``."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Of the input's tokens, how many came from the prefix cache. Writes to it are not counted."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Of the output's tokens, how many were reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, output: int, cached: int, reasoning: int) -> ResponseUsage:
        """From token counts."""
        return cls(prompt, InputTokensDetails(cached), output, OutputTokensDetails(reasoning), prompt + output)


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/responses``, and what is known of it so far in the events of a stream.

    What was asked for (``tools``, ``text``, ``reasoning``, …) is repeated as it was sent, or as it is by default.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]


class ListedText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """A piece of text that the model was given."""

    text: str


class ListedMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message that the model was given."""

    id: str
    status: ItemStatus
    role: Literal["user", "system", "developer"]
    content: list[ListedText]


class ListedFunctionOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """What a function returned."""

    id: str
    status: ItemStatus
    call_id: str
    output: str | list[ListedText]


ListedItem = ListedMessage | OutputMessage | OutputReasoning | OutputFunctionCall | ListedFunctionOutput


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/responses/{id}/input_items``."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the deletion of a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/responses/input_tokens``."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def new_item_id(prefix: Literal["resp", "msg", "rs", "fc", "fco"]) -> str:
    """A fresh id, such as ``msg_3f…``."""
    return f"{prefix}_{uuid.uuid4().hex}"


def sealed(reasoning: str) -> str:
    """Reasoning as ``encrypted_content``: in base64, for the server shows it anyway."""
    return base64.b64encode((_SEALED + reasoning).encode("utf-8", "replace")).decode()


def unsealed(content: str) -> str | None:
    """The reasoning in an ``encrypted_content``; None: it is of another server."""
    try:
        text = base64.b64decode(content, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return text.removeprefix(_SEALED) if text.startswith(_SEALED) else None
