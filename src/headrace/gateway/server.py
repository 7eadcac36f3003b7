"""Running the application: uvicorn, with a drain that ends in time and says so to those it cuts off."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import types
from collections.abc import Callable

import uvicorn

from headrace.engine.messages import ReplicaInfo
from headrace.errors import HeadraceError, InvalidInput
from headrace.gateway.app import build_app
from headrace.gateway.protocol import Protocol
from headrace.gateway.replica import ReplicaState
from headrace.gateway.services import Services

log = logging.getLogger(__name__)

# What requests that are failed at the end of the drain get to say so, before their connections are cut.
LAST_WORDS_SECONDS = 3


class _Server(uvicorn.Server):
    """A server that drains on the first signal and ends on the second, with exit status 0."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
        # Not handed on: uvicorn would raise the signal again after a clean end, and only SIGINT would force one.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._services.generator.draining = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        admitted, patience = self._services.generator.admitted, self._services.config.drain_timeout
        if admitted and not self.force_exit:
            message = "draining; a second signal (Ctrl-C) ends at once"
            log.info(message, extra={"running": admitted, "timeout_seconds": patience})
        deadline = asyncio.create_task(self._end_drain())
        try:
            await super().shutdown(sockets)
            if self.force_exit:  # uvicorn leaves the application as it is then
                self._services.replica.kill()
                await self.lifespan.shutdown()
            log.info("stopped")
        finally:
            deadline.cancel()

    async def _end_drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._services.config.drain_timeout
        while loop.time() < end and not self.force_exit:  # noqa: ASYNC110 - a signal handler may not set an event
            await asyncio.sleep(0.1)
        late = "the server is shutting down and this request took too long"
        self._services.replica.link.lose("the server was stopped" if self.force_exit else late)
        if self.force_exit:
            await asyncio.sleep(0.2)
            for connection in list(self.server_state.connections):
                connection.transport.abort()


OnReady = Callable[[ReplicaInfo, float, int], None]


def serve(services: Services, host: str, port: int, *, on_ready: OnReady) -> None:
    """Serve until told to end (SIGTERM, SIGINT), then drain.

    Args:
        services: The gateway's parts.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        on_ready: Called with what the replica says of itself, the seconds since the start, and the port, each time
            one starts.

    Raises:
        HeadraceError: The address cannot be listened on, or the replica cannot start.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        build_app(services),
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(services.config.drain_timeout) + LAST_WORDS_SECONDS,
        timeout_keep_alive=75,
    )
    server = _Server(config, services)
    with listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(server, services, listener, on_ready))
    if services.replica.failure is not None:
        raise HeadraceError(f"the engine cannot start: {services.replica.failure.message}")


def _listen(host: str, port: int) -> socket.socket:
    if not host:
        raise InvalidInput("must name an address; 0.0.0.0 is all", field="host")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while attempting")[0]  # Python goes on with the address
        hint = "; is another server running there? Try --port" if error.errno == errno.EADDRINUSE else ""
        raise HeadraceError(f"cannot listen on {host}:{port}: {reason}{hint}") from error


async def _run(server: _Server, services: Services, listener: socket.socket, on_ready: OnReady) -> None:
    port = listener.getsockname()[1]
    log.info("loading", extra={"model": services.model})
    watcher = asyncio.create_task(_follow(server, services, lambda info, seconds: on_ready(info, seconds, port)))
    try:
        await server.serve(sockets=[listener])
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def _follow(server: _Server, services: Services, on_ready: Callable[[ReplicaInfo, float], None]) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await services.replica.wait_changed()
        if services.replica.state is ReplicaState.STARTING:
            began = loop.time()
        if services.replica.ready and services.replica.info is not None and not server.should_exit:
            on_ready(services.replica.info, loop.time() - began)
        if services.replica.state is ReplicaState.FAILED:
            server.should_exit = True
