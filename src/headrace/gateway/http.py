"""HTTP beyond what Starlette does: bounded bodies, clients that go away, event streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.errors import ApiError, internal_error, request_timeout, too_large, unsupported_media_type
from headrace.api.sse import HEADERS, KEEP_ALIVE
from headrace.gateway.config import GatewayConfig
from headrace.gateway.dialect import error_body, error_event_for

log = logging.getLogger(__name__)

T = TypeVar("T")

# A client that is still sending does not read: an answer to it before its body has arrived may be lost with the
# connection. So an oversized body is read on, and thrown away, up to this many times the limit.
PATIENCE = 8


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """The body of a JSON request.

    Raises:
        ApiError: 415 when it is declared as something else or is compressed, 413 when it is too large, 408 when it
            does not arrive in time.
        ClientDisconnect: The client went away before its end.
    """
    headers, limit = request.headers, config.max_body_bytes
    content_type = headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise unsupported_media_type(content_type)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise unsupported_media_type(f"{content_type}, Content-Encoding {encoding}")
    declared = headers.get("content-length", "0")
    length = int(declared) if declared.isdecimal() else 0
    if length > limit * PATIENCE or (length > limit and headers.get("expect", "").lower() == "100-continue"):
        raise too_large(limit)
    try:
        async with asyncio.timeout(config.body_timeout):
            return await _bounded(request, limit)
    except TimeoutError:
        raise request_timeout(config.body_timeout) from None


async def _bounded(request: Request, limit: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > limit * PATIENCE:
                break
    if size > limit:
        raise too_large(limit)
    return b"".join(chunks)


async def until_disconnected(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``, but cancel it when the client goes away.

    Raises:
        ClientDisconnect: It went away.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """A stream of server-sent events that ends its source as soon as the client goes away.

    The head of the answer waits for the first event, so that a failure before it still gets a status of its own.

    Args:
        events: Encoded events; ``ApiError`` from it becomes an error answer or, later on, an error event.
        keep_alive: Seconds of silence after which a comment is sent.
        headers: Further headers.
        on_close: Awaited once when the stream is over, however it ended.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive: float,
        headers: dict[str, str] | None = None,
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._keep_alive = keep_alive
        self._on_close = on_close
        self._started = False
        self._last_write = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client is gone."""
        self._last_write = asyncio.get_running_loop().time()
        sender = asyncio.ensure_future(self._send(scope, receive, send))
        gone, pulse = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._pulse(send))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _cancel(sender, gone, pulse)
            await self._events.aclose()
            await self._on_close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for event in self._events:
                await self._write(send, event)
        except Exception as error:
            if not isinstance(error, ApiError):
                log.exception("a stream failed")
                error = internal_error()
            if not self._started:
                await error_response(error, scope)(scope, receive, send)
                return
            await self._write(send, error_event_for(error, scope))
        await send({"type": "http.response.body", "body": b""})

    async def _pulse(self, send: Send) -> None:
        """Break the silence of a slow source."""
        clock = asyncio.get_running_loop().time
        while True:
            pause = self._last_write + self._keep_alive - clock()
            if pause > 0:
                await asyncio.sleep(pause)
            else:
                await self._write(send, KEEP_ALIVE)

    async def _write(self, send: Send, data: bytes) -> None:
        self._last_write = asyncio.get_running_loop().time()
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


def json_response(body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """An answer of encoded JSON."""
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError, scope: Scope) -> Response:
    """An error in the shape that whoever asked knows."""
    return json_response(error_body(error, scope), error.headers, error.status)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
