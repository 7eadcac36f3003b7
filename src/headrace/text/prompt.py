"""``Prompt``: what the engine is given, and the ways to make one: from messages, from text, from token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import InvalidInput
from headrace.text.chat_template import FIELD, ChatTemplate
from headrace.text.tokenizer import Tokenizer, Tokens, check_text


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input of one request.

    Attributes:
        tokens: Token ids, at least one.
        text: The text they were made from, or None if the caller gave token ids.
    """

    tokens: tuple[int, ...]
    text: str | None = None

    def to_bytes(self) -> bytes:
        """The tokens as little-endian int32, as they travel to a replica."""
        return np.asarray(self.tokens, dtype="<i4").tobytes()


def text_prompt(tokenizer: Tokenizer, text: str, *, field: str = "prompt", add_special_tokens: bool = True) -> Prompt:
    """A prompt from text, with what the model wants around a text (such as BOS).

    Raises:
        InvalidInput: The text is not a string, is not Unicode, or makes no tokens; ``field`` names it.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"must be a string, got {type(text).__name__}", field=field)
    check_text(text, field=field)
    tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if not tokens:
        raise InvalidInput("the prompt is empty", field=field, code="empty_prompt")
    return Prompt(tuple(tokens), text)


def token_prompt(
    tokenizer: Tokenizer, tokens: Tokens, *, field: str = "prompt", vocab_size: int | None = None
) -> Prompt:
    """A prompt from token ids, taken as they are.

    Args:
        tokenizer: Whose tokens they are.
        tokens: Token ids.
        field: What errors name.
        vocab_size: Ids must be below it; the tokenizer's own if None. A model's output layer may have more
            rows than its tokenizer has tokens.

    Raises:
        InvalidInput: There is none, or one is not an integer of the vocabulary; ``field`` names it.
    """
    ids = tokens.tolist() if isinstance(tokens, np.ndarray) else list(tokens)
    if not ids:
        raise InvalidInput("the prompt is empty", field=field, code="empty_prompt")
    size = tokenizer.vocab_size if vocab_size is None else vocab_size
    for i, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise InvalidInput(f"a token id must be an integer, got {type(token).__name__}", field=f"{field}[{i}]")
        if not 0 <= token < size:
            message = f"token id {token} is outside the vocabulary (0 to {size - 1})"
            raise InvalidInput(message, field=f"{field}[{i}]")
    return Prompt(tuple(int(token) for token in ids))


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    /,  # a template's variables may have any name
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> Prompt:
    """A prompt from messages, by the model's chat template.

    The template writes the control tokens itself, so none are added, and their spellings are read as control
    tokens wherever they stand, in a message too (as vLLM, llama.cpp and Transformers do by default).

    Args:
        tokenizer: Whose template and tokens are used.
        messages: The conversation, in OpenAI's form. Content given as text parts is joined by newlines, unless
            the template walks over parts; ``arguments`` of tool calls are parsed, as templates expect.
        add_generation_prompt: End with the header of the answer to come.
        continue_final_message: End inside the last message, so that the model continues it.
        tools: Function schemas, as OpenAI's ``tools``.
        **kwargs: Further variables for the template.

    Raises:
        InvalidInput: The model has no chat template, or the messages do not fit it; ``field`` names the place.
    """
    template = tokenizer.chat_template
    if template is None:
        message = "the model has no chat template; use completions with a prompt instead"
        raise InvalidInput(message, field=FIELD, code="no_chat_template")
    text = template.render(
        normalize_messages(template, messages),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        **kwargs,
    )
    return text_prompt(tokenizer, text, field=FIELD, add_special_tokens=False)


def normalize_messages(template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI's messages in the form that ``template`` reads.

    Raises:
        InvalidInput: A message is malformed or holds what is not text; ``field`` names the place.
    """
    check_messages(messages)
    return [_normalize(template, message, f"{FIELD}[{i}]") for i, message in enumerate(messages)]


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Messages are objects with a role, and their calls of tools are such; contents are looked at later.

    Raises:
        InvalidInput: One is not; ``field`` names the place.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise InvalidInput("must be a list of messages", field=FIELD)
    if not messages:
        raise InvalidInput("there must be at least one message", field=FIELD)
    for i, message in enumerate(messages):
        field = f"{FIELD}[{i}]"
        if not isinstance(message, Mapping):
            raise InvalidInput("a message must be an object", field=field)
        if not isinstance(message.get("role"), str):
            raise InvalidInput("a message must have a role", field=f"{field}.role")
        if message.get("tool_calls") is not None:
            _check_calls(message["tool_calls"], f"{field}.tool_calls")


def _check_calls(calls: object, field: str) -> None:
    if not isinstance(calls, list | tuple):
        raise InvalidInput("must be a list", field=field)
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidInput("a tool call must have a function with a name", field=f"{field}[{i}]")


def _normalize(template: ChatTemplate, message: Mapping[str, Any], field: str) -> dict[str, Any]:
    out = dict(message)
    content = out.get("content")
    if isinstance(content, str):
        check_text(content, field=f"{field}.content")
    elif isinstance(content, Sequence):
        texts = [_part_text(part, f"{field}.content[{i}]") for i, part in enumerate(content)]
        parts = [{"type": "text", "text": text} for text in texts]
        out["content"] = parts if template.wants_parts else "\n".join(texts)
    elif content is not None:
        raise InvalidInput("content must be a string or a list of parts", field=f"{field}.content")
    elif out["role"] == "assistant":
        out["content"] = ""  # it only calls tools; many templates fail on a message without content
    if out.get("tool_calls") is not None:
        out["tool_calls"] = [_tool_call(call) for call in out["tool_calls"]]
    return out


def _part_text(part: object, field: str) -> str:
    if isinstance(part, str):
        text: object = part
    elif isinstance(part, Mapping):
        kind = part.get("type", "text")
        if kind not in ("text", "refusal"):
            raise InvalidInput(f"the model reads text only, not a part of type {kind!r}", field=f"{field}.type")
        text = part.get(kind)
        field = f"{field}.{kind}"
    else:
        text = None
    if not isinstance(text, str):
        raise InvalidInput("a part must hold text", field=field)
    check_text(text, field=field)
    return text


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _arguments(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _arguments(written: str) -> object:
    """OpenAI's wire format has JSON in a string; templates print or walk over the object itself.

    What a model once wrote wrongly stays a string: an agent that shows the model its mistake must not be refused.
    """
    try:
        arguments = json.loads(written) if written.strip() else {}
    except (ValueError, RecursionError):
        return written
    return arguments if isinstance(arguments, dict) else written
