"""Answers of ``/v1/chat/completions``, whole and in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.answers import FinishReason, Timings, Usage
from headrace.api.logprobs import ChatLogprobs


class CalledFunction(msgspec.Struct, frozen=True):
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model calls; a tool message answers to its id."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class CalledToolDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model calls, in a stream: calls arrive whole. ``index`` counts the calls of an answer."""

    index: int
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    ``content`` is null where there are calls and nothing else. ``reasoning_content`` is what the model wrote before,
    between the marks of its reasoning. ``malformed_tool_calls`` counts what began as a call and was none; its text is
    in the content.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None = ""
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CalledTool] | UnsetType = UNSET
    malformed_tool_calls: int | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of a chat completion's n answers. ``stop_reason`` is the stop string or token id that ended it."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to an answer; the first one carries the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CalledToolDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk says of one of the answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a streamed chat completion. With ``include_usage``, ``usage`` is null but in the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
