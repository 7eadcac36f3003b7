"""``ApiError``: everything that the server answers with a status of 400 or more, in OpenAI's error shape.

The body is ``{"error": {"message", "type", "param", "code"}}`` (OpenAI API reference, "Error codes"); the official
client chooses its exception class by the status and reads ``param`` and ``code`` from the body.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from headrace.errors import HeadraceError, InvalidInput

_LONGEST_MESSAGE = 600


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        message: One sentence for a person.
        type: The kind of error, such as ``invalid_request_error``.
        param: Path of the offending field, such as ``messages[0].content``; null where no field is to blame.
        code: A short name for programs, such as ``context_length_exceeded``; null where there is none.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail


class ApiError(HeadraceError):
    """An answer other than success.

    Args:
        status: HTTP status, 400 to 599.
        message: One sentence: what is wrong and what would be right. Cut to 600 characters.
        type: OpenAI's kind of error.
        param: Path of the field, as the caller wrote it.
        code: Short name for programs.
        headers: Headers that the answer must carry, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # A message may quote the caller, who may have sent megabytes or half a surrogate pair.
        message = _printable(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = None if param is None else _printable(param)
        self.code = code
        self.headers = dict(headers or {})

    @property
    def detail(self) -> ErrorDetail:
        """The error as a record."""
        return ErrorDetail(self.message, self.type, self.param, self.code)

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(ErrorBody(self.detail))


def _printable(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def bad_request(message: str, *, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: a value cannot be used."""
    return ApiError(400, message, param=param, code=code)


def unsupported(field: str, message: str) -> ApiError:
    """400: the field is known and would change the answer, but this server cannot honour it."""
    return ApiError(400, message, param=field, code="unsupported_parameter")


def unauthorized(message: str = "Give a valid API key as 'Authorization: Bearer KEY'.") -> ApiError:
    """401: no API key, or an unknown one."""
    return ApiError(
        401, message, type="authentication_error", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
    )


def model_not_found(model: str, known: Iterable[str] = ()) -> ApiError:
    """404: no such model is served here."""
    names = ", ".join(repr(name) for name in known)
    there = f" Served here: {names}." if names else ""
    return ApiError(404, f"The model {model[:100]!r} does not exist.{there}", param="model", code="model_not_found")


def route_not_found(method: str, path: str) -> ApiError:
    """404: no such route."""
    return ApiError(404, f"Unknown route: {method[:16]} {path[:200]}. See /docs for what there is.", code="unknown_url")


def method_not_allowed(method: str, path: str, allowed: Iterable[str]) -> ApiError:
    """405: the route exists, with other methods."""
    methods = ", ".join(sorted(allowed))
    message = f"{path[:200]} does not take {method[:16]}; it takes {methods}."
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": methods})


def request_timeout(limit_s: float) -> ApiError:
    """408: the body did not arrive in time; the connection is of no more use."""
    message = f"The request's body did not arrive within {limit_s:g} s."
    return ApiError(408, message, code="request_timeout", headers={"Connection": "close"})


def too_large(limit_bytes: int) -> ApiError:
    """413: the body is over the server's limit."""
    return ApiError(413, f"The request body is over {limit_bytes} bytes, the limit here.", code="request_too_large")


def head_too_large(limit_bytes: int) -> ApiError:
    """431: request line and headers are over the server's limit."""
    message = f"Request line and headers are over {limit_bytes} bytes, the limit here."
    return ApiError(431, message, code="headers_too_large", headers={"Connection": "close"})


def malformed_http() -> ApiError:
    """400: what came is not HTTP."""
    return ApiError(400, "This is not a valid HTTP request.", code="invalid_http", headers={"Connection": "close"})


def unsupported_media_type(content_type: str) -> ApiError:
    """415: the body is declared as something other than JSON."""
    message = f"Content-Type must be application/json, got {content_type[:100]!r}."
    return ApiError(415, message, code="unsupported_media_type")


def overloaded(retry_after_s: float, message: str = "The queue is full; try again later.") -> ApiError:
    """429: more work than the server queues. ``Retry-After`` is in whole seconds, at least 1."""
    wait = {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(429, message, type="rate_limit_error", code="queue_full", headers=wait)


def internal_error(message: str = "The server failed to answer this request.") -> ApiError:
    """500: our fault."""
    return ApiError(500, message, type="server_error", code="internal_error")


def unavailable(message: str, *, retry_after_s: float | None = None, code: str = "engine_unavailable") -> ApiError:
    """503: the engine is loading, gone or draining."""
    wait = {} if retry_after_s is None else {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(503, message, type="server_error", code=code, headers=wait)


def deadline_unmet(late_s: float = 1.0) -> ApiError:
    """503: the first token cannot be expected by the deadline that the request names."""
    return ApiError(
        503,
        "The first token cannot be expected within deadline_ms; allow more time, or try again when less is to be done.",
        type="server_error",
        code="deadline_unmet",
        param="deadline_ms",
        headers={"Retry-After": str(math.ceil(late_s))},
    )


def from_invalid_input(error: InvalidInput) -> ApiError:
    """The 400 for a value that text or engine refused; ``field`` becomes ``param``."""
    return ApiError(400, str(error), param=error.field, code=error.code or "invalid_value")
