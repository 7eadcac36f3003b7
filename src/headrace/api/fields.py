"""The types that requests share: ranges, and fields that are known but honoured only at a neutral value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MAX_STOP_STRINGS = 16
# The search for stop strings takes some 300 bytes of memory a character.
MAX_STOP_CHARACTERS = 1000
MAX_LOGPROBS = 20
MAX_N = 128
# A chat template gets these from the request itself.
RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message")
LOGIT_BIAS_KEY = "^(0|[1-9][0-9]{0,9})$"

TokenId = Annotated[int, Meta(ge=0, le=INT32_MAX)]
NonEmpty = Annotated[str, Meta(min_length=1)]
MAX_LABEL = 1024  # characters; each label that is seen is kept for a while
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every request body and of the objects in it: frozen, and closed to unknown fields."""


class Refused(NamedTuple):
    """A field that would change the answer and is not honoured here, except at a value that asks for nothing."""

    neutral: list[Any]
    why: str


def refused(neutral: list[Any], why: str) -> Meta:
    """Type annotation of such a field; the schema lists just the neutral values, so that it tells the truth."""
    return Meta(
        description=f"Not supported. {why}",
        extra_json_schema={"enum": neutral},
        extra={"refused": Refused(neutral, why)},
    )


def refused_fields(request: type[msgspec.Struct]) -> Iterator[tuple[str, Refused]]:
    """Name and neutral values of the fields of ``request`` that are known but not honoured."""
    for name, hint in get_type_hints(request, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            if isinstance(meta, Meta) and meta.extra and "refused" in meta.extra:
                yield name, meta.extra["refused"]


class StreamOptions(Request, frozen=True):
    """Options of a streamed answer.

    Attributes:
        include_usage: Send one more chunk before the end, with the token counts and no choices.
        include_obfuscation: OpenAI's padding against traffic analysis; only false is supported.
    """

    include_usage: bool | None = None
    include_obfuscation: Annotated[
        Any, refused([None, False], "Chunks are never padded: leave include_obfuscation out or send false.")
    ] = None


class PromptCacheOptions(Request, frozen=True):
    """Hints to OpenAI's prompt cache. Accepted; prefixes are cached here anyway."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    comparison_response_id: Annotated[Any, refused([None], "Misses of the cache are not explained.")] = None
    prewarm: Annotated[Any, refused([None, False], "To fill the cache, send the request itself.")] = None


Choices = Annotated[list[NonEmpty], Meta(min_length=1, max_length=1000)]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LabelKey = Annotated[str, Meta(max_length=64)]
LabelValue = Annotated[str, Meta(max_length=512)]
Labels = Annotated[dict[LabelKey, LabelValue], Meta(max_length=16)]

ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
TIER_PRIORITIES: dict[ServiceTier, int] = {"flex": 100, "priority": -100, "fast": -100, "ultrafast": -100}  # others: 0


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

    model: Annotated[str, Meta(description="Name of the model, as /v1/models lists it.")]
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_N)] | None,
        Meta(description="Independent answers to the same prompt. Default 1."),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0.0, le=2.0)] | None,
        Meta(description="0 takes the likeliest token; higher is more random. Default 1."),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0.0, le=1.0)] | None,
        Meta(description="Keep the smallest set of tokens whose probability reaches top_p. Default 1."),
    ] = None
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
    seed: Annotated[
        Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None,
        Meta(description="Equal seeds give equal answers, whatever runs beside them."),
    ] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None,
        Meta(description="A string, or up to 16, at which the answer ends; it is not returned."),
    ] = None
    max_tokens: Annotated[
        Count | None,
        Meta(description="At most this many output tokens. Default: of a text 16, of a chat what the context leaves."),
    ] = None
    stream: Annotated[bool | None, Meta(description="Send the answer piece by piece, as server-sent events.")] = None
    stream_options: Annotated[
        StreamOptions | None, Meta(description="Only with stream true.", examples=[{"include_usage": True}])
    ] = None
    user: Annotated[
        Annotated[str, Meta(max_length=MAX_LABEL)] | None,
        Meta(description="A label for your end user. Where no API keys are set, the server is shared between them."),
    ] = None

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
        params = {name: value for name in same if (value := getattr(self, name)) is not None}
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
