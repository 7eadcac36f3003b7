"""Drives a round: sends the turns of sessions, one after the other's answer, and keeps the clock.

A turn after the first is due its think time after the answer before it, for no user can ask earlier; when sessions
begin is the pacer's matter. A latency counts from the moment the request was due: what the generator or a full server
made it wait is in it (Schroeder, Wierman, Harchol-Balter, "Open versus closed: a cautionary tale", NSDI 2006; Tene,
"How not to measure latency").
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from headrace.bench.load.compose import Composer, Conversation, Prepared
from headrace.bench.load.exchange import Exchange
from headrace.bench.load.http import Pool, clock
from headrace.bench.load.pace import ClosedLoop, OpenLoop, pacer
from headrace.bench.load.target import PATHS
from headrace.bench.load.watch import Monitor, Watch
from headrace.bench.results.samples import GeneratorLog
from headrace.bench.workload.records import Session

LEAD_SECONDS = 0.05  # from the start of the clock to the first moment at which something may be due


class Seen(msgspec.Struct, frozen=True):
    """What a round brought.

    Attributes:
        exchanges: Every request that was due, in the order due.
        zero: Moment of the clock at which the round began.
        log: What the generator saw of itself.
        messages: Kind of error to what was said the first time.
        interrupted: The user ended it early; what was under way then has no end.
    """

    exchanges: list[Exchange]
    zero: float
    log: GeneratorLog
    messages: dict[str, str]
    interrupted: bool


def run_round(
    composer: Composer,
    sessions: Sequence[Session],
    schedule: OpenLoop | ClosedLoop,
    *,
    timeout_seconds: float,
    watch: Watch,
) -> Seen:
    """Put a round's load on a server, and wait until all of it is answered.

    SIGINT ends it early.

    Args:
        composer: Writes the requests.
        sessions: What is asked.
        schedule: When.
        timeout_seconds: How long one request may take, from when it was sent.
        watch: Called with a snapshot twice a second.
    """
    _allow_many_connections()

    async def drive() -> Seen:
        driver = Driver(composer, sessions, schedule, timeout_seconds, watch)
        with _no_collections(), _on_interrupt(driver.interrupt):
            return await driver.run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(drive())


class Driver:
    """One round against one server; see ``run_round``."""

    def __init__(
        self,
        composer: Composer,
        sessions: Sequence[Session],
        schedule: OpenLoop | ClosedLoop,
        timeout_seconds: float,
        watch: Watch,
    ) -> None:
        server = composer.server
        self._timeout = timeout_seconds
        self._pool = Pool(server.address)
        headers = {"User-Agent": "headrace-bench", "Accept": "text/event-stream", **server.headers}
        self._head = server.address.head(PATHS[server.target.api], headers)
        self._name = composer.name.encode()
        self._monitor = Monitor(watch, sum(len(session.turns) for session in sessions))
        self._pacer = pacer(schedule, composer, sessions, self._begin)
        self._exchanges: list[Exchange] = []
        self._expiries: dict[Exchange, asyncio.TimerHandle] = {}  # of the requests under way
        self._conversations: dict[int, Conversation] = {}  # the sessions under way
        self._interrupted = False
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> Seen:
        """The round."""
        self._loop.set_exception_handler(self._failed)
        cpu = time.process_time()
        zero = clock() + LEAD_SECONDS
        self._monitor.start(zero)
        self._loop.call_later(LEAD_SECONDS, self._start, zero)
        await self._over.wait()
        self._monitor.stop()
        self._pacer.close()
        wall = clock() - zero
        cpu = time.process_time() - cpu
        await self._pool.close()
        if self._failure is not None:
            raise self._failure
        log = GeneratorLog(wall, cpu, np.array(self._monitor.loop_lag), self._pool.opened, self._pool.resent)
        exchanges = sorted(self._exchanges, key=lambda exchange: exchange.due)
        return Seen(exchanges, zero, log, self._monitor.messages, self._interrupted)

    def interrupt(self) -> None:
        """End the round now."""
        self._interrupted = True
        self._over.set()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback is a fault of the generator: a round with one is no measurement."""
        self._failure = context.get("exception") or RuntimeError(str(context.get("message")))
        self._over.set()

    def _start(self, zero: float) -> None:
        if (early := zero - clock()) > 0:  # timers may fire half a millisecond early
            self._loop.call_later(early, self._start, zero)
            return
        self._pacer.start(zero)
        self._check_over()

    def _begin(self, conversation: Conversation, prepared: Prepared, due: float) -> None:
        self._conversations[conversation.number] = conversation
        self._ask(conversation, prepared, due)

    def _ask(self, conversation: Conversation, prepared: Prepared, due: float) -> None:
        if self._over.is_set():  # a think time that outlasted an interrupted round
            return
        exchange = Exchange(
            conversation.number,
            conversation.turn,
            due,
            prepared.planned_prompt,
            prepared.planned_output,
            keep=conversation.keeps_answer,
            on_end=self._ended,
        )
        self._exchanges.append(exchange)
        self._expiries[exchange] = self._loop.call_later(self._timeout, self._expire, exchange)
        self._monitor.begun()
        name = b"X-Request-Id: %s-%d-%d\r\n" % (self._name, conversation.number, conversation.turn)
        length = b"Content-Length: %d\r\n\r\n" % len(prepared.body)
        self._pool.send(exchange, b"".join((self._head, name, length, prepared.body)))

    def _expire(self, exchange: Exchange) -> None:
        self._pool.abandon(exchange, "timeout", f"no complete answer within {self._timeout:g} s")

    def _ended(self, exchange: Exchange) -> None:
        self._expiries.pop(exchange).cancel()
        self._monitor.ended(exchange)
        conversation = self._conversations[exchange.session]
        turn = conversation.upcoming
        if exchange.error or turn is None:
            del self._conversations[exchange.session]
            self._pacer.session_over()
            self._check_over()
            return
        conversation.answered(exchange)
        exchange.forget_answer()
        prepared = conversation.ask()  # now, so that it is ready when due
        due = exchange.end + turn.think
        self._loop.call_later(max(due - clock(), 0.0), self._ask, conversation, prepared, due)

    def _check_over(self) -> None:
        if self._pacer.exhausted and not self._conversations:
            self._over.set()


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.Loop


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collections: one can take longer than a gap between tokens; a round makes few cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, call)
    except (NotImplementedError, ValueError, RuntimeError):  # not on this system, or not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _allow_many_connections() -> None:
    """Raise the number of open files to what this process may have."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
