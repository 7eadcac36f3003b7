"""Bytes to a request: the only way in. Whatever the bytes are, the outcome is a request or an ``ApiError`` (400).

The common case is one pass of msgspec's decoder. Only when that fails is the body read again, to say where and why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from headrace.api.blame import UnknownField, blame, render
from headrace.api.chat import ChatRequest
from headrace.api.checks import check
from headrace.api.completions import CompletionRequest
from headrace.api.errors import ApiError, bad_request
from headrace.api.tokenize import DetokenizeRequest, TokenizeRequest

MAX_UNKNOWN_FIELDS = 32
_BOM = b"\xef\xbb\xbf"

R = TypeVar("R", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


class Parsed(msgspec.Struct, Generic[R], frozen=True):
    """A request that may be served.

    Attributes:
        request: The request.
        warnings: With ``lenient``: a sentence for each field that was ignored, for the header ``X-Headrace-Warning``;
            printable ASCII only.
    """

    request: R
    warnings: tuple[str, ...] = ()


def parse_chat(body: bytes, *, lenient: bool = False) -> Parsed[ChatRequest]:
    """Parse a body of ``/v1/chat/completions``; raises ``ApiError``."""
    return parse(body, ChatRequest, lenient=lenient)


def parse_completion(body: bytes, *, lenient: bool = False) -> Parsed[CompletionRequest]:
    """Parse a body of ``/v1/completions``; raises ``ApiError``."""
    return parse(body, CompletionRequest, lenient=lenient)


def parse_tokenize(body: bytes, *, lenient: bool = False) -> Parsed[TokenizeRequest]:
    """Parse a body of ``/tokenize``; raises ``ApiError``."""
    return parse(body, TokenizeRequest, lenient=lenient)


def parse_detokenize(body: bytes, *, lenient: bool = False) -> Parsed[DetokenizeRequest]:
    """Parse a body of ``/detokenize``; raises ``ApiError``."""
    return parse(body, DetokenizeRequest, lenient=lenient)


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
        request, warnings = _second_try(error, tree, kind, lenient and exact)
    except msgspec.DecodeError as error:
        raise _syntax_error(body, str(error)) from None
    except RecursionError:
        raise _too_deep() from None
    check(request)
    return Parsed(request, warnings)


def _second_try(error: msgspec.ValidationError, tree: Any, kind: type[R], lenient: bool) -> tuple[R, tuple[str, ...]]:
    """Raise what is wrong with the body, after taking unknown fields out of it if that is wanted."""
    warnings: list[str] = []
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


def _header_safe(text: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def _plain(body: bytes) -> tuple[Any, bool]:
    """The body as plain data, for a message about it, and whether that is all of what the body says."""
    try:
        return msgspec.json.decode(body), True
    except msgspec.ValidationError:  # a number out of range
        return _loose(body), False
    except msgspec.DecodeError as error:
        raise _syntax_error(body, str(error)) from None
    except RecursionError:
        raise _too_deep() from None


def _loose(body: bytes) -> Any:
    """The body as Python's own parser reads it, which takes NaN, huge numbers and lone surrogates."""
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
    for path, complaint in _unspeakable(_loose(body)):
        param = render(path)
        return bad_request(f"'{param}' {complaint}" if param else f"The body {complaint}", param=param)
    reason = "it ends too early" if "truncated" in reason else reason.removeprefix("JSON is malformed: ")
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _too_deep() -> ApiError:
    return bad_request("The body is nested too deeply.", code="invalid_json")


def _unspeakable(tree: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Paths of values that JSON over UTF-8 cannot hold."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, float) and not math.isfinite(node):
            yield path, "must be a finite number."
        elif isinstance(node, str) and _has_surrogate(node):
            yield path, "holds half a surrogate pair, which is not text."
        elif isinstance(node, dict):
            for key, value in reversed(node.items()):
                if _has_surrogate(key):
                    yield path, "has a key with half a surrogate pair, which is not text."
                stack.append(((*path, key), value))
        elif isinstance(node, list):
            stack.extend(((*path, i), node[i]) for i in range(len(node) - 1, -1, -1))


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)
