"""What a type cannot say: rules between fields. Pure functions that raise ``ApiError`` (400) and return nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.api.anthropic.checks import check_count_tokens, check_messages
from headrace.api.anthropic.request import CountTokensRequest, MessagesRequest
from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.embeddings import EmbeddingRequest
from headrace.api.errors import bad_request, unsupported
from headrace.api.fields import INT32_MAX, LOGIT_BIAS_KEY, RESERVED_VARIABLES
from headrace.api.messages import AssistantMessage, Message
from headrace.api.prompts import check_prompts
from headrace.api.responses.checks import check_input_tokens, check_response
from headrace.api.responses.request import InputTokensRequest, ResponsesRequest
from headrace.api.rules import check_choice, check_refused, check_tools, deeper_than
from headrace.api.sampling import SamplingFields, StreamOptions
from headrace.api.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.api.tools import AllowedTools, NamedTool, TextFormat

MAX_TEMPLATE_DEPTH = 32
_TOKEN_KEY = re.compile(LOGIT_BIAS_KEY.replace("$", r"\Z"))


def check(request: msgspec.Struct) -> None:
    """Check the rules of whichever request this is."""
    _CHECKS[type(request)](request)


def _check_chat(request: ChatRequest) -> None:
    check_refused(request)
    if request.prompt_cache_options is not None:
        check_refused(request.prompt_cache_options, "prompt_cache_options.")
    _check_sampling(request)
    _check_messages(request.messages)
    _check_template(request.add_generation_prompt, request.continue_final_message, request.chat_template_kwargs)
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise bad_request(
            f"max_tokens ({both[0]}) and max_completion_tokens ({both[1]}) differ: give one of them.",
            param="max_completion_tokens",
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("top_logprobs needs logprobs: true.", param="top_logprobs")
    _check_lengths(request.min_tokens, both[1] if both[0] is None else both[0])
    _check_tools(request)
    _check_forms(request, [] if isinstance(request.response_format, TextFormat | None) else ["response_format"])


def _check_tools(request: ChatRequest) -> None:
    check_tools(
        [tool.function.name for tool in request.tools or ()],
        [tool.function.parameters for tool in request.tools or ()],
        name_path="tools[{i}].function.name",
        schema_path="tools[{i}].function.parameters",
    )
    choice = request.tool_choice
    if choice is None or choice == "none" or (choice == "auto" and request.tools is None):
        return
    wanted = []
    if isinstance(choice, NamedTool):
        wanted = [("tool_choice.function.name", choice.function.name)]
    elif isinstance(choice, AllowedTools):
        listed = enumerate(choice.allowed_tools.tools)
        wanted = [(f"tool_choice.allowed_tools.tools[{i}].function.name", tool.function.name) for i, tool in listed]
    check_choice([tool.function.name for tool in request.tools or ()], wanted, is_free=choice == "auto")


def _check_forms(request: SamplingFields, others: list[str]) -> None:
    """At most one thing may say what the answer looks like, and then the answer ends where that does."""
    given = [*others, *(name for name in ("regex", "choice", "grammar") if getattr(request, name) is not None)]
    if len(given) > 1:
        raise bad_request(f"{given[0]} and {given[1]} exclude each other.", param=given[1])
    must_call = isinstance(request, ChatRequest) and request.tool_choice not in (None, "auto", "none")
    if given or must_call:
        for name in ("min_tokens", "ignore_eos"):
            if getattr(request, name):
                why = "the answer ends where what is asked of it is complete"
                raise bad_request(f"{name} cannot be combined with {(given or ['tool_choice'])[0]}: {why}.", param=name)


def _check_completion(request: CompletionRequest) -> None:
    check_refused(request)
    _check_sampling(request)
    check_prompts(request.prompt, "prompt")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise unsupported(
            "best_of", "Choosing among more candidates than are returned is not supported: best_of must equal n."
        )
    _check_lengths(request.min_tokens, request.max_tokens)
    _check_forms(request, [])


def _check_tokenize(request: TokenizeRequest) -> None:
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give either prompt or messages.", param="prompt" if request.messages is None else "messages")
    _check_messages(request.messages or [])
    _check_template(request.add_generation_prompt, request.continue_final_message, request.chat_template_kwargs)


def _check_sampling(request: SamplingFields) -> None:
    options: StreamOptions | None = request.stream_options
    if options is not None:
        if not request.stream:
            raise bad_request("stream_options needs stream: true.", param="stream_options")
        check_refused(options, "stream_options.")
    for key in request.logit_bias or ():
        if not _TOKEN_KEY.match(key) or int(key) > INT32_MAX:
            raise bad_request(
                f"The keys of logit_bias are token ids in decimal, such as '198'; got {key[:40]!r}.",
                param=f"logit_bias.{key[:40]}",
            )


def _check_lengths(min_tokens: int | None, max_tokens: int | None) -> None:
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        raise bad_request(f"min_tokens ({min_tokens}) is over max_tokens ({max_tokens}).", param="min_tokens")


def _check_messages(messages: list[Message]) -> None:
    for i, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            check_refused(message, f"messages[{i}].")
            called = message.tool_calls or message.function_call is not None or message.refusal is not None
            if message.content is None and not called:
                raise bad_request(
                    "An assistant message needs content, unless it holds tool_calls, function_call or refusal.",
                    param=f"messages[{i}].content",
                )


def _check_template(add: bool | None, go_on: bool | None, variables: dict[str, Any] | None) -> None:
    if add and go_on:
        raise bad_request(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    for name in RESERVED_VARIABLES:
        if name in (variables or {}):
            raise bad_request(
                f"chat_template_kwargs may not set {name}, which the request itself gives.",
                param=f"chat_template_kwargs.{name}",
            )
    if variables is not None and deeper_than(variables, MAX_TEMPLATE_DEPTH):
        raise bad_request(
            f"chat_template_kwargs is nested more than {MAX_TEMPLATE_DEPTH} deep.", param="chat_template_kwargs"
        )


_CHECKS: dict[type[msgspec.Struct], Callable[[Any], None]] = {
    ChatRequest: _check_chat,
    CompletionRequest: _check_completion,
    EmbeddingRequest: lambda request: check_prompts(request.input, "input"),
    TokenizeRequest: _check_tokenize,
    DetokenizeRequest: lambda _: None,
    ResponsesRequest: check_response,
    InputTokensRequest: check_input_tokens,
    MessagesRequest: check_messages,
    CountTokensRequest: check_count_tokens,
}
