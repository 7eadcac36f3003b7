"""Bytes to a request: the only way in. Whatever the bytes are, the outcome is a request or an ``ApiError`` (400).

The common case is one pass of msgspec's decoder. Only when that fails is the body read again, to say where and why.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from headrace.api.anthropic.request import CountTokensRequest, MessagesRequest
from headrace.api.blame import UnknownField, blame, render
from headrace.api.chat import ChatRequest
from headrace.api.checks import check
from headrace.api.completions import CompletionRequest
from headrace.api.embeddings import EmbeddingRequest
from headrace.api.errors import ApiError, bad_request
from headrace.api.responses.items import with_types
from headrace.api.responses.request import InputTokensRequest, ResponsesRequest
from headrace.api.tokenize import DetokenizeRequest, TokenizeRequest

MAX_UNKNOWN_FIELDS = 32
_LONGEST_HEADER = 2000
_EXACT = 2.0**53
_FREE_FORM = ("chat_template_kwargs", "parameters", "schema", "input_schema", "input")
# What a body may leave out and the decoder needs: put in its place, in the tree of the body.
_COMPLETE: dict[type[msgspec.Struct], Callable[[Any], bool]] = {
    ResponsesRequest: with_types,
    InputTokensRequest: with_types,
}
_LONGEST_DIAGNOSED = 1 << 18
# JSON has one kind of number, and JSON Schema calls 2.0 an integer; some clients write integers so.
_WHOLE = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float`")
_BOM = b"\xef\xbb\xbf"

R = TypeVar("R", bound=msgspec.Struct)


class Parsed(msgspec.Struct, Generic[R], frozen=True):
    """A request that may be served.

    Attributes:
        request: The request.
        warnings: With ``lenient``: a sentence for each field that was ignored, for the header ``X-Headrace-Warning``;
            printable ASCII only.
    """

    request: R
    warnings: tuple[str, ...] = ()


def warning_header(warnings: Sequence[str]) -> str | None:
    """The value of ``X-Headrace-Warning``, printable ASCII and at most 2,000 characters; None: no header."""
    return _header_safe(" ".join(warnings))[:_LONGEST_HEADER] or None


def parse_chat(body: bytes, *, lenient: bool = False) -> Parsed[ChatRequest]:
    """Parse a body of ``/v1/chat/completions``; raises ``ApiError``."""
    return parse(body, ChatRequest, lenient=lenient)


def parse_completion(body: bytes, *, lenient: bool = False) -> Parsed[CompletionRequest]:
    """Parse a body of ``/v1/completions``; raises ``ApiError``."""
    return parse(body, CompletionRequest, lenient=lenient)


def parse_embedding(body: bytes, *, lenient: bool = False) -> Parsed[EmbeddingRequest]:
    """Parse a body of ``/v1/embeddings``; raises ``ApiError``."""
    return parse(body, EmbeddingRequest, lenient=lenient)


def parse_tokenize(body: bytes, *, lenient: bool = False) -> Parsed[TokenizeRequest]:
    """Parse a body of ``/tokenize``; raises ``ApiError``."""
    return parse(body, TokenizeRequest, lenient=lenient)


def parse_detokenize(body: bytes, *, lenient: bool = False) -> Parsed[DetokenizeRequest]:
    """Parse a body of ``/detokenize``; raises ``ApiError``."""
    return parse(body, DetokenizeRequest, lenient=lenient)


def parse_response(body: bytes, *, lenient: bool = False) -> Parsed[ResponsesRequest]:
    """Parse a body of ``/v1/responses``; raises ``ApiError``."""
    return parse(body, ResponsesRequest, lenient=lenient)


def parse_input_tokens(body: bytes, *, lenient: bool = False) -> Parsed[InputTokensRequest]:
    """Parse a body of ``/v1/responses/input_tokens``; raises ``ApiError``."""
    return parse(body, InputTokensRequest, lenient=lenient)


def parse_messages(body: bytes, *, lenient: bool = False) -> Parsed[MessagesRequest]:
    """Parse a body of ``/v1/messages``; raises ``ApiError``."""
    return parse(body, MessagesRequest, lenient=lenient)


def parse_count_tokens(body: bytes, *, lenient: bool = False) -> Parsed[CountTokensRequest]:
    """Parse a body of ``/v1/messages/count_tokens``; raises ``ApiError``."""
    return parse(body, CountTokensRequest, lenient=lenient)


def parse(body: bytes, kind: type[R], *, lenient: bool = False) -> Parsed[R]:
    """Parse and check a request body.

    Args:
        body: UTF-8 JSON; a byte order mark is skipped. Of duplicate keys the last one counts.
        kind: The request's type.
        lenient: Ignore unknown fields (at most 32 of them) and report them in ``warnings``.

    Raises:
        ApiError: Status 400; ``param`` is the path of the offending field, None where the body itself is at fault.
    """
    body = body.removeprefix(_BOM)
    warnings: tuple[str, ...] = ()
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        # A value error (a number out of range) can precede broken syntax further on: then the syntax is reported.
        tree, exact = _plain(body)
        request, warnings = _second_try(error, tree, kind, lenient and exact, len(body) <= _LONGEST_DIAGNOSED)
    except msgspec.DecodeError as error:
        raise _syntax_error(body, str(error)) from None
    except RecursionError:
        raise _too_deep() from None
    check(request)
    return Parsed(request, warnings)


def _second_try(
    error: msgspec.ValidationError, tree: Any, kind: type[R], lenient: bool, mend: bool
) -> tuple[R, tuple[str, ...]]:
    """Raise what is wrong with the body, after taking unknown fields out of it if that is wanted."""
    warnings: list[str] = []
    if kind in _COMPLETE and _COMPLETE[kind](tree):
        try:
            return msgspec.convert(tree, type=kind), ()
        except msgspec.ValidationError as next_error:
            error = next_error
    if mend and _WHOLE.match(str(error)) and _make_whole(tree):
        try:
            return msgspec.convert(tree, type=kind), ()
        except msgspec.ValidationError as next_error:
            error = next_error
    while True:
        problem = blame(error, tree, kind)
        if not lenient or not isinstance(problem, UnknownField) or len(warnings) == MAX_UNKNOWN_FIELDS:
            raise problem from None
        warnings.append(_header_safe(problem.message))
        _remove(tree, problem)
        try:
            return msgspec.convert(tree, type=kind), tuple(warnings)
        except msgspec.ValidationError as next_error:
            error = next_error


def _remove(tree: Any, problem: UnknownField) -> None:
    for step in problem.path:
        tree = tree[step]
    tree.pop(problem.name, None)


def _make_whole(tree: Any) -> bool:
    """Turn every float without a fraction into an integer, in place, outside free-form values; whether any was.

    The ``input`` of a request is none; those of tool calls are.
    """
    changed = False
    stack = [tree]
    while stack:
        node = stack.pop()
        for key, value in list(node.items()) if isinstance(node, dict) else enumerate(node):
            if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
                node[key] = int(value)
                changed = True
            elif isinstance(value, dict | list) and (key not in _FREE_FORM or (node is tree and key == "input")):
                stack.append(value)
    return changed


def _header_safe(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def _plain(body: bytes) -> tuple[Any, bool]:
    """The body as plain data, for a message about it, and whether that is all of what the body says."""
    try:
        return msgspec.json.decode(body), True
    except msgspec.ValidationError:  # a number out of range
        tree = _loose(body)
        if problem := _unspeakable(tree):
            raise problem from None
        return tree, False
    except msgspec.DecodeError as error:
        raise _syntax_error(body, str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def _loose(body: bytes) -> Any:
    """The body as Python's own parser reads it, which takes NaN, huge numbers and lone surrogates.

    None where that fails, or where the body is so long that finding the culprit would hold up others.
    """
    if len(body) > _LONGEST_DIAGNOSED:
        return None
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _syntax_error(body: bytes, reason: str) -> ApiError:
    """The 400 for bytes that are not JSON, naming the field where Python's laxer parser finds it."""
    if not body.strip():
        return bad_request("The body is empty; it must be a JSON object.", code="invalid_json")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return bad_request(f"The body is not UTF-8 (at byte {error.start}).", code="invalid_json")
    if problem := _unspeakable(_loose(body)):
        return problem
    if "truncated" in reason:  # msgspec says so of half a surrogate pair, too
        reason = "it ends too early" + (", or holds half a surrogate pair" if len(body) > _LONGEST_DIAGNOSED else "")
    reason = reason.removeprefix("JSON is malformed: ")
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> ApiError:
    return bad_request("The body is nested too deeply.", code="invalid_json")


# The way to a node: its parent's way, and a key or index. Links, since whole paths would take depth x nodes of memory.
_Way = tuple[Any, str | int]


def _unspeakable(tree: Any) -> ApiError | None:
    """The 400 for the first value that JSON over UTF-8 cannot hold."""
    stack: list[tuple[_Way | None, Any]] = [(None, tree)]
    while stack:
        way, node = stack.pop()
        if isinstance(node, float) and not math.isfinite(node):
            return _at(way, "must be a finite number.")
        if isinstance(node, str) and _has_surrogate(node):
            return _at(way, "holds half a surrogate pair, which is not text.")
        if isinstance(node, dict):
            if any(_has_surrogate(key) for key in node):
                return _at(way, "has a key with half a surrogate pair, which is not text.")
            stack.extend(((way, key), value) for key, value in reversed(node.items()))
        elif isinstance(node, list):
            stack.extend(((way, i), node[i]) for i in range(len(node) - 1, -1, -1))
    return None


def _at(way: _Way | None, complaint: str) -> ApiError:
    steps: list[str | int] = []
    while way is not None:
        way, step = way
        steps.append(step)
    param = render(tuple(reversed(steps)))
    return bad_request(f"'{param}' {complaint}" if param else f"The body {complaint}", param=param)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
