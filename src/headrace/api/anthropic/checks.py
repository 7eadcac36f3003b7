"""Rules between the fields of Messages requests."""

from __future__ import annotations

from headrace.api.anthropic.blocks import AssistantTurn, TextBlockParam
from headrace.api.anthropic.request import (
    AutoChoice,
    ConversationFields,
    CountTokensRequest,
    MessagesRequest,
    NoChoice,
    ThinkingEnabled,
    ToolChoiceByName,
)
from headrace.api.errors import bad_request, unsupported
from headrace.api.rules import check_choice, check_refused_within, check_schema, check_tools


def check_messages(request: MessagesRequest) -> None:
    """Check ``/v1/messages``; raises ``ApiError`` (400)."""
    _check_conversation(request)
    thinking = request.thinking
    if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= request.max_tokens:
        message = f"budget_tokens ({thinking.budget_tokens}) must be below max_tokens ({request.max_tokens})."
        raise bad_request(message, param="thinking.budget_tokens")


def check_count_tokens(request: CountTokensRequest) -> None:
    """Check ``/v1/messages/count_tokens``; raises ``ApiError`` (400)."""
    _check_conversation(request)


def _check_conversation(request: ConversationFields) -> None:
    check_refused_within(request)
    tools, choice = request.tools or [], request.tool_choice
    names = [tool.name for tool in tools]
    check_tools(
        names, [tool.input_schema for tool in tools], name_path="tools[{i}].name", schema_path="tools[{i}].input_schema"
    )
    if not isinstance(choice, AutoChoice | NoChoice | None):
        wanted = [("tool_choice.name", choice.name)] if isinstance(choice, ToolChoiceByName) else []
        check_choice(names, wanted, is_free=False)
    _check_formats(request)
    _check_last(request)


def _check_formats(request: ConversationFields) -> None:
    given = None if request.output_config is None else request.output_config.format
    if given is not None and request.output_format is not None:
        raise bad_request("output_config.format and output_format exclude each other.", param="output_format")
    if given is not None:
        check_schema(given.schema, "output_config.format.schema")
    if request.output_format is not None:
        check_schema(request.output_format.schema, "output_format.schema")


def _check_last(request: ConversationFields) -> None:
    """A text can be continued; a call has a result, or there is nothing to answer."""
    last = request.messages[-1]
    if not isinstance(last, AssistantTurn):
        return
    path = f"messages[{len(request.messages) - 1}].content"
    if isinstance(last.content, str):
        ends = last.content
    else:
        final = last.content[-1] if last.content else None
        if final is not None and not isinstance(final, TextBlockParam):
            raise unsupported(path, "Only text can be continued: the last block of the last message must be text.")
        ends = "" if final is None else final.text
    if not ends:
        raise bad_request("The last message is the assistant's, and there is nothing in it to continue.", param=path)
