"""A replica: one process that runs one engine for a gateway. ``ReplicaLauncher`` starts it.

Two ZeroMQ pipes lead to the gateway that started it: requests come down one, reports go up the other. The step loop
is the main thread; a second thread does nothing but say that the process lives, so that the gateway can tell a long
step from a dead or stopped process.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import zmq

from headrace.engine.engine import Engine
from headrace.engine.messages import (
    Abort,
    Beat,
    DebugState,
    Down,
    Drain,
    Failed,
    Generate,
    Hello,
    Inspect,
    TokenDelta,
    Up,
)
from headrace.engine.report import pack
from headrace.errors import HeadraceError
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions
from headrace.fleet.step_log import StepLog
from headrace.logs import set_up_logs
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.text.constraint import ConstraintMaker
from headrace.text.model_text import model_text
from headrace.text.tokenizer import load_tokenizer

BEAT_SECONDS = 0.5
IDLE_MS = 1000
EXIT_FAILED = 3

log = logging.getLogger(__name__)


class Pipe:
    """One end of a pipe to the gateway; messages are msgpack."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> None:
        self._socket = context.socket(kind)
        # No high-water mark: a report must never wait for a slow gateway, and the gateway bounds what it sends.
        self._socket.set_hwm(0)
        self._socket.linger = 1000
        self._socket.connect(endpoint)
        self._decoder = msgspec.msgpack.Decoder(Down)

    def send(self, message: Up) -> None:
        """Send a message up."""
        self._socket.send(msgspec.msgpack.encode(message))

    def receive(self, timeout_ms: int) -> Iterable[Down]:
        """All messages that are there; waits for the first one up to ``timeout_ms``."""
        while self._socket.poll(timeout_ms):
            yield self._decoder.decode(self._socket.recv())
            timeout_ms = 0

    def close(self) -> None:
        """Send what is queued, then close."""
        self._socket.close()


class Heart(threading.Thread):
    """Says twice a second that the process lives and for how long its step has been running."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, parent: int) -> None:
        super().__init__(name="heart", daemon=True)
        self.step = 0
        self.step_began: float | None = None
        self._context, self._endpoint, self._parent = context, endpoint, parent

    def run(self) -> None:
        """Beat until the process ends; end it when the gateway is gone."""
        pipe = Pipe(self._context, zmq.PUSH, self._endpoint)
        while True:
            began = self.step_began
            pipe.send(Beat(self.step, 0.0 if began is None else time.monotonic() - began))
            time.sleep(BEAT_SECONDS)
            if os.getppid() != self._parent:
                os._exit(1)  # nobody is left to answer, and the step loop may be deep in a step


class Replica:
    """The step loop.

    Args:
        engine: Runs the requests.
        down: Requests.
        up: Reports.
        heart: Is told when a step begins and ends.
        step_log: Is told of each step; may be None.
        check: Check the engine's invariants whenever it is idle.
    """

    def __init__(
        self, engine: Engine, down: Pipe, up: Pipe, heart: Heart, *, step_log: StepLog | None, check: bool
    ) -> None:
        self.engine = engine
        self._down, self._up, self._heart = down, up, heart
        self._step_log, self._check = step_log, check
        self._draining = False

    def drain(self) -> None:
        """End when all requests are done."""
        self._draining = True

    def run(self) -> None:
        """Serve until drained."""
        while not (self._draining and not self.engine.has_work):
            deltas: list[TokenDelta] = []
            busy = self.engine.has_work
            for message in self._down.receive(0 if busy else IDLE_MS):
                deltas += self._handle(message)
                busy = True
            if self.engine.has_work:
                deltas += self._step()
            if busy:
                self._up.send(pack(deltas, self.engine.stats()))
            if self._check and not self.engine.has_work:
                self.engine.check()

    def _step(self) -> list[TokenDelta]:
        self._heart.step_began = time.monotonic()
        deltas = self.engine.step()
        self._heart.step_began = None
        self._heart.step += 1
        if self._step_log is not None:
            self._step_log.step(self.engine.stats(), sum(len(delta.tokens) for delta in deltas))
        return deltas

    def _handle(self, message: Down) -> list[TokenDelta]:
        match message:
            case Generate():
                return self.engine.add(message)
            case Abort():
                self.engine.abort(message.requests)
            case Inspect():
                self._up.send(pack([], self.engine.stats()))  # whoever sees the state sees gauges that agree with it
                self._up.send(DebugState(self.engine.describe(), self._problems() if message.check else []))
            case Drain():
                self.drain()
        return []

    def _problems(self) -> list[str]:
        try:
            self.engine.check()
        except AssertionError as problem:
            return [str(problem)]
        return []


def _log_stages() -> Callable[[str, int, int], None]:
    """Logs what is being done to load a model, each stage once."""
    seen: set[str] = set()

    def note(what: str, done: int, total: int) -> None:
        if what not in seen:
            seen.add(what)
            log.info(what)

    return note


def main(down_endpoint: str, up_endpoint: str, options: EngineOptions, parent: int) -> int:
    """Load the model, say hello, serve, until drained or until process ``parent`` is gone. Returns the exit status."""
    # The terminal's Ctrl-C reaches the whole process group; the gateway decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    up = Pipe(context, zmq.PUSH, up_endpoint)
    heart = Heart(context, up_endpoint, parent)
    heart.start()
    try:
        checkpoint = open_checkpoint(options.path)
        text = model_text(load_tokenizer(checkpoint.tokenizer), options.tool_format)
        constraints = ConstraintMaker(text.tokenizer, load_spec(checkpoint, options.name).vocab_size, text.format)
        step_log = None if options.step_log is None else StepLog(Path(options.step_log))
        engine, info = build_engine(options, constraints, _log_stages())
    except HeadraceError as error:
        up.send(Failed(str(error)))
        up.close()
        return EXIT_FAILED
    # What is loaded stays: the collector need not look through it again, which would hold up a step.
    gc.collect()
    gc.freeze()
    down = Pipe(context, zmq.PULL, down_endpoint)
    replica = Replica(engine, down, up, heart, step_log=step_log, check=options.debug)

    def terminate(signum: int, frame: types.FrameType | None) -> None:
        replica.drain()

    signal.signal(signal.SIGTERM, terminate)
    up.send(Hello(info))
    replica.run()
    engine.close()
    up.close()
    return 0


if __name__ == "__main__":
    down_end, up_end, given, style, gateway = sys.argv[1:]
    set_up_logs(style)
    try:
        status = main(down_end, up_end, msgspec.json.decode(given, type=EngineOptions), int(gateway))
    except Exception:
        log.exception("the replica failed")
        status = 1
    sys.exit(status)
