"""``ChatRequest``: the body of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from headrace.api.common import (
    CALLABLE,
    CHOICE_OF_TOOLS,
    Labels,
    Moderation,
    ParallelToolCalls,
    PromptCacheHints,
    PromptCacheKey,
    PromptCacheRetention,
    ReasoningEffort,
    SafetyIdentifier,
    ServiceTier,
    Tier,
    Verbosity,
)
from headrace.api.fields import MAX_LOGPROBS, Count, Request, refused
from headrace.api.messages import Message, TextContent, template_messages
from headrace.api.sampling import SamplingFields
from headrace.api.tools import MAX_TOOLS, FunctionTool, ResponseFormat, ToolChoiceField


class Prediction(Request, frozen=True):
    """OpenAI's predicted output, a hint that may speed an answer up and never changes it. Accepted, not used."""

    type: Literal["content"]
    content: TextContent


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """The body of ``/v1/chat/completions`` (OpenAI API reference, "Create chat completion", plus extensions).

    Every optional field takes null for "absent". Fields are honoured, or accepted because they only label the request,
    or refused unless they ask for nothing; the schema of a refused field lists the values that are taken.
    """

    messages: Annotated[
        list[Message],
        Meta(
            min_length=1,
            description="The conversation so far.",
            examples=[[{"role": "user", "content": "Name three rivers."}]],
        ),
    ]
    max_completion_tokens: Annotated[Count | None, Meta(description="OpenAI's newer name of max_tokens.")] = None
    logprobs: Annotated[bool | None, Meta(description="Return the log probability of each output token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None,
        Meta(description="Return that many likeliest tokens at each position; needs logprobs true."),
    ] = None

    add_generation_prompt: Annotated[
        bool | None,
        Meta(description="Extension. End the prompt with the head of an answer. Default true, unless continuing."),
    ] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="Extension. Continue the last message instead of answering it.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="Extension. Variables for the chat template.")
    ] = None

    metadata: Annotated[Labels | None, Meta(description="Labels of yours. Accepted, not used.")] = None
    store: Annotated[bool | None, Meta(description="Accepted; nothing is stored.")] = None
    service_tier: Tier = None
    safety_identifier: SafetyIdentifier = None
    prompt_cache_key: PromptCacheKey = None
    prompt_cache_options: PromptCacheHints = None
    prompt_cache_retention: PromptCacheRetention = None
    prediction: Annotated[Prediction | None, Meta(description="Accepted, not used: it never changes the answer.")] = (
        None
    )

    tools: Annotated[
        Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None,
        CALLABLE,
    ] = None
    tool_choice: Annotated[
        ToolChoiceField | None,
        CHOICE_OF_TOOLS,
    ] = None
    parallel_tool_calls: ParallelToolCalls = None
    functions: Annotated[Any, refused([None, []], "Functions are tools now: use tools.")] = None
    function_call: Annotated[Any, refused([None, "none", "auto"], "Use tool_choice.")] = None
    response_format: Annotated[
        ResponseFormat | None,
        Meta(description="What the answer must look like; enforced while it is generated, or refused."),
    ] = None
    modalities: Annotated[Any, refused([None, ["text"]], 'Answers are text: modalities may be ["text"].')] = None
    audio: Annotated[Any, refused([None], "Answers are text: leave audio out.")] = None
    moderation: Moderation = None
    web_search_options: Annotated[
        Any, refused([None], "There is no web search here: leave web_search_options out.")
    ] = None
    reasoning_effort: Annotated[
        ReasoningEffort | None,
        Meta(description="How long the model is to reason, where its chat template lets it be told; none: not at all."),
    ] = None
    verbosity: Verbosity = None

    def sampling(self) -> dict[str, Any]:
        """Keyword arguments for ``SamplingParams``: only what was given, and ``max_tokens`` always."""
        params = self.common_sampling()
        params["max_tokens"] = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        if self.logprobs:
            params["logprobs"] = self.top_logprobs or 0
        return params

    def template_messages(self, *, developer_as: str = "system") -> list[dict[str, Any]]:
        """The messages as plain dictionaries; see ``messages.template_messages``."""
        return template_messages(self.messages, developer_as=developer_as)

    @property
    def tier(self) -> ServiceTier:
        """The tier that was asked for."""
        return self.service_tier or "auto"

    @property
    def generation_prompt(self) -> bool:
        """Whether the prompt ends with the head of an answer."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
