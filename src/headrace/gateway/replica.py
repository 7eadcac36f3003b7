"""``Replica``: a replica process as the gateway keeps it running: watched, and started anew when one fails.

::

    starting ──Hello──▶ ready ──exit, silence, endless step──▶ waiting ──back-off──▶ starting
        └──Failed──▶ failed (for good)                            (in-flight requests get an error)
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from headrace.engine.messages import (
    CLOSE_SECONDS,
    Beat,
    DebugState,
    Drain,
    EngineStats,
    Failed,
    Hello,
    ReplicaInfo,
    StepReport,
    Up,
)
from headrace.engine.report import unpack
from headrace.gateway.config import GatewayConfig
from headrace.gateway.replica_link import ReplicaGone, ReplicaLink

log = logging.getLogger(__name__)

Launcher = Callable[[str, str], "subprocess.Popen[bytes]"]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0  # a replica that ran so long starts from the shortest pause again
WATCH_SECONDS = 0.1
STOP_SECONDS = 5.0


class ReplicaState(enum.Enum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


class Replica:
    """A replica process, supervised.

    Args:
        launch: Starts a process that connects to the two given endpoints.
        config: Time limits.
        on_report: Called with (old stats, report) for each step, for metrics.
        on_loss: Called each time a process is lost, for metrics.

    Attributes:
        link: What goes to it and comes from it.
        state: Where it is in its life.
        info: What it said of itself, when it was ready last.
        stats: What it said of its engine last.
        restarts: How often one was lost.
        failure: Why there will be none.
    """

    def __init__(
        self,
        launch: Launcher,
        config: GatewayConfig,
        on_report: Callable[[EngineStats, StepReport], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._launch = launch
        self._config = config
        self._on_report = on_report
        self._on_loss = on_loss
        self.link = ReplicaLink()
        self.state = ReplicaState.STARTING
        self.info: ReplicaInfo | None = None
        self.stats = EngineStats()
        self.restarts = 0
        self.failure: Failed | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_sign = 0.0
        self._step_age = 0.0
        self._decoder = msgspec.msgpack.Decoder(Up)
        self._changed = asyncio.Event()
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Whether it takes requests now."""
        return self.state is ReplicaState.READY

    async def run(self) -> None:
        """Keep a process running until cancelled, or until one says that starting again would not help."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                reason = await self._one_life()
            except (OSError, zmq.ZMQError) as error:  # out of memory, processes or room for the sockets
                reason = f"cannot be started: {error}"
            if self._stopping:
                self._set(ReplicaState.STOPPED)
                self._lose("the server ended before this request did")
                return
            if self.failure is not None:
                self._set(ReplicaState.FAILED)
                self._lose(self.failure.message)
                return
            if time.monotonic() - began > STEADY_SECONDS:
                pause = FIRST_PAUSE
            self.restarts += 1
            self._on_loss()
            log.error("replica lost, starting another", extra={"reason": reason, "pause_seconds": pause})
            self._lose(f"the engine stopped ({reason}) while it had this request; it is being restarted")
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def wait_changed(self) -> None:
        """Wait until ``state`` changes."""
        await self._changed.wait()

    async def stop(self) -> None:
        """End the process; what it still has was aborted, so that it ends soon."""
        self._stopping = True
        process = self._process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ReplicaGone, subprocess.TimeoutExpired):
            await self.link.send(Drain())  # one that is still loading does not listen, and is killed at once
            await asyncio.to_thread(process.wait, CLOSE_SECONDS + STOP_SECONDS)
        await _end(process)

    def kill(self) -> None:
        """End the process now."""
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    async def _one_life(self) -> str:
        """Start a process and follow it to its end; returns why it ended. The process is gone afterwards."""
        self._set(ReplicaState.STARTING)
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            down_name, up_name = f"ipc://{Path(folder) / 'down'}", f"ipc://{Path(folder) / 'up'}"
            context = zmq.asyncio.Context.instance()
            with context.socket(zmq.PUSH) as down, context.socket(zmq.PULL) as up:
                for socket, name in ((down, down_name), (up, up_name)):
                    socket.set_hwm(0)
                    socket.linger = 0
                    socket.bind(name)
                self._process = self._launch(down_name, up_name)
                self._last_sign, self._step_age = time.monotonic() + self._config.start_timeout, 0.0
                reader = asyncio.create_task(self._read(up, down))
                try:
                    return await self._watch(self._process, reader)
                finally:
                    reader.cancel()
                    self.link.close()
                    self._set(ReplicaState.WAITING)
                    await _end(self._process)

    async def _watch(self, process: subprocess.Popen[bytes], reader: asyncio.Task[None]) -> str:
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(WATCH_SECONDS)
            # While this process was held up (stopped, or busy) it heard nobody, and that proves nothing.
            now = time.monotonic()
            self._last_sign = max(self._last_sign, min(self._last_sign + (now - asleep - WATCH_SECONDS), now))
            if self.failure is not None:
                return self.failure.message
            if reader.done():
                return f"its reports cannot be read: {reader.exception()}"
            if (status := process.poll()) is not None:
                return f"exit status {status}"
            if time.monotonic() - self._last_sign > self._config.heartbeat_timeout:
                return f"no sign of life for {self._config.heartbeat_timeout:g} s"
            if self._step_age > self._config.step_timeout:
                return f"a step takes longer than {self._config.step_timeout:g} s"

    async def _read(self, up: zmq.asyncio.Socket, down: zmq.asyncio.Socket) -> None:
        while True:
            message = self._decoder.decode(await up.recv())
            self._last_sign = time.monotonic()
            match message:
                case StepReport():
                    self._take(message)
                case Beat():
                    self._step_age = message.step_age
                case Hello():
                    self.info = message.info
                    self.stats = EngineStats()
                    self.link.open(down)
                    self._set(ReplicaState.READY)
                case Failed():
                    self.failure = message
                case DebugState():
                    self.link.answer(message)

    def _take(self, report: StepReport) -> None:
        before, self.stats = self.stats, report.stats
        self._on_report(before, report)
        self.link.deliver(unpack(report))

    def _lose(self, message: str) -> None:
        """Tell everybody who waits for the process that it is gone."""
        self.stats = EngineStats()
        self.link.lose(message)

    def _set(self, state: ReplicaState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()


async def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and collect its status; a stopped process can only be killed."""
    if process.poll() is None:
        process.kill()
    await asyncio.to_thread(process.wait)
