"""Running the application: uvicorn, with a drain that readiness announces first."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable

import uvicorn

from headrace.engine.messages import ReplicaInfo
from headrace.errors import HeadraceError
from headrace.gateway.app import build_app
from headrace.gateway.replica import ReplicaState
from headrace.gateway.services import Services


class _Server(uvicorn.Server):
    """A server that says it is ending before it ends, so that balancers send nothing more."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:
        self._services.generator.draining = True
        super().handle_exit(sig, frame)


def serve(services: Services, host: str, port: int, *, on_ready: Callable[[ReplicaInfo, float], None]) -> None:
    """Serve until told to end (SIGTERM, SIGINT), then drain.

    Args:
        services: The gateway's parts.
        host: Address to listen on.
        port: Port to listen on.
        on_ready: Called with what the replica says of itself and the seconds since the start, each time one starts.

    Raises:
        HeadraceError: The address is in use, or the replica cannot start.
    """
    config = uvicorn.Config(
        build_app(services),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(services.config.drain_timeout)),
        timeout_keep_alive=75,
    )
    server = _Server(config, services)
    try:
        asyncio.run(_run(server, services, on_ready))
    except SystemExit as error:  # uvicorn's answer to an address that cannot be bound
        raise HeadraceError(f"cannot listen on {host}:{port}; is another server running there? Try --port") from error
    if services.replica.failure is not None:
        raise HeadraceError(f"the engine cannot start: {services.replica.failure.message}")


async def _run(server: _Server, services: Services, on_ready: Callable[[ReplicaInfo, float], None]) -> None:
    watcher = asyncio.create_task(_follow(server, services, on_ready))
    try:
        await server.serve()
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
        if services.replica.ready and services.replica.info is not None:
            on_ready(services.replica.info, loop.time() - began)
        if services.replica.state is ReplicaState.FAILED:
            server.should_exit = True
