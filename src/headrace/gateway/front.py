"""What every request passes: ``Front`` (an id, a trace, a line in the log) and ``Guard`` (a key). Plain ASGI."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.errors import internal_error, unauthorized
from headrace.gateway.config import ApiKey
from headrace.gateway.dialect import speaks_anthropic
from headrace.gateway.http import error_response
from headrace.gateway.metrics import Metrics

access = logging.getLogger("headrace.access")
log = logging.getLogger(__name__)

# As nginx has it: the client went away before the answer began.
CLIENT_CLOSED = 499

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/docs", "/openapi.json"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
# W3C Trace Context, level 1: version, trace id, parent id, flags. All zeros are invalid, and so is version ff.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a request stands in a distributed trace.

    Attributes:
        trace_id: 32 hex digits, the caller's or new.
        parent_id: The caller's span, or None.
        span_id: Ours.
        flags: Two hex digits, the caller's.
    """

    trace_id: str
    parent_id: str | None
    span_id: str
    flags: str

    def header(self) -> str:
        """Our own ``traceparent``."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_from(header: str | None) -> Trace:
    """The trace that a ``traceparent`` header continues; a new one where it is absent or malformed."""
    match = _TRACEPARENT.fullmatch(header or "")
    span = secrets.token_hex(8)
    if match is None or ((header or "").startswith("00") and match[4]):  # version 00 ends with the flags
        return Trace(secrets.token_hex(16), None, span, "00")
    return Trace(match[1], match[2], span, match[3])


def request_id_from(header: str | None) -> str:
    """The caller's own ``X-Request-Id`` where it is sane, else a new one."""
    return header if header and _REQUEST_ID.fullmatch(header) else f"req-{secrets.token_hex(12)}"


class Front:
    """Gives every request an id and a trace, counts and logs the answer.

    Routes may add to ``scope["state"]["log"]``, a dictionary of fields for the log line. No text of a prompt or an
    answer ever goes there.

    Args:
        app: The application behind.
        metrics: Counts answers.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = request_id_from(headers.get("x-request-id"))
        trace = trace_from(headers.get("traceparent"))
        fields: dict[str, object] = {}
        scope.setdefault("state", {}).update(log=fields, request_id=request_id)
        began, status = time.monotonic(), CLIENT_CLOSED

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                if speaks_anthropic(scope):
                    out["request-id"] = request_id
                out["traceparent"] = trace.header()
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, answer)
        finally:
            self._metrics.in_flight.dec()
            path = _pattern(scope)
            self._metrics.requests.labels(path, str(status)).inc()
            about = {
                "method": scope["method"],
                "path": path,
                "status": status,
                "seconds": round(time.monotonic() - began, 6),
            }
            ids = {
                "request_id": request_id,
                "trace_id": trace.trace_id,
                "span_id": trace.span_id,
                "parent_id": trace.parent_id,
            }
            access.info("request", extra=about | fields | ids)


class Guard:
    """Asks for a key, and answers for what nobody caught.

    Args:
        app: The application behind.
        api_keys: Accepted keys, and whose they are; empty lets everybody in.
    """

    def __init__(self, app: ASGIApp, api_keys: tuple[ApiKey, ...]) -> None:
        self._app = app
        self._keys = tuple((key.secret.encode(), key.tenant) for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tenant = self._tenant(scope)
        if self._keys and tenant is None and scope["path"] not in OPEN_PATHS:
            await error_response(unauthorized(), scope)(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            if started:
                raise  # the server cuts the connection, so that half an answer is not taken for a whole one
            log.exception("a request failed")
            await error_response(internal_error(), scope)(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        """Whose key the request shows; None: no good one, or there are no keys."""
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")  # as Anthropic's clients show it
        # Header values are bytes that Starlette reads as Latin-1; a key may be any text.
        shown = key.strip().encode("latin-1")
        # All keys are compared, each in constant time, so that the time tells nothing.
        matches = [name for known, name in self._keys if hmac.compare_digest(shown, known)]
        return matches[0] if matches else None


def _pattern(scope: Scope) -> str:
    """The route's pattern: a metric's label must not grow with what callers ask for."""
    return getattr(scope.get("route"), "path", None) or "unknown"
