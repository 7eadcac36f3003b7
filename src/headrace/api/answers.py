"""The answers, field for field as OpenAI documents them, with vLLM's names for what OpenAI does not have.

``UNSET`` fields are left out of the JSON; ``None`` is written as null where OpenAI writes null. Extensions appear only
where they were asked for (``token_ids``, ``prompt_token_ids``, ``timings``) or say something (``stop_reason``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["stop", "length", "tool_calls"]
LEAST_LOGPROB = -9999.0


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, how many came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens, how many were reasoning."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, reasoning_tokens: int = 0) -> Usage:
    """Token counts, added up."""
    total = prompt_tokens + completion_tokens
    cached, reasoning = PromptTokensDetails(cached_tokens), CompletionTokensDetails(reasoning_tokens)
    return Usage(prompt_tokens, completion_tokens, total, cached, reasoning)


class Stamps(msgspec.Struct, frozen=True, kw_only=True):
    """When the request passed each stage, in seconds after it was received; null: not reached."""

    tokenized: float | None = None
    routed: float | None = None
    queued: float | None = None
    first_scheduled: float | None = None
    prefill_done: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long each stage took, in seconds; null where an end is missing.

    Attributes:
        tokenize: Received to tokenized.
        queue: Queued at the engine to first scheduled.
        prefill: First scheduled to the end of the prompt's computation.
        time_to_first_token: Received to first token.
        time_per_output_token: Mean gap between output tokens.
        end_to_end: Received to last token.
        stamps: The moments that these are differences of.
    """

    tokenize: float | None = None
    queue: float | None = None
    prefill: float | None = None
    time_to_first_token: float | None = None
    time_per_output_token: float | None = None
    end_to_end: float | None = None
    stamps: Stamps = Stamps()


def timings(durations: Mapping[str, float | None], stamps: Mapping[str, float | None]) -> Timings:
    """``Timings`` from the engine's durations and stamps.

    Args:
        durations: The fields of ``Durations``, seconds.
        stamps: The fields of ``Timeline``, seconds of any one clock; ``received`` (or else ``queued``) becomes zero.
    """
    zero = stamps.get("received")
    zero = stamps.get("queued") if zero is None else zero
    after = {
        name: None if (stamp := stamps.get(name)) is None or zero is None else round(stamp - zero, 6)
        for name in Stamps.__struct_fields__
    }
    rounded = {
        name: None if (seconds := durations.get(name)) is None else round(seconds, 6)
        for name in Timings.__struct_fields__
        if name != "stamps"
    }
    return Timings(**rounded, stamps=Stamps(**after))


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token of a position. ``bytes`` are the token's own, also where they are no whole character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True):
    """The token of a position, and the likeliest ones there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of an answer's tokens."""

    content: list[TokenLogprob] | None
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the form of ``/v1/completions``: parallel lists, null for the first prompt token.

    Attributes:
        tokens: Text of each token.
        token_logprobs: Its log probability.
        top_logprobs: Token text to log probability, of the likeliest tokens at each position.
        text_offset: Where each token's text begins, in characters from the start of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


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


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what a chunk adds to it (then ``finish_reason`` is null but in its last)."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/completions``, and each chunk of it when streamed."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served. ``max_model_len``: most tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of ``/detokenize``."""

    prompt: str


class Status(msgspec.Struct, frozen=True):
    """The answer of ``/health`` and ``/ready`` when all is well."""

    status: str = "ok"


class DebugAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/debug/state``: slots, queue, pages and tree; no prompt text."""

    state: dict[str, Any]
    problems: list[str] = []


_encoder = msgspec.json.Encoder()


def encode(answer: msgspec.Struct) -> bytes:
    """The JSON of an answer, UTF-8."""
    return _encoder.encode(answer)


def new_id(prefix: Literal["chatcmpl", "cmpl"]) -> str:
    """A fresh id of an answer, such as ``chatcmpl-3f…``."""
    return f"{prefix}-{uuid.uuid4().hex}"


def unix_time() -> int:
    """Now, in whole seconds since 1970, for ``created``."""
    return int(time.time())


def top_logprob(token: str, logprob: float, raw: bytes | None) -> TopLogprob:
    """A likely token of a position; ``raw`` are its bytes, None for a special token."""
    return TopLogprob(token, writable(logprob), None if raw is None else list(raw))


def token_logprob(token: str, logprob: float, raw: bytes | None, top: Sequence[TopLogprob] = ()) -> TokenLogprob:
    """The token of a position, with the likeliest ones there, likeliest first."""
    return TokenLogprob(token, writable(logprob), None if raw is None else list(raw), list(top))


def writable(logprob: float) -> float:
    """A log probability as JSON can hold it: JSON has no minus infinity; OpenAI writes -9999 for "very unlikely"."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def completion_logprobs(
    tokens: Sequence[str],
    logprobs: Sequence[float | None],
    tops: Sequence[Sequence[tuple[str, float]] | None],
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """Completion-style log probabilities of consecutive tokens.

    Args:
        tokens: Text of each token.
        logprobs: Log probability of each; None for a prompt's first token.
        tops: The likeliest tokens at each position, likeliest first; where two have the same text the likelier counts.
        offsets: Where each token begins, in characters of the choice's text.
    """
    return CompletionLogprobs(
        tokens=list(tokens),
        token_logprobs=[None if value is None else writable(value) for value in logprobs],
        top_logprobs=[None if top is None else _first_by_text(top) for top in tops],
        text_offset=list(offsets),
    )


def _first_by_text(top: Sequence[tuple[str, float]]) -> dict[str, float]:
    likeliest: dict[str, float] = {}
    for token, logprob in top:
        likeliest.setdefault(token, writable(logprob))
    return likeliest
