"""``MessagesRequest``: the body of ``/v1/messages``; ``CountTokensRequest``: that of ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from headrace.api.anthropic.blocks import CacheControl, SystemContent, Turn
from headrace.api.common import ModelName, SeedExtension, ServiceTier, Stream, TopP
from headrace.api.fields import INT32_MAX, MAX_LABEL, MAX_STOP_STRINGS, Count, Request, StopString, given, refused
from headrace.api.sampling import TermFields
from headrace.api.tools import MAX_TOOLS, JsonSchema, ToolName

LEAST_THINKING = 1024


class AnthropicTool(Request, frozen=True, kw_only=True):
    """A tool that the caller runs. Tools that a server runs are refused.

    Attributes:
        name: Of it.
        description: What it does, for the model.
        input_schema: JSON Schema of its input.
        type: May be left out.
        strict: The schema must be enforceable. Else it is enforced as far as that can be done.
        eager_input_streaming: Accepted: inputs come whole.
    """

    name: ToolName
    input_schema: JsonSchema
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Annotated[Any, refused([None, ["direct"]], "Only the model itself calls tools.")] = None
    defer_loading: Annotated[Any, refused([None, False], "All tools are told to the model.")] = None
    input_examples: Annotated[Any, refused([None, []], "Put examples into the description.")] = None


class AutoChoice(Request, frozen=True, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Request, frozen=True, tag_field="type", tag="any"):
    """At least one tool."""

    disable_parallel_tool_use: bool | None = None


class ToolChoiceByName(Request, frozen=True, tag_field="type", tag="tool"):
    """A tool that must be used."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Request, frozen=True, tag_field="type", tag="none"):
    """No tool."""


AnthropicToolChoice = AutoChoice | AnyChoice | ToolChoiceByName | NoChoice

Display = Annotated[Any, refused([None, "summarized"], "Reasoning is returned whole.")]


class ThinkingEnabled(Request, frozen=True, tag_field="type", tag="enabled"):
    """The model is to reason, for at most so many tokens where its chat template lets it be told."""

    budget_tokens: Annotated[int, Meta(ge=LEAST_THINKING, le=INT32_MAX)]
    display: Display = None


class ThinkingDisabled(Request, frozen=True, tag_field="type", tag="disabled"):
    """The model is not to reason, where its chat template lets it be told."""


class ThinkingAdaptive(Request, frozen=True, tag_field="type", tag="adaptive"):
    """The model decides, as it does by default."""

    display: Display = None


Thinking = ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive


class JsonOutputFormat(Request, frozen=True):
    """A JSON value that a schema allows; enforced while it is generated, or refused."""

    type: Literal["json_schema"]
    schema: JsonSchema


class OutputConfig(Request, frozen=True):
    """What the answer must look like, and how long the model is to reason, where its chat template lets it be told."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutputFormat | None = None


class AnthropicMetadata(Request, frozen=True):
    """About the request. Where no API keys are set, the server is shared between user ids."""

    user_id: Annotated[str, Meta(max_length=MAX_LABEL)] | None = None


class ConversationFields(TermFields, frozen=True, kw_only=True):
    """What makes a prompt: the fields that both requests share."""

    model: ModelName
    messages: Annotated[
        list[Turn],
        Meta(
            min_length=1,
            description="The conversation so far.",
            examples=[[{"role": "user", "content": "Name three rivers."}]],
        ),
    ]
    system: Annotated[SystemContent | None, Meta(description="Instructions that hold for all of it.")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="Tools that the model may use."),
    ] = None
    tool_choice: Annotated[
        AnthropicToolChoice | None,
        Meta(description="auto: the model decides, the default; any: at least one; tool: one by name; none."),
    ] = None
    thinking: Annotated[Thinking | None, Meta(description="Whether the model is to reason.")] = None
    output_config: Annotated[OutputConfig | None, Meta(description="Form of the answer, effort of reasoning.")] = None
    output_format: Annotated[JsonOutputFormat | None, Meta(description="Older name of output_config.format.")] = None
    speed: Annotated[
        Literal["standard", "fast"] | None, Meta(description="fast: more urgent than others; see priority.")
    ] = None
    cache_control: Annotated[CacheControl | None, Meta(description="Accepted; prefixes are cached anyway.")] = None
    user_profile_id: Annotated[str | None, Meta(description="A label. Accepted, not used.")] = None
    workspace_id: Annotated[str | None, Meta(description="A label. Accepted, not used.")] = None

    @property
    def tier(self) -> ServiceTier:
        """The tier that was asked for."""
        return "fast" if self.speed == "fast" else "auto"


class CountTokensRequest(ConversationFields, frozen=True, kw_only=True):
    """The body of ``/v1/messages/count_tokens``."""


class MessagesRequest(ConversationFields, frozen=True, kw_only=True):
    """The body of ``/v1/messages`` (Anthropic API reference, "Create a message", plus extensions).

    Every optional field takes null for "absent". Fields are honoured, or accepted because they only label the request,
    or refused unless they ask for nothing; the schema of a refused field lists the values that are taken.
    """

    max_tokens: Annotated[
        Count,
        Meta(
            description="At most this many tokens of reasoning, text and calls together. It may be more than the "
            "context leaves, which then ends the answer: model_context_window_exceeded."
        ),
    ]
    stop_sequences: Annotated[
        Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None,
        Meta(description="Up to 16 strings at which the answer ends; they are not returned."),
    ] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0.0, le=1.0)] | None,
        Meta(description="0 takes the likeliest token; higher is more random. Default 1."),
    ] = None
    top_p: TopP = None
    top_k: Annotated[
        Annotated[int, Meta(ge=0, le=INT32_MAX)] | None, Meta(description="Keep the k likeliest tokens; 0 keeps all.")
    ] = None
    stream: Stream = None
    seed: SeedExtension = None

    metadata: Annotated[AnthropicMetadata | None, Meta(description="About the request.")] = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None, Meta(description="Accepted: there is one tier.")
    ] = None
    inference_geo: Annotated[str | None, Meta(description="Accepted: the server is where it is.")] = None
    container: Annotated[Any, refused([None], "There are no containers here: leave container out.")] = None
    diagnostics: Annotated[Any, refused([None], "Misses of the cache are not explained.")] = None
    context_management: Annotated[Any, refused([None], "Conversations are not edited here.")] = None
    mcp_servers: Annotated[Any, refused([None, []], "There are no MCP servers here: use tools.")] = None

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``: only what was given, and ``max_tokens`` always."""
        params = given(self, "temperature", "top_p", "top_k", "seed")
        params["max_tokens"] = self.max_tokens
        if self.stop_sequences:
            params["stop"] = tuple(self.stop_sequences)
        return params

    @property
    def user(self) -> str | None:
        """The caller's label of its end user."""
        return None if self.metadata is None else self.metadata.user_id
