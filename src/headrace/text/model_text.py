"""``ModelText``: what one model reads and writes: its tokenizer, its chat template, and its format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import InvalidInput
from headrace.text.chat_template import ChatTemplate
from headrace.text.conversation import AnswerForm, Conversation, Tool
from headrace.text.formats.catalog import GENERIC, format_named, formats
from headrace.text.formats.detection import detect_format, shows_tools, writes_calls
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.reader import primed_by
from headrace.text.formats.writer import write_calls
from headrace.text.output_grammar import OutputGrammars, answer_source
from headrace.text.prepared import Prepared
from headrace.text.prompt import Prompt, chat_prompt, check_messages, normalize_messages
from headrace.text.reading import Reading
from headrace.text.stream import MessageForm
from headrace.text.tokenizer import Tokenizer

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_EXAMPLE = ("name_of_the_tool", json.dumps({"name_of_the_argument": "value"}))
_SWITCHES = ("enable_thinking", "thinking")


def model_text(tokenizer: Tokenizer, given: str | None = None) -> ModelText:
    """What a model reads and writes.

    Args:
        tokenizer: The model's.
        given: The name of its format, or the path of a file with it; None: what its chat template shows.

    Raises:
        InvalidInput: There is no such format.
    """
    return ModelText(tokenizer, None if given is None else format_named(given))


class ModelText:
    """What one model reads and writes.

    Args:
        tokenizer: The model's.
        given: Its format; None: the one that its chat template shows.

    Attributes:
        tokenizer: The model's.
        format: How it writes tool calls and reasoning.
        format_name: Of its format, for people.
    """

    def __init__(self, tokenizer: Tokenizer, given: Format | None = None) -> None:
        template = tokenizer.chat_template
        self.tokenizer = tokenizer
        self._shows_tools = template is not None and shows_tools(template)
        self._writes_calls = template is not None and writes_calls(template)
        self._takes_system = template is not None and _takes_system(template)
        self._variables = frozenset[str]() if template is None else template.variables
        self.format = given or detect_format(template)
        self.format_name = self.format.name
        if self.format.calls is None or not (given or self._shows_tools or self._writes_calls):
            # The model was not taught to call tools, or nobody knows how: it is told in the prompt.
            generic = formats()[GENERIC]
            self.format = msgspec.structs.replace(self.format, calls=generic.calls)
        self._grammars = OutputGrammars(tokenizer, self.format)

    def is_prepared(self, conversation: Conversation, prompt: Prompt) -> bool:
        """Whether ``prepare`` has no grammar to make, which may take a second."""
        return self._grammars.has(conversation, primed_by(self.format, prompt.text or ""))

    def prepare(self, conversation: Conversation, prompt: Prompt) -> Prepared:
        """How the answer to a conversation is to be read, and what it must follow.

        Args:
            conversation: What is to be answered.
            prompt: Its prompt.

        Raises:
            InvalidInput: What is asked of the answer cannot be enforced; ``field`` names the place.
        """
        form = conversation.answer
        if conversation.continue_final_message and form.kind in ("json_object", "json_schema"):
            raise InvalidInput("JSON cannot go on from a message: what was begun counts too", field=form.field)
        primed = primed_by(self.format, prompt.text or "")
        grammar = self._grammars.of(conversation, primed)
        return Prepared(
            prompt,
            self._form(conversation, primed),
            grammar.source,
            "tools" if conversation.tools else form.field,
            conversation.is_free,
            conversation.schemas,
            grammar.relaxed,
        )

    def _form(self, conversation: Conversation, primed: str) -> MessageForm | None:
        """How the answer is to be taken apart; None: it is plain text."""
        tools: list[tuple[str, object]] = [
            (tool.name, tool.parameters or {}) for _, tool in conversation.callable_tools
        ]
        if self.format.reasoning is None and not self.format.answer.markers and not tools:
            return None
        return MessageForm(self.format, Reading.of(primed, tools), conversation.call_ids)

    def answer_grammar(self, form: AnswerForm) -> str | None:
        """What a completion of this form must follow; None: nothing.

        Raises:
            InvalidInput: It cannot be enforced; ``field`` names it.
        """
        return None if form.kind == "text" else answer_source(form)

    def prompt(self, conversation: Conversation) -> Prompt:
        """The prompt of a conversation.

        Raises:
            InvalidInput: The model has no chat template, or the conversation does not fit it; ``field`` says where.
        """
        check_messages(conversation.messages)
        tools = list(conversation.tools)
        messages = list(conversation.messages)
        variables = {**self._reasoning(conversation), **conversation.template}
        if not self._writes_calls:
            messages = [self._plain(message) for message in messages]
        elif self.format.calls is not None and self.format.calls.id == "$random9":
            messages = [_with_short_ids(message) for message in messages]
        if tools and not self._shows_tools:
            if self.tokenizer.chat_template is not None:  # what is wrong is named before places shift
                normalize_messages(self.tokenizer.chat_template, conversation.messages)
            messages = self._with_tools_told(messages, tools)
        return chat_prompt(
            self.tokenizer,
            messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            tools=[tool.plain() for tool in tools] if tools and self._shows_tools else None,
            **variables,
        )

    def _reasoning(self, conversation: Conversation) -> dict[str, Any]:
        """The template's variables for how the model is to reason.

        Raises:
            InvalidInput: It has none.
        """
        variables: dict[str, Any] = {}
        effort = conversation.reasoning_effort
        if effort is not None:
            if "reasoning_effort" in self._variables and effort != "none":
                variables["reasoning_effort"] = effort
            switch = next((name for name in _SWITCHES if name in self._variables), None)
            if switch is not None:
                variables[switch] = effort != "none"
            if not variables and effort != "none":
                raise InvalidInput("this model's template has no reasoning effort to set", field="reasoning_effort")
        if conversation.reasoning_budget is not None and "thinking_budget" in self._variables:
            variables["thinking_budget"] = conversation.reasoning_budget
        return variables

    def _plain(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as a template can show it that knows nothing of calls."""
        prompt = formats()[GENERIC].prompt if self.format.prompt is None else self.format.prompt
        calls = self.format.calls
        if calls is None or prompt is None:
            return message
        if message.get("role") == "tool":
            return {"role": "user", "content": prompt.result.replace("$content", str(message.get("content") or ""))}
        made = message.get("tool_calls")
        if not made:
            return message
        try:
            written = write_calls(calls, [_call(call) for call in made])
        except InvalidInput:  # the model's own mistake, which it is to see
            written = json.dumps([call["function"] for call in made], ensure_ascii=False)
        content = "\n".join(text for text in (message.get("content") or "", written) if text)
        return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}

    def _with_tools_told(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
        """The messages, with the tools and how to call them in the system message."""
        prompt = self.format.prompt or formats()[GENERIC].prompt
        if prompt is None or self.format.calls is None:
            return list(messages)
        listed = json.dumps([tool.plain()["function"] for tool in tools], ensure_ascii=False)
        # An id that is drawn would make each prompt another one.
        shown = ToolCall(*_EXAMPLE, short_id(self.format.name) if "$random" in self.format.calls.id else None)
        told = prompt.tools.replace("$example", write_calls(self.format.calls, [shown])).replace("$tools", listed)
        first = messages[0] if messages else {}
        if first.get("role") == ("system" if self._takes_system else "user"):
            content = f"{first.get('content') or ''}\n{told}".strip()
            return [{**first, "content": content}, *messages[1:]]
        return [{"role": "system" if self._takes_system else "user", "content": told.strip()}, *messages]


def _takes_system(template: ChatTemplate) -> bool:
    """Whether a conversation may begin with a system message."""
    try:
        template.render([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    except InvalidInput:
        return False
    return True


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(function["name"], written, call.get("id"))


def _with_short_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose calls' ids have nine letters and digits: some templates refuse all others."""
    out = dict(message)
    if isinstance(out.get("tool_call_id"), str):
        out["tool_call_id"] = short_id(out["tool_call_id"])
    if out.get("tool_calls"):
        out["tool_calls"] = [{**call, "id": short_id(str(call.get("id")))} for call in out["tool_calls"]]
    return out


def short_id(identifier: str) -> str:
    """An id of nine letters and digits: itself, or the same one for the same id."""
    if len(identifier) == 9 and identifier.isascii() and identifier.isalnum():
        return identifier
    number = int.from_bytes(hashlib.sha256(identifier.encode("utf-8", "replace")).digest()[:8], "big")
    return "".join(_LETTERS[number // 62**i % 62] for i in range(9))
