"""Errors in Anthropic's shape (API reference, "Errors")."""

from __future__ import annotations

import msgspec

from headrace.api.errors import ApiError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong, and where in the request. ``param`` and ``code`` are those of the other APIs' errors."""

    type: str
    message: str
    param: str | None = None
    code: str | None = None


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """The body of every answer with a status of 400 or more, and of an error event."""

    error: AnthropicErrorDetail
    request_id: str | None = None


def anthropic_error(error: ApiError, request_id: str | None) -> AnthropicError:
    """An error in Anthropic's shape."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    detail = AnthropicErrorDetail(kind, error.message, error.param, error.code)
    return AnthropicError(error=detail, request_id=request_id)
