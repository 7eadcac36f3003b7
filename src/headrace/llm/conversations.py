"""What callers ask of answers, as the text layer takes it. Options are those of the HTTP API, and checked as there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from headrace.api.errors import ApiError
from headrace.api.parsing import Parsed, R, parse_chat, parse_completion
from headrace.errors import InvalidInput
from headrace.gateway.conversations import answer_form, chat_conversation
from headrace.text.conversation import AnswerForm, Conversation

Message = Mapping[str, Any]
"""A message in OpenAI's form: ``{"role": ..., "content": ...}``."""


class AnswerOptions(TypedDict, total=False):
    """What an answer must look like: at most one of these.

    Attributes:
        regex: A regular expression that it matches whole.
        choice: Texts of which it is one.
        grammar: A grammar in Lark or GBNF.
    """

    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


class ChatOptions(AnswerOptions, total=False):
    """The options of ``/v1/chat/completions`` that make a prompt, or bind the answer.

    Attributes:
        tools: Functions that the model may call, ``{"type": "function", "function": {"name": ..., ...}}``.
        tool_choice: ``auto``, ``none``, ``required``, or one tool by name.
        parallel_tool_calls: Several may be called in one answer. Default true.
        response_format: ``{"type": "json_object"}`` or ``{"type": "json_schema", "json_schema": {"name": ..., "schema":
            ...}}``.
        reasoning_effort: How long the model is to reason, where its chat template lets it be told.
        add_generation_prompt: End the prompt with the head of the answer. Default true, unless continuing.
        continue_final_message: Let the model continue the last message.
        chat_template_kwargs: Further variables for the template.
    """

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: Mapping[str, Any] | None
    reasoning_effort: str | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, Any] | None


def asked_by(options: ChatOptions) -> Conversation:
    """What is asked, of a conversation whose messages are still to come.

    Raises:
        InvalidInput: An option cannot be used; ``field`` names it.
    """
    _refuse_others(options, ChatOptions.__optional_keys__)
    request = _checked(parse_chat, {**options, "messages": [{"role": "user", "content": "any"}]})
    return dataclasses.replace(chat_conversation(request), messages=())


def form_of(options: AnswerOptions) -> AnswerForm:
    """What is asked of the answer to a plain prompt.

    Raises:
        InvalidInput: An option cannot be used; ``field`` names it.
    """
    _refuse_others(options, AnswerOptions.__optional_keys__)
    return answer_form(_checked(parse_completion, {**options, "prompt": "any"}))


def _refuse_others(options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse what is no option here, such as a sampling parameter."""
    for name in options:
        if name not in known:
            raise InvalidInput(f"there is no such option; there are {', '.join(sorted(known))}", field=name)


def _checked(parse: Callable[[bytes], Parsed[R]], body: Mapping[str, Any]) -> R:
    """A request of the HTTP API."""
    try:
        return parse(json.dumps({**body, "model": ""}, allow_nan=False).encode()).request
    except ApiError as error:
        raise InvalidInput(error.message, field=error.param, code=error.code) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"an option is not what JSON can hold: {error}") from None
