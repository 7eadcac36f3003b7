"""What ``LLM`` returns. Field names as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.messages import FinishReason
from headrace.engine.timeline import Durations, Timeline
from headrace.errors import EngineError
from headrace.text.formats.pieces import ToolCall


@dataclass(frozen=True, slots=True)
class Logprob:
    """Raw log probability of one token at one position: before bias, penalties, temperature and cuts.

    Attributes:
        logprob: Natural logarithm.
        rank: 1 is the likeliest token of the position.
        decoded_token: The token as text.
    """

    logprob: float
    rank: int
    decoded_token: str


PositionLogprobs = dict[int, Logprob]
"""Token id to log probability: the position's own token first, then the likeliest ones in order."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One sample.

    Attributes:
        index: Which of the request's n samples.
        text: The text, without control tokens and without the stop string, reasoning and calls.
        reasoning: What the model wrote before its answer; empty for models that do not mark it.
        tool_calls: The calls of tools, where there are tools. What began as one and is none is a part of the text.
        token_ids: All output tokens, also the one that ended the sample.
        cumulative_logprob: Sum over the output tokens; None unless log probabilities were asked for.
        logprobs: One entry an output token; None unless asked for.
        finish_reason: ``stop`` (end of sequence, stop token or stop string), ``length``, or ``error``.
        stop_reason: The stop string or stop token id that ended it; None for end of sequence.
        timings: Durations in seconds.
        error: What went wrong, for ``error``.
    """

    index: int
    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[PositionLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    timings: Durations
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All samples of one prompt.

    Attributes:
        request_id: Counts up from "0" while the ``LLM`` lives.
        prompt: The prompt's text (for chats: as the template rendered it); None if it was given as token ids.
        prompt_token_ids: Its tokens.
        prompt_logprobs: One entry a prompt token, None for the first; None unless asked for.
        outputs: The samples, by index.
        finished: Always true: ``LLM.generate`` returns when all is done.
        num_cached_tokens: Prompt tokens that were found in the prefix cache.
        metrics: The request's stamps: the first sample's, its last token that of the sample that ended last.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int
    metrics: Timeline


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's vector.

    Attributes:
        embedding: Its numbers.
    """

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt.

    Attributes:
        request_id: Counts up, together with those of other requests.
        outputs: The embedding.
        prompt_token_ids: The prompt's tokens.
        finished: Always true.
        num_cached_tokens: Prompt tokens that were found in the prefix cache.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What one step added to one sample; ``LLM.stream`` yields them.

    Attributes:
        index: Which of the request's n samples.
        text: New text; empty while a character or a possible stop string is incomplete.
        reasoning: New reasoning.
        tool_calls: New calls, each whole.
        token_ids: New tokens.
        logprobs: One entry a new token; None unless asked for.
        finish_reason: Set on the sample's last delta.
        stop_reason: The stop string or stop token id that ended it.
        timings: Durations in seconds; set on the sample's last delta.
    """

    index: int
    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    timings: Durations | None = None


class GenerationError(EngineError):
    """The engine could not finish some prompts; the others are done, and the ``LLM`` can still be used.

    Args:
        message: Which prompts, and why.
        outputs: One a prompt, in order. Samples that failed have ``finish_reason`` "error".
    """

    def __init__(self, message: str, outputs: list[RequestOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs
