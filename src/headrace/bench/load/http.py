"""HTTP/1.1 for a load: one protocol object a connection, no task a request.

A general client spends more on each streamed chunk than the chunk is worth measuring (docs/decisions/load-client.md).
httptools parses; what is done here is to hand the body's bytes on with the moment at which they came.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import httptools

from headrace.bench.load.events import error_message
from headrace.bench.load.exchange import Exchange
from headrace.errors import InvalidInput

# Servers close idle connections after 5 seconds (uvicorn) or more; a request must not meet one that is being closed.
MAX_IDLE_SECONDS = 2.0
# A request lost on an idle connection was lost at once; one lost later was in the server's hands.
RESEND_SECONDS = 1.0
MAX_ERROR_BYTES = 64 << 10
OUT_OF_FILES = "out of files"  # the generator's own limit of open files

clock = time.monotonic


class Address:
    """Where to connect.

    Args:
        url: ``http://`` or ``https://``, host and perhaps port; a path is kept as a prefix, ``/v1`` at its end is not.

    Raises:
        InvalidInput: It is no such address.
    """

    def __init__(self, url: str) -> None:
        written = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        problem = f"{url!r:.200} is not an address such as http://127.0.0.1:8000"
        try:
            parts = urlsplit(written)
            port = parts.port
        except ValueError:
            raise InvalidInput(problem, field="url") from None
        printable = written.isascii() and written.isprintable() and " " not in written
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or not printable:
            raise InvalidInput(problem, field="url")
        if "@" in parts.netloc:
            raise InvalidInput("holds a password, which would stand in every result; give it as a header", field="url")
        self.url = written
        self.host = parts.hostname
        self.secure = parts.scheme == "https"
        self.port = port or (443 if self.secure else 80)
        self.authority = parts.netloc
        self.prefix = parts.path.rstrip("/")

    def head(self, path: str, headers: dict[str, str]) -> bytes:
        """The constant part of a POST's head, open for further headers."""
        lines = [f"POST {self.prefix}{path} HTTP/1.1", f"Host: {self.authority}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")


class Pool:
    """Connections to one server: idle ones are used again, new ones opened as needed, without a limit.

    Attributes:
        opened: Connections opened.
        resent: Requests sent again on a fresh connection.

    Args:
        address: The server.
    """

    def __init__(self, address: Address) -> None:
        self.opened = 0
        self.resent = 0
        self._address = address
        self._ssl = ssl.create_default_context() if address.secure else None
        self._idle: list[Connection] = []
        self._busy: dict[Exchange, Connection | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Send a request now; the exchange hears of all that follows."""
        exchange.sent = clock()
        oldest = exchange.sent - MAX_IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.usable:
                self._busy[exchange] = connection
                connection.send(exchange, request)
                return
            connection.close()
        self._connect(exchange, request)

    def _connect(self, exchange: Exchange, request: bytes) -> None:
        self.opened += 1
        self._busy[exchange] = None
        task = asyncio.get_running_loop().create_task(self._open(exchange, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, exchange: Exchange, request: bytes) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self._address.host, self._address.port, ssl=self._ssl
            )
        except OSError as error:
            self._busy.pop(exchange, None)
            exchange.fail(
                OUT_OF_FILES if error.errno in (errno.EMFILE, errno.ENFILE) else "connect",
                clock(),
                str(error) or type(error).__name__,
            )
            return
        if exchange.ended:  # timed out meanwhile
            connection.close()
            return
        self._busy[exchange] = connection
        connection.send(exchange, request)

    def abandon(self, exchange: Exchange, kind: str, message: str) -> None:
        """End an exchange from this side: its connection is closed, so that the server stops working on it."""
        connection = self._busy.pop(exchange, None)
        exchange.fail(kind, clock(), message)
        if connection is not None:
            connection.close()

    def release(self, connection: Connection, exchange: Exchange, *, keep: bool) -> None:
        """An exchange is over; its connection serves again, or is closed."""
        self._busy.pop(exchange, None)
        if keep:
            self._idle.append(connection)
        else:
            connection.close()

    def resend(self, exchange: Exchange, request: bytes) -> None:
        """A kept-alive connection turned out to be closed before any answer: try once on a fresh one."""
        self.resent += 1
        self._connect(exchange, request)

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in [*self._idle, *filter(None, self._busy.values())]:
            connection.close()
        self._idle.clear()
        self._busy.clear()
        await asyncio.sleep(0)  # transports close in the loop's next turn


class Connection(asyncio.Protocol):
    """One connection: at most one exchange at a time.

    Attributes:
        idle_since: When its last exchange ended.
    """

    def __init__(self, pool: Pool) -> None:
        self.idle_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._request = b""
        self._used = False
        self._answered = False
        self._now = 0.0
        self._status = 0
        self._refusal: bytearray | None = None
        self._parser: Any = httptools.HttpResponseParser(self)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Write a request."""
        self._exchange, self._request, self._answered, self._refusal = exchange, request, False, None
        if self._transport is None:
            self._lost()
        else:
            self._transport.write(request)

    def close(self) -> None:
        """Close it at once; whatever it still carries is not heard of any more."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._now = clock()
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # not the server's fault but ours
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            exchange = self._exchange
            self.close()
            if exchange is not None:
                self._pool.release(self, exchange, keep=False)
                exchange.fail("protocol", self._now, f"the answer is not HTTP/1.1: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self._lost()
        # The parser refers back to this object, and nothing collects cycles while a round runs.
        self._parser, self._request = None, b""

    def _lost(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        self._exchange = None
        now = clock()
        if self._used and not self._answered and not exchange.ended and now - exchange.sent < RESEND_SECONDS:
            self._pool.resend(exchange, self._request)
            return
        self._pool.release(self, exchange, keep=False)
        if self._refusal is not None:  # its end was that of the connection
            self._refuse(exchange, now)
        else:
            exchange.lost(now)

    # --- httptools ----------------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._status = self._parser.get_status_code()
        self._refusal = bytearray() if self._status != 200 else None

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if self._refusal is not None:
            if len(self._refusal) < MAX_ERROR_BYTES:
                self._refusal += body
        elif (exchange := self._exchange) is not None:
            exchange.body(body, self._now)
            if exchange.ended:  # with an error: whatever else the server sends would hold the connection
                self._pool.release(self, exchange, keep=False)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        exchange = self._exchange
        if exchange is None or self._status < 200:  # 100 Continue and the like precede the answer
            return
        self._exchange, self._request, self._used, self.idle_since = None, b"", True, self._now
        self._pool.release(self, exchange, keep=self._parser.should_keep_alive() and self.usable)
        if self._refusal is not None:
            self._refuse(exchange, self._now)
        elif not exchange.ended:
            exchange.complete(self._now)

    def _refuse(self, exchange: Exchange, now: float) -> None:
        exchange.fail(f"http {self._status}", now, error_message(bytes(self._refusal or b"")))
