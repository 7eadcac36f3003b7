"""What chat and text completions share, and on what terms all requests are served."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from headrace.api.common import ModelName, NoPadding, Seed, ServiceTier, Stream, Temperature, TopP, User
from headrace.api.fields import (
    INT32_MAX,
    MAX_LABEL,
    MAX_N,
    MAX_STOP_STRINGS,
    Bias,
    Count,
    NonEmpty,
    Penalty,
    Probability,
    Request,
    StopString,
    TokenId,
    given,
)

TIER_PRIORITIES: dict[ServiceTier, int] = {"flex": 100, "priority": -100, "fast": -100, "ultrafast": -100}  # others: 0
Choices = Annotated[list[NonEmpty], Meta(min_length=1, max_length=1000)]


class StreamOptions(Request, frozen=True):
    """Options of a streamed answer.

    Attributes:
        include_usage: Send one more chunk before the end, with the token counts and no choices.
        include_obfuscation: OpenAI's padding against traffic analysis; only false is supported.
    """

    include_usage: bool | None = None
    include_obfuscation: NoPadding = None


class TermFields(Request, frozen=True, kw_only=True):
    """On what terms a request is served: extensions that all APIs share."""

    priority: Annotated[
        Annotated[int, Meta(ge=-1000, le=1000)] | None,
        Meta(description="Extension. Lower is more urgent, and may interrupt what is less so. Default 0."),
    ] = None
    deadline_ms: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Extension. The first token is wanted within that many milliseconds; the request is refused "
            "(503) as soon as that cannot be expected any more."
        ),
    ] = None
    cache_salt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)] | None,
        Meta(description="Extension. Requests share cached prefixes only with requests of the same salt."),
    ] = None

    @property
    def urgency(self) -> int:
        """The priority that was asked for, by number or by tier."""
        return TIER_PRIORITIES.get(self.tier, 0) if self.priority is None else self.priority

    @property
    def tier(self) -> ServiceTier:
        """The tier that was asked for."""
        return "auto"


class SamplingFields(TermFields, frozen=True, kw_only=True):
    """What chat and text completions share."""

    model: ModelName
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_N)] | None,
        Meta(description="Independent answers to the same prompt. Default 1."),
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    presence_penalty: Annotated[
        Penalty | None, Meta(description="Subtracted once from each token already in the output. Default 0.")
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, Meta(description="Subtracted per occurrence in the output. Default 0.")
    ] = None
    logit_bias: Annotated[
        dict[str, Bias] | None,
        Meta(
            description="Token id, as a string, to a value added to the token's logit.",
            examples=[{"198": -100}],
        ),
    ] = None
    seed: Seed = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None,
        Meta(description="A string, or up to 16, at which the answer ends; it is not returned."),
    ] = None
    max_tokens: Annotated[
        Count | None,
        Meta(description="At most this many output tokens. Default: of a text 16, of a chat what the context leaves."),
    ] = None
    stream: Stream = None
    stream_options: Annotated[
        StreamOptions | None, Meta(description="Only with stream true.", examples=[{"include_usage": True}])
    ] = None
    user: User = None

    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None,
        Meta(description="Extension. Keep the k likeliest tokens; 0 or -1 keeps all."),
    ] = None
    min_p: Annotated[
        Probability | None, Meta(description="Extension. Drop tokens less likely than min_p times the likeliest.")
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100.0)] | None,
        Meta(description="Extension. Over prompt and output tokens (CTRL, arXiv:1909.05858). Default 1."),
    ] = None
    min_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=INT32_MAX)] | None,
        Meta(description="Extension. No end before this many output tokens."),
    ] = None
    ignore_eos: Annotated[
        bool | None, Meta(description="Extension. The end-of-sequence token does not end the answer.")
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None, Meta(description="Extension. Token ids at which the answer ends.")
    ] = None
    include_stop_str_in_output: Annotated[bool | None, Meta(description="Extension. Return the stop string too.")] = (
        None
    )
    skip_special_tokens: Annotated[
        bool | None, Meta(description="Extension. Leave special tokens out of the text. Default true.")
    ] = None
    regex: Annotated[
        NonEmpty | None, Meta(description="Extension. A regular expression that the whole answer must match.")
    ] = None
    choice: Annotated[Choices | None, Meta(description="Extension. Texts of which the answer must be one.")] = None
    grammar: Annotated[
        NonEmpty | None, Meta(description="Extension. A grammar in Lark or GBNF that the answer must follow.")
    ] = None
    return_token_ids: Annotated[
        bool | None, Meta(description="Extension. Return the token ids of prompt and answer.")
    ] = None
    timings: Annotated[
        bool | None,
        Meta(description="Extension. Return how long each stage took, in the answer or the last chunk. Default false."),
    ] = None

    def common_sampling(self) -> dict[str, Any]:
        """The fields that were given, by their names in ``SamplingParams``; lengths and logprobs are left out."""
        same = (
            "n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty", "seed", "min_tokens", "ignore_eos", "include_stop_str_in_output",
            "skip_special_tokens",
        )  # fmt: skip
        params = given(self, *same)
        if self.logit_bias:
            params["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        if self.stop:
            params["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids:
            params["stop_token_ids"] = tuple(self.stop_token_ids)
        return params

    @property
    def include_usage(self) -> bool:
        """Whether a usage chunk was asked for."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
