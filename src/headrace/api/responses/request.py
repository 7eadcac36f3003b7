"""``ResponsesRequest``, the body of ``/v1/responses``; ``InputTokensRequest``, of ``/v1/responses/input_tokens``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from headrace.api.common import (
    CALLABLE,
    CHOICE_OF_TOOLS,
    Labels,
    ModelName,
    ModelNameOrDefault,
    Moderation,
    NoPadding,
    ParallelToolCalls,
    PromptCacheHints,
    PromptCacheKey,
    PromptCacheRetention,
    ReasoningEffort,
    SafetyIdentifier,
    SeedExtension,
    ServiceTier,
    Stream,
    Temperature,
    Tier,
    TopP,
    User,
    Verbosity,
)
from headrace.api.fields import MAX_LABEL, MAX_LOGPROBS, Count, Request, given, refused
from headrace.api.responses.items import InputItem
from headrace.api.sampling import TermFields
from headrace.api.tools import MAX_TOOLS, JsonObjectFormat, JsonSchema, TextFormat, ToolName

LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
_NO_CALLERS = "Only the model itself calls tools: leave it out."


class ResponseTool(Request, frozen=True):
    """A function that the model may call. Other kinds of tools are refused.

    Attributes:
        name: Of it.
        description: What it does, for the model.
        parameters: JSON Schema of its arguments; left out: it takes none.
        strict: The schema must be enforceable. Else it is enforced as far as that can be done.
    """

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool | None = None
    allowed_callers: Annotated[Any, refused([None, ["direct"]], _NO_CALLERS)] = None
    async_: Annotated[Any, refused([None, False], "Calls are not awaited here.")] = field(default=None, name="async")
    defer_loading: Annotated[Any, refused([None, False], "All tools are told to the model.")] = None
    output_schema: Annotated[Any, refused([None], "What functions return is not described to the model.")] = None


class ChosenFunction(Request, frozen=True, tag_field="type", tag="function"):
    """A function that must be called."""

    name: str


class NamedFunctionTool(Request, frozen=True):
    """A function that may be called."""

    type: Literal["function"]
    name: str


class AllowedFunctions(Request, frozen=True, tag_field="type", tag="allowed_tools"):
    """Only some of the functions may be called; ``required``: one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunctionTool], Meta(min_length=1, max_length=MAX_TOOLS)]


ResponseToolChoice = Literal["auto", "none", "required"] | ChosenFunction | AllowedFunctions


class FlatSchemaFormat(Request, frozen=True, tag_field="type", tag="json_schema"):
    """A JSON value that a schema allows.

    Attributes:
        name: A label.
        schema: JSON Schema (draft 2020-12).
        description: What the answer is for. Not shown to the model.
        strict: Accepted: a schema is always enforced.
    """

    name: Annotated[str, Meta(max_length=MAX_LABEL)]
    schema: JsonSchema
    description: str | None = None
    strict: bool | None = None


class TextConfig(Request, frozen=True):
    """What the text of an answer must look like; enforced while it is generated, or refused."""

    format: TextFormat | JsonObjectFormat | FlatSchemaFormat | None = None
    verbosity: Verbosity = None


class ReasoningConfig(Request, frozen=True):
    """How the model is to reason.

    Attributes:
        effort: How long, where its chat template lets it be told; ``none``: not at all.
    """

    effort: ReasoningEffort | None = None
    summary: Annotated[Any, refused([None, "auto"], "Reasoning is returned whole, and not summarized.")] = None
    generate_summary: Annotated[Any, refused([None, "auto"], "Reasoning is returned whole, and not summarized.")] = None
    context: Annotated[Any, refused([None, "auto"], "The chat template decides which reasoning is shown.")] = None
    mode: Annotated[Any, refused([None, "standard"], "There is one mode.")] = None


class ResponseStreamOptions(Request, frozen=True):
    """Options of a streamed answer."""

    include_obfuscation: NoPadding = None


Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class PromptFields(TermFields, frozen=True, kw_only=True):
    """What makes a prompt: the fields that both requests share."""

    input: Annotated[
        str | list[InputItem] | None,
        Meta(
            description="A text, or the items of a conversation. Needed, unless there is a previous_response_id.",
            examples=["Name three rivers."],
        ),
    ] = None
    instructions: Annotated[
        str | None, Meta(description="A system message. Those of a previous response are not carried over.")
    ] = None
    previous_response_id: Annotated[
        str | None, Meta(description="A stored response: the conversation goes on behind it.")
    ] = None
    tools: Annotated[
        Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None,
        CALLABLE,
    ] = None
    tool_choice: Annotated[
        ResponseToolChoice | None,
        CHOICE_OF_TOOLS,
    ] = None
    parallel_tool_calls: ParallelToolCalls = None
    reasoning: Annotated[ReasoningConfig | None, Meta(description="How the model is to reason.")] = None
    text: Annotated[TextConfig | None, Meta(description="What the answer must look like.")] = None
    truncation: Annotated[
        Any, refused([None, "disabled"], "What is too long is refused, never cut: leave truncation out.")
    ] = None
    conversation: Annotated[
        Any, refused([None], "There are no conversation objects here: use previous_response_id.")
    ] = None


class InputTokensRequest(PromptFields, frozen=True, kw_only=True):
    """The body of ``/v1/responses/input_tokens``, which counts the tokens of a prompt."""

    model: ModelNameOrDefault = None
    personality: Annotated[Any, refused([None], "Models have no personalities to choose from.")] = None


class ResponsesRequest(PromptFields, frozen=True, kw_only=True):
    """The body of ``/v1/responses`` (OpenAI API reference, "Create a response", plus extensions).

    Every optional field takes null for "absent". Fields are honoured, or accepted because they only label the request,
    or refused unless they ask for nothing; the schema of a refused field lists the values that are taken.
    """

    model: ModelName
    max_output_tokens: Annotated[
        Count | None, Meta(description="At most this many tokens of reasoning, text and calls together.")
    ] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description=f"Return that many likeliest tokens at each position; needs {LOGPROBS} in include."),
    ] = None
    include: Annotated[
        list[Include] | None,
        Meta(
            description=f"More to return: {LOGPROBS}, {ENCRYPTED}. The others concern tools that there are not, and "
            "add nothing."
        ),
    ] = None
    stream: Stream = None
    stream_options: Annotated[ResponseStreamOptions | None, Meta(description="Only with stream true.")] = None
    store: Annotated[
        bool | None, Meta(description="Keep the response for a while, to be read or continued. Default true.")
    ] = None
    service_tier: Tier = None
    user: User = None
    seed: SeedExtension = None

    metadata: Annotated[Labels | None, Meta(description="Labels of yours, returned with the response.")] = None
    max_tool_calls: Annotated[
        Count | None, Meta(description="Accepted: it bounds calls of built-in tools, of which there are none.")
    ] = None
    safety_identifier: SafetyIdentifier = None
    prompt_cache_key: PromptCacheKey = None
    prompt_cache_options: PromptCacheHints = None
    prompt_cache_retention: PromptCacheRetention = None

    background: Annotated[Any, refused([None, False], "Answers are sent while you wait: leave background out.")] = None
    background_options: Annotated[Any, refused([None], "There are no answers in the background.")] = None
    context_management: Annotated[Any, refused([None, []], "Conversations are not compacted here.")] = None
    prompt: Annotated[Any, refused([None], "There are no stored prompts here: send input.")] = None
    moderation: Moderation = None
    image: Annotated[Any, refused([None], "There are no images here: leave image out.")] = None
    access_programs: Annotated[Any, refused([None], "There are no access programs here.")] = None

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``: only what was given, and ``max_tokens`` always."""
        params = given(self, "temperature", "top_p", "seed")
        params["max_tokens"] = self.max_output_tokens
        if self.wants(LOGPROBS):
            params["logprobs"] = self.top_logprobs or 0
        return params

    def wants(self, name: Include) -> bool:
        """Whether something was asked for with ``include``."""
        return name in (self.include or ())

    @property
    def tier(self) -> ServiceTier:
        """The tier that was asked for."""
        return self.service_tier or "auto"
