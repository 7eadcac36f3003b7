"""Fields that several requests have, each with its text, said once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from headrace.api.fields import INT64_MAX, MAX_LABEL, Request, refused

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Labels = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class PromptCacheOptions(Request, frozen=True):
    """Hints to OpenAI's prompt cache. Accepted; prefixes are cached here anyway."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    comparison_response_id: Annotated[Any, refused([None], "Misses of the cache are not explained.")] = None
    prewarm: Annotated[Any, refused([None, False], "To fill the cache, send the request itself.")] = None


# --- what is asked for ------------------------------------------------------------------------------------------------

ModelName = Annotated[str, Meta(description="Name of the model, as /v1/models lists it.")]
ModelNameOrDefault = Annotated[str | None, Meta(description="Name of the model; by default the one served.")]
Temperature = Annotated[
    Annotated[float, Meta(ge=0.0, le=2.0)] | None,
    Meta(description="0 takes the likeliest token; higher is more random. Default 1."),
]
TopP = Annotated[
    Annotated[float, Meta(gt=0.0, le=1.0)] | None,
    Meta(description="Keep the smallest set of tokens whose probability reaches top_p. Default 1."),
]
Stream = Annotated[bool | None, Meta(description="Send the answer piece by piece, as server-sent events.")]
ParallelToolCalls = Annotated[bool | None, Meta(description="Several tools may be called in one answer. Default true.")]
CALLABLE = Meta(description="Functions that the model may call.")
CHOICE_OF_TOOLS = Meta(
    description='"auto": the model decides, the default; "none"; "required": at least one; or one by name, or some '
    "that are allowed."
)
Verbosity = Annotated[Any, refused([None, "medium"], 'Verbosity cannot be set: leave verbosity out or send "medium".')]
NoPadding = Annotated[
    Any, refused([None, False], "Answers are never padded: leave include_obfuscation out or send false.")
]
_Seed = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None
_EQUAL_SEEDS = "Equal seeds give equal answers, whatever runs beside them."
Seed = Annotated[_Seed, Meta(description=_EQUAL_SEEDS)]
SeedExtension = Annotated[_Seed, Meta(description=f"Extension. {_EQUAL_SEEDS}")]

# --- labels and hints -------------------------------------------------------------------------------------------------

User = Annotated[
    Annotated[str, Meta(max_length=MAX_LABEL)] | None,
    Meta(description="A label for your end user. Where no API keys are set, the server is shared between them."),
]
Tier = Annotated[
    ServiceTier | None, Meta(description="flex, or priority: less or more urgent than others; see priority.")
]
SafetyIdentifier = Annotated[str | None, Meta(description="A label for your end user. Accepted, not used.")]
_CACHED_ANYWAY = Meta(description="Accepted; prefixes are cached anyway.")
PromptCacheKey = Annotated[str | None, _CACHED_ANYWAY]
PromptCacheHints = Annotated[PromptCacheOptions | None, _CACHED_ANYWAY]
PromptCacheRetention = Annotated[Literal["in_memory", "in-memory", "24h"] | None, _CACHED_ANYWAY]
Moderation = Annotated[Any, refused([None], "There is no moderation model here: leave moderation out.")]
