"""``Protocol``: uvicorn's HTTP/1.1, with errors in OpenAI's shape, bounded heads and patience that ends."""

from __future__ import annotations

import asyncio
import http
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.api.errors import ApiError, head_too_large, malformed_http
from headrace.gateway.front import request_id_from

log = logging.getLogger("headrace.access")

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
STALL_SECONDS = 60.0


class Protocol(HttpToolsProtocol):
    """One connection.

    A head (request line and headers) is bounded in size and in time: neither an endless header nor a byte a minute
    may hold memory or a socket for good. A client that leaves answers unread is cut off: its request is then aborted
    like that of any client that went away.
    """

    _head_bytes = 0
    _in_head = True
    _piece_is_shared = False
    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._be_patient()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        super().data_received(data)
        # Of a piece that holds the end of another message, a large body perhaps, we cannot tell which part is the head.
        if self._in_head and not self._piece_is_shared:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(head_too_large(MAX_HEAD_BYTES))
        self._piece_is_shared = False

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._late = self._late or self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._in_head = False
        self._be_patient()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._piece_is_shared = True
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(malformed_http())

    def _be_patient(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, error: ApiError) -> None:
        """Answer what cannot be understood, after the whole requests before it, and close."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False  # the last answer closes the connection
                return
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
        self._write_error(error)
        self.transport.close()

    def _write_error(self, error: ApiError) -> None:
        request_id, body = request_id_from(None), error.body()
        head = (
            f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"Connection: close\r\nX-Request-Id: {request_id}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        log.info("request", extra={"request_id": request_id, "path": "unknown", "status": error.status})
