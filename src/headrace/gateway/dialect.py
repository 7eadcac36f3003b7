"""Whose API a request speaks, which decides the form of errors and of the list of models."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from headrace.api.answers import encode
from headrace.api.anthropic.errors import anthropic_error
from headrace.api.errors import ApiError
from headrace.api.sse import error_event, named_event

_ANTHROPIC = "/v1/messages"
_SHARED = "/v1/models"


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is one of Anthropic's API: by its route, or by the header that its clients send."""
    path = scope["path"]
    if path.startswith(_SHARED):
        return "anthropic-version" in Headers(scope=scope)
    return bool(path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/"))


def error_body(error: ApiError, scope: Scope) -> bytes:
    """An error as JSON."""
    return encode(anthropic_error(error, _request_id(scope))) if speaks_anthropic(scope) else error.body()


def error_event_for(error: ApiError, scope: Scope) -> bytes:
    """An error as an event of a stream that has begun."""
    return named_event(anthropic_error(error, _request_id(scope))) if speaks_anthropic(scope) else error_event(error)


def _request_id(scope: Scope) -> str | None:
    """As ``Front`` gave it."""
    identifier: str | None = scope.get("state", {}).get("request_id")
    return identifier
