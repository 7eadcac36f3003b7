"""``EngineDriver``: one engine in this process, shared by whoever generates or streams at the same time."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from headrace.engine.engine import Engine
from headrace.engine.messages import Generate, TokenDelta
from headrace.errors import EngineError
from headrace.llm.inputs import Job


@dataclass(slots=True, eq=False)
class Call:
    """The requests of one call and what came for them. Only the driver writes it, under its lock.

    Attributes:
        numbers: The requests, in the order of the jobs.
        deltas: What came and was not taken yet.
        unfinished: Request to its samples that still run.
    """

    numbers: list[int] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)
    unfinished: dict[int, int] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether all was taken and no more comes."""
        return not self.unfinished and not self.deltas

    def receive(self, delta: TokenDelta) -> None:
        """Take a delta of one of the requests."""
        self.deltas.append(delta)
        if delta.finish is not None:
            self.unfinished[delta.request] -= 1
            if not self.unfinished[delta.request]:
                del self.unfinished[delta.request]


class EngineDriver:
    """Steps an engine for its callers. Any thread may call; whoever waits for tokens runs the next step.

    A step also moves the requests of other callers on; what it adds to them waits in their ``Call``.

    Args:
        engine: Called by one thread at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._closed: deque[Call] = deque()
        self._next = 0

    @contextmanager
    def running(self, jobs: Sequence[Job]) -> Iterator[Call]:
        """Queue jobs for the time of the block; what still runs at its end is stopped."""
        call = Call()
        try:
            with self._lock, interrupt_deferred():
                for job in jobs:
                    self._add(call, job)
            yield call
        finally:
            self.close(call)

    def poll(self, call: Call) -> list[TokenDelta]:
        """What is new for a call; if nothing is, runs one step, after which there may still be nothing.

        Raises:
            EngineError: The call cannot end: the engine has nothing to run.
        """
        with self._lock:
            if not call.deltas:
                self._forget_closed()
                if not self._engine.has_work:
                    raise EngineError("the engine has nothing to run, but a request has not ended")
                # An interrupt in the midst of a step would leave scheduler and pages half changed.
                with interrupt_deferred():
                    for delta in self._engine.step():
                        self._calls[delta.request].receive(delta)
            found, call.deltas = call.deltas, []
        self._sweep()
        return found

    def close(self, call: Call) -> None:
        """Forget a call, and stop what of it still runs.

        Safe anywhere: a stream that is collected as garbage ends here too, even in the midst of a step.
        """
        self._closed.append(call)
        self._sweep()

    def _add(self, call: Call, job: Job) -> None:
        number, self._next = self._next, self._next + 1
        call.numbers.append(number)
        call.unfinished[number] = job.params.n
        self._calls[number] = call
        request = Generate(number, job.prompt.to_bytes(), job.params, job.received, job.tokenized, pooling=job.pooling)
        for delta in self._engine.add(request):
            call.receive(delta)

    def _sweep(self) -> None:
        # Not blocking: the lock's holder may be this very thread. Whoever holds it sweeps when it lets go.
        while self._closed and self._lock.acquire(blocking=False):
            try:
                self._forget_closed()
            finally:
                self._lock.release()

    def _forget_closed(self) -> None:
        while self._closed:
            call = self._closed.popleft()
            with interrupt_deferred():
                self._engine.abort(call.unfinished)
                for number in call.numbers:
                    self._calls.pop(number, None)


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Hold back Ctrl-C until the block is done; a second one interrupts at once.

    Without effect outside the main thread, and where the program handles SIGINT in its own way.
    """
    default = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not default:
        yield
        return
    came = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, default)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default)
    if came:
        raise KeyboardInterrupt
