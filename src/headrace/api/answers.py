"""What answers have in common: usage, timings, ids, and their encoding.

Answers are, field for field, as OpenAI documents them, with vLLM's names for what OpenAI does not have. Fields that are
``UNSET`` are left out of the JSON; ``None`` is written as null where OpenAI writes null. Extensions appear only where
they were asked for (``token_ids``, ``prompt_token_ids``, ``timings``) or say something (``stop_reason``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


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
