"""The grammar of one answer: what its request asks of it, in the form in which the model writes."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import InvalidInput
from headrace.text.conversation import AnswerForm, Conversation, Tool
from headrace.text.formats.call_grammar import ANY_OBJECT, CallableTool
from headrace.text.formats.lark import END
from headrace.text.formats.message_grammar import CallMode, MessageForm, message_grammar
from headrace.text.formats.notation import Format
from headrace.text.grammar.sources import (
    choice_source,
    grammar_source,
    json_object_source,
    json_schema_source,
    regex_source,
)
from headrace.text.schema import Dialect, schema_rules
from headrace.text.tokenizer import Tokenizer

KEPT = 256
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_COMBINED = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentSchemas",
     "propertyNames", "unevaluatedProperties", "minProperties")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """What an answer must follow.

    Attributes:
        source: A grammar; None: nothing.
        relaxed: Tools whose schemas are not enforced, each with the reason.
    """

    source: str | None = None
    relaxed: Mapping[str, str] = field(default_factory=dict)


class OutputGrammars:
    """The grammars of one model's answers, the latest ones kept: agents send the same tools again and again.

    Args:
        tokenizer: The model's.
        found: How the model writes.
    """

    def __init__(self, tokenizer: Tokenizer, found: Format) -> None:
        self._tokenizer, self._format = tokenizer, found
        self._kept: OrderedDict[str, OutputGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, conversation: Conversation, primed: str) -> bool:
        """Whether ``of`` gives one at once."""
        return conversation.asks_nothing or _key(conversation, primed) in self._kept

    def of(self, conversation: Conversation, primed: str) -> OutputGrammar:
        """See ``output_grammar``."""
        if conversation.asks_nothing:
            return OutputGrammar()
        key = _key(conversation, primed)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = output_grammar(self._tokenizer, self._format, conversation, primed)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


def output_grammar(tokenizer: Tokenizer, found: Format, conversation: Conversation, primed: str) -> OutputGrammar:
    """The grammar of the answer to a conversation.

    Args:
        tokenizer: The model's.
        found: How the model writes.
        conversation: What is asked of the answer.
        primed: What of the message stands in the prompt already.

    Raises:
        InvalidInput: Something cannot be enforced that must be; ``field`` names it.
    """
    if conversation.asks_nothing:
        return OutputGrammar()
    answer = None if conversation.answer.kind == "text" else answer_source(conversation.answer)
    chosen = conversation.callable_tools
    must = conversation.tool_choice.mode == "required"
    relaxed: dict[str, str] = {}
    tools = []
    for i, tool in chosen:
        where = conversation.tool_field.format(i=i)
        tools.append(_callable(found, tool, where, relaxed, keep=must or tool.strict))
    calls: CallMode = "must" if must else "may" if tools else "none"
    form = MessageForm(tuple(tools), calls, conversation.parallel_tool_calls, answer)
    source = message_grammar(found, form, primed=primed, specials=_specials(tokenizer))
    return OutputGrammar(source, relaxed)


def _callable(found: Format, tool: Tool, where: str, relaxed: dict[str, str], *, keep: bool) -> CallableTool:
    """A tool with its schema, or with any object instead of one that cannot be enforced and need not be."""
    if tool.strict and tool.parameters is not None:
        schema_rules(tool.parameters, field=where, dialect=Dialect.TOOL)
    made = CallableTool(tool.name, closed(tool.parameters or NO_ARGUMENTS))
    try:
        message_grammar(found, MessageForm((made,), "must"))
    except InvalidInput as error:
        where += (error.field or "").removeprefix("tools[0].function.parameters")
        if keep:
            raise error.renamed(where) from error
        relaxed[tool.name] = f"{where} {error.message}"
        return CallableTool(tool.name, ANY_OBJECT)
    return made


def closed(schema: Any) -> Any:
    """A schema whose objects have the properties that are listed and no others, unless it says something of others.

    JSON Schema lets any other property in, and a model that may invent arguments does. What is left are values that the
    schema allows. Only objects that nothing else is said of are closed: elsewhere that could allow more.

    Args:
        schema: JSON Schema.
    """
    if not isinstance(schema, Mapping) or schema.keys() & _COMBINED:
        return schema
    made = dict(schema)
    if isinstance(made.get("properties"), Mapping) and made["properties"]:
        made["properties"] = {name: closed(item) for name, item in made["properties"].items()}
        made.setdefault("additionalProperties", False)
    if "items" in made:
        made["items"] = closed(made["items"])
    return made


def answer_source(form: AnswerForm) -> str:
    """The grammar of an answer of this form, and nothing but it.

    Raises:
        InvalidInput: It cannot be enforced; ``field`` names it.
    """
    match form.kind:
        case "json_object":
            return json_object_source()
        case "json_schema":
            return json_schema_source(form.value, field=form.field)
        case "regex":
            return regex_source(form.value, field=form.field)
        case "choice":
            return choice_source(form.value, field=form.field)
        case "grammar":
            return grammar_source(form.value, field=form.field)
        case "text":
            raise ValueError("any text will do")


def _key(conversation: Conversation, primed: str) -> str:
    asked = (conversation.tools, conversation.tool_choice, conversation.parallel_tool_calls, conversation.answer)
    return json.dumps([asked, primed, conversation.tool_field], default=dataclasses.asdict)


def _specials(tokenizer: Tokenizer) -> dict[str, int]:
    """Control tokens by their texts."""
    ends = tokenizer.eos_token_ids
    return {
        tokenizer.token_text(token): END if token in ends else token
        for token in tokenizer.special_ids
        if tokenizer.token_bytes(token)
    }
