"""When sessions begin: at moments fixed beforehand (open loop), or when others have ended (closed loop)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace.bench.load.compose import Composer, Conversation, Prepared
from headrace.bench.load.http import clock
from headrace.bench.load.timer import timer
from headrace.bench.results.samples import Floats
from headrace.bench.workload.records import Session

# Called with a session that begins, its first request, and when that is due.
Begin = Callable[[Conversation, Prepared, float], None]


class OpenLoop(msgspec.Struct, frozen=True):
    """Sessions begin at given moments: float64, ascending, seconds since the round began, one a session."""

    starts: Floats


class ClosedLoop(msgspec.Struct, frozen=True):
    """So many sessions run at a time; none begins after ``duration`` seconds."""

    concurrency: int
    duration: float | None = None


class Pacer(Protocol):
    """Begins sessions."""

    @property
    def exhausted(self) -> bool:
        """Whether no session will begin any more."""
        ...

    def start(self, zero: float) -> None:
        """The round begins at ``zero``, a moment of the clock."""
        ...

    def session_over(self) -> None:
        """A session has ended."""
        ...

    def close(self) -> None:
        """The round is over."""
        ...


def pacer(schedule: OpenLoop | ClosedLoop, composer: Composer, sessions: Sequence[Session], begin: Begin) -> Pacer:
    """The pacer of a schedule."""
    if isinstance(schedule, OpenLoop):
        return _Open(schedule, composer, sessions, begin)
    return _Closed(schedule, composer, sessions, begin)


class _Open:
    """All first requests are written before the round begins: a burst is sent as fast as sockets take it."""

    def __init__(self, schedule: OpenLoop, composer: Composer, sessions: Sequence[Session], begin: Begin) -> None:
        self._ready: deque[tuple[float, Conversation, Prepared]] = deque()
        for number, (start, session) in enumerate(zip(schedule.starts.tolist(), sessions, strict=True)):
            conversation = composer.conversation(number, session)
            self._ready.append((start, conversation, conversation.ask()))
        self._begin = begin
        self._zero = 0.0
        self._timer = timer(self._pump)

    @property
    def exhausted(self) -> bool:
        return not self._ready

    def start(self, zero: float) -> None:
        self._zero = zero
        self._pump()

    def session_over(self) -> None:
        pass

    def close(self) -> None:
        self._timer.close()

    def _pump(self) -> None:
        while self._ready:
            due = self._zero + self._ready[0][0]
            if due > clock():
                self._timer.set(due)
                return
            _, conversation, prepared = self._ready.popleft()  # what was sent need not stay in memory
            self._begin(conversation, prepared, due)


class _Closed:
    """Each place goes to the next session as soon as it is free and the request is written: then that is due."""

    def __init__(self, schedule: ClosedLoop, composer: Composer, sessions: Sequence[Session], begin: Begin) -> None:
        self._schedule = schedule
        self._composer = composer
        self._sessions = sessions
        self._begin = begin
        self._next = 0
        self._close = float("inf")

    @property
    def exhausted(self) -> bool:
        return self._next >= len(self._sessions) or clock() >= self._close

    def start(self, zero: float) -> None:
        if self._schedule.duration is not None:
            self._close = zero + self._schedule.duration
        for _ in range(min(self._schedule.concurrency, len(self._sessions))):
            self.session_over()

    def session_over(self) -> None:
        if not self.exhausted:
            conversation = self._composer.conversation(self._next, self._sessions[self._next])
            self._next += 1
            prepared = conversation.ask()
            self._begin(conversation, prepared, clock())

    def close(self) -> None:
        pass
