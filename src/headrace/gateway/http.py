"""HTTP beyond what Starlette does: bounded bodies, clients that go away, event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.api.errors import ApiError, too_large, unsupported_media_type
from headrace.api.sse import HEADERS, KEEP_ALIVE, error_event

T = TypeVar("T")

# A client that is still sending does not read: an answer to it before its body has arrived may be lost with the
# connection. So an oversized body is read on, and thrown away, up to this many times the limit.
PATIENCE = 8


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a JSON request.

    Raises:
        ApiError: 415 when it is declared as something else, 413 when it is larger than ``limit`` bytes.
    """
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise unsupported_media_type(content_type)
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
        on_close: Called once when the stream is over, however it ended.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        keep_alive: float,
        headers: dict[str, str] | None = None,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._keep_alive = keep_alive
        self._on_close = on_close
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client is gone."""
        sender = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
        finally:
            await _cancel(sender, gone)
            await self._events.aclose()  # type: ignore[attr-defined]
            self._on_close()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        upcoming: asyncio.Future[bytes] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(self._events))
                done, _ = await asyncio.wait({upcoming}, timeout=self._keep_alive)
                if not done:
                    await self._write(send, KEEP_ALIVE)
                    continue
                event, upcoming = upcoming.result(), None
                await self._write(send, event)
        except StopAsyncIteration:
            pass
        except ApiError as error:
            if not self._started:
                await error_response(error)(scope, receive, send)
                return
            await self._write(send, error_event(error))
        finally:
            if upcoming is not None:
                await _cancel(upcoming)
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})


def json_response(body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """An answer of encoded JSON."""
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error in OpenAI's shape."""
    return json_response(error.body(), error.headers, error.status)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
