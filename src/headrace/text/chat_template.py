"""``ChatTemplate``: messages to text, by the Jinja template that the model ships.

The environment (sandbox, whitespace rules, helpers, ``{% generation %}``) is the one for which templates are
written: that of ``apply_chat_template`` in Transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from headrace.errors import InvalidInput

FIELD = "messages"
"""What errors name: a template fails because of the messages that it was given."""

MAX_STEPS = 1_000_000
"""Most numbers that all ``range`` calls of one rendering may yield."""

MAX_CHARACTERS = 64 * 2**20
"""Longest text that a rendering, or one repetition of a string in it, may yield."""

MAX_WIDTH = 2**20
"""Largest width to which a template may pad or indent."""

_WIDE_FORMAT = re.compile(r"\*|\d{5}")

_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A chat template, compiled once.

    Args:
        source: The Jinja source, as the model ships it.
        tokens: Variables that every rendering sees, such as ``bos_token``.

    Attributes:
        source: The Jinja source.
        wants_parts: The template walks over a message's content as a list of parts, so such a list may be
            passed as it is; otherwise content must be a string.
        variables: Names that the template reads and does not set.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source = source
        self._tokens = dict(tokens)
        self._template: jinja2.Template | None = None
        self._problem = ""
        self.wants_parts = False
        self.variables: frozenset[str] = frozenset()
        environment = _environment()
        # A model whose template is broken still serves completions, so the error waits for the first chat.
        try:
            self._template = environment.from_string(source)
            parsed = environment.parse(source)
            self.wants_parts = _walks_over_content(parsed)
            self.variables = frozenset(meta.find_undeclared_variables(parsed))
        except (jinja2.TemplateError, RecursionError) as error:
            self._problem = str(error) or type(error).__name__

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # a template's variables may have any name
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of a conversation, control tokens included.

        Args:
            messages: The conversation: JSON objects with ``role``, ``content`` and whatever the template reads.
                Keys whose value is None count as absent.
            add_generation_prompt: End with the header of the answer to come.
            continue_final_message: End inside the last message, so that the model continues it.
            tools: Function schemas, as OpenAI's ``tools``.
            **kwargs: Further variables for the template.

        Raises:
            InvalidInput: The template refuses the messages or fails on them; ``field`` is ``messages``.
        """
        if self._template is None:
            raise InvalidInput(f"the model's chat template cannot be compiled: {self._problem}", field=FIELD)
        if continue_final_message and add_generation_prompt:
            message = "continue_final_message and add_generation_prompt exclude each other"
            raise InvalidInput(message, field="continue_final_message")
        try:
            chat = [_message(message) for message in messages]
            given = {"tools": _plain(tools), "documents": None, **_plain(kwargs)}
        except RecursionError:
            raise InvalidInput("the messages are nested too deeply", field=FIELD) from None
        variables = self._tokens | given | {"messages": chat, "add_generation_prompt": add_generation_prompt}
        if continue_final_message:
            return _render_open(self._template, chat, variables)
        return _run(self._template, variables)


def _run(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    text, length = [], 0
    try:
        for piece in template.generate({"range": _bounded_range(), **variables}):
            text.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                raise OverflowError(f"more than {MAX_CHARACTERS} characters")
    except Exception as error:
        # The template is a program of the model's, the messages its input: whatever it raises is about them.
        reason = str(error) or type(error).__name__
        message = f"the model's chat template cannot render these messages: {reason}"
        raise InvalidInput(message, field=FIELD) from error
    return "".join(text)


def _render_open(template: jinja2.Template, chat: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
    """Render with a mark at the end of the last message's content, and cut there."""
    mark = "\ue000headrace:end\ue001"
    if not chat:
        raise InvalidInput("there is no message to continue", field=FIELD)
    field = f"{FIELD}[{len(chat) - 1}].content"
    final = chat[-1]
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + mark + " "
    else:
        parts = content if isinstance(content, list) else []
        part = next((p for p in reversed(parts) if isinstance(p, dict) and isinstance(p.get("text"), str)), None)
        if part is None:
            raise InvalidInput("the last message has no text to continue", field=field)
        content = part["text"]
        part["text"] = content + mark + " "
    rendered = _run(template, variables)
    at = rendered.rfind(mark)
    if at < 0 or content.strip() not in rendered:
        raise InvalidInput("the chat template does not show the last message, so it cannot be continued", field=field)
    # A template that trims content would have trimmed spaces before the mark too.
    trimmed = rendered[at + len(mark) : at + len(mark) + 1] != " "
    return rendered[:at].rstrip() if trimmed else rendered[:at]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters |= {
        "tojson": _tojson,
        "center": _bounded_filter(jinja2.filters.do_center),
        "indent": _bounded_filter(jinja2.filters.do_indent),
    }
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, also against operators whose result is out of all proportion."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (abs(left) > 2**16 or abs(right) > 64):
            raise OverflowError("the power is too large")
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and len(value) * count > MAX_CHARACTERS:
                    raise OverflowError("the repetition is too long")
        if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise OverflowError("the format is too wide")
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        # "x".ljust(10**10) and its like are the other way to a huge string.
        if isinstance(getattr(function, "__self__", None), str):
            _check_widths(args, kwargs)
        return super().call(context, function, *args, **kwargs)


def _check_widths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(value, int) and value > MAX_WIDTH for value in (*args, *kwargs.values())):
        raise OverflowError(f"a width is above {MAX_WIDTH}")


def _bounded_filter(own: Callable[..., str]) -> Callable[..., str]:
    def bounded(value: Any, *args: Any, **kwargs: Any) -> str:
        _check_widths(args, kwargs)
        return own(value, *args, **kwargs)

    return bounded


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's own text for training; here it only has a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """``dict`` without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` that takes no private names, through which a template could reach the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_public(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no private name such as {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _bounded_range() -> Callable[..., range]:
    """``range`` for one rendering: all calls together yield at most ``MAX_STEPS`` numbers."""
    left = MAX_STEPS

    def bounded(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        # len() of a huge range raises OverflowError by itself, which serves as well.
        left -= len(numbers)
        if len(numbers) > MAX_RANGE or left < 0:
            raise OverflowError("the ranges in the template are too long")
        return numbers

    return bounded


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidInput("a message must be an object", field=FIELD)
    plain = {key: _plain(value) for key, value in message.items() if value is not None}
    # Reasoning goes by several names; templates read the first, those of gpt-oss the second.
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any) -> Any:
    """A copy made of JSON types only: a template must not get hold of an object with methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise InvalidInput(f"a value of type {type(value).__name__} cannot be part of a message", field=FIELD)


def _walks_over_content(template: nodes.Template) -> bool:
    """Whether some loop of the template runs over ``message.content``, directly or through a variable."""
    aliases = {
        assign.target.name
        for assign in template.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node)
    }
    for loop in template.find_all(nodes.For):
        over = _unfiltered(loop.iter)
        if _is_content(over) or (isinstance(over, nodes.Name) and over.name in aliases):
            return True
    return False


def _unfiltered(node: nodes.Node | None) -> nodes.Node | None:
    while isinstance(node, nodes.Filter):
        node = node.node
    return node


def _is_content(node: nodes.Node | None) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False
