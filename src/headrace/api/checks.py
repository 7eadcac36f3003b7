"""What a type cannot say: rules between fields. Pure functions that raise ``ApiError`` (400) and return nothing."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from headrace.api.chat import ChatRequest
from headrace.api.completions import MAX_PROMPTS, CompletionRequest
from headrace.api.errors import bad_request, unsupported
from headrace.api.fields import (
    INT32_MAX,
    LOGIT_BIAS_KEY,
    RESERVED_VARIABLES,
    Refused,
    SamplingFields,
    StreamOptions,
    refused_fields,
)
from headrace.api.messages import AssistantMessage, Message
from headrace.api.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.api.tools import AllowedTools, NamedTool, TextFormat

MAX_TEMPLATE_DEPTH = 32
MAX_SCHEMA_DEPTH = 128
_TOKEN_KEY = re.compile(LOGIT_BIAS_KEY.replace("$", r"\Z"))


def check(request: msgspec.Struct) -> None:
    """Check the rules of whichever request this is."""
    if isinstance(request, ChatRequest):
        _check_chat(request)
    elif isinstance(request, CompletionRequest):
        _check_completion(request)
    elif isinstance(request, TokenizeRequest):
        _check_tokenize(request)
    elif not isinstance(request, DetokenizeRequest):
        raise TypeError(f"not a request: {type(request).__name__}")


def _check_chat(request: ChatRequest) -> None:
    _check_refused(request)
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
    names = [tool.function.name for tool in request.tools or ()]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise bad_request(f"Two tools are called {name!r}.", param=f"tools[{i}].function.name")
    for i, tool in enumerate(request.tools or ()):
        if tool.function.parameters is not None and _deeper_than(tool.function.parameters, MAX_SCHEMA_DEPTH):
            param = f"tools[{i}].function.parameters"
            raise bad_request(f"The schema is nested more than {MAX_SCHEMA_DEPTH} deep.", param=param)
    choice = request.tool_choice
    if choice is None or choice == "none" or (choice == "auto" and request.tools is None):
        return
    if not names and choice != "auto":
        raise bad_request("tool_choice asks for a tool, and there are no tools.", param="tool_choice")
    wanted = []
    if isinstance(choice, NamedTool):
        wanted = [("tool_choice.function.name", choice.function.name)]
    elif isinstance(choice, AllowedTools):
        listed = enumerate(choice.allowed_tools.tools)
        wanted = [(f"tool_choice.allowed_tools.tools[{i}].function.name", tool.function.name) for i, tool in listed]
    for param, name in wanted:
        if name not in names:
            raise bad_request(f"There is no tool {name[:128]!r} among the tools.", param=param)


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
    _check_refused(request)
    _check_sampling(request)
    _check_prompt(request.prompt)
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


@cache
def _refused(kind: type[msgspec.Struct]) -> list[tuple[str, Refused]]:
    return list(refused_fields(kind))


def _check_refused(record: msgspec.Struct, prefix: str = "") -> None:
    for name, rule in _refused(type(record)):
        if not any(_same(getattr(record, name), neutral) for neutral in rule.neutral):
            raise unsupported(prefix + name, f"'{prefix}{name}' is not supported at this value. {rule.why}")


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: 0 is not false."""
    return type(value) is type(neutral) and value == neutral


def _check_sampling(request: SamplingFields) -> None:
    options: StreamOptions | None = request.stream_options
    if options is not None:
        if not request.stream:
            raise bad_request("stream_options needs stream: true.", param="stream_options")
        _check_refused(options, "stream_options.")
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
            _check_refused(message, f"messages[{i}].")
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
    if variables is not None and _deeper_than(variables, MAX_TEMPLATE_DEPTH):
        raise bad_request(
            f"chat_template_kwargs is nested more than {MAX_TEMPLATE_DEPTH} deep.", param="chat_template_kwargs"
        )


def _deeper_than(value: Any, limit: int) -> bool:
    layer = [value]
    for _ in range(limit):
        layer = [
            child
            for node in layer
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not layer:
            return False
    return any(isinstance(node, dict | list) for node in layer)


def _check_prompt(prompt: str | list[Any]) -> None:
    if len(prompt) == 0:
        raise bad_request("The prompt is empty.", param="prompt")
    if isinstance(prompt, str):
        return
    kind = type(prompt[0])
    for i, item in enumerate(prompt):
        if type(item) is not kind:
            raise bad_request(
                "A prompt list holds strings, or token ids, or lists of token ids, and one kind only.",
                param=f"prompt[{i}]",
            )
        if kind is not int and len(item) == 0:
            raise bad_request("The prompt is empty.", param=f"prompt[{i}]")
    if kind is not int and len(prompt) > MAX_PROMPTS:
        raise bad_request(f"At most {MAX_PROMPTS} prompts in one request, got {len(prompt)}.", param="prompt")
