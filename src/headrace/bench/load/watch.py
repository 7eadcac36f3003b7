"""What can be seen of a round while it runs: how it goes, and how late the generator is."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.bench.load.exchange import Exchange
from headrace.bench.load.http import clock

HEARTBEAT_SECONDS = 0.01
SNAPSHOT_SECONDS = 0.5
RECENT_SECONDS = 10.0


class Snapshot(msgspec.Struct, frozen=True):
    """How a round goes, for whoever watches.

    Attributes:
        seconds: Since the round began.
        planned: Requests there will be at most.
        begun: Requests sent.
        ended: Of these, over.
        errors: Kind to count.
        rate: Requests that ended a second, over the last ``RECENT_SECONDS``.
        ttft: Latencies to first output of those, seconds.
    """

    seconds: float
    planned: int
    begun: int
    ended: int
    errors: dict[str, int]
    rate: float
    ttft: list[float]


Watch = Callable[[Snapshot], None]


def beats_of(late: float) -> list[float]:
    """How late a beat was, and how late those were that it swallowed: all that a freeze would have kept waiting."""
    return [max(late, 0.0), *np.arange(late - HEARTBEAT_SECONDS, 0.0, -HEARTBEAT_SECONDS).tolist()]


class Monitor:
    """Counts requests, beats its heart in the event loop and shows snapshots.

    Attributes:
        loop_lag: How late each beat was, seconds, one for every ``HEARTBEAT_SECONDS`` of the round.
        messages: Kind of error to what was said the first time.

    Args:
        watch: Called with a snapshot twice a second.
        planned: Requests there will be at most.
    """

    def __init__(self, watch: Watch, planned: int) -> None:
        self.loop_lag: list[float] = []
        self.messages: dict[str, str] = {}
        self._watch = watch
        self._planned = planned
        self._begun = 0
        self._ended = 0
        self._errors: Counter[str] = Counter()
        self._recent: deque[tuple[float, float | None]] = deque()
        self._zero = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, zero: float) -> None:
        """Begin to watch; ``zero`` is the moment at which the round begins."""
        self._zero = zero
        self._beat(clock())
        self._show()

    def stop(self) -> None:
        """No more beats and snapshots."""
        for timer in self._timers.values():
            timer.cancel()

    def begun(self) -> None:
        """A request was sent."""
        self._begun += 1

    def ended(self, exchange: Exchange) -> None:
        """A request is over."""
        self._ended += 1
        first = exchange.events[0] - exchange.due if exchange.events else None
        self._recent.append((exchange.end, first))
        if exchange.error:
            self._errors[exchange.error] += 1
            self.messages.setdefault(exchange.error, exchange.message)

    def _beat(self, expected: float) -> None:
        now = clock()
        self.loop_lag += beats_of(now - expected)
        # On a grid, or each late beat would put off the ones after it, and a freeze would be a single late one.
        following = expected + HEARTBEAT_SECONDS * (1 + int(max(now - expected, 0.0) / HEARTBEAT_SECONDS))
        loop = asyncio.get_running_loop()
        self._timers["beat"] = loop.call_later(max(following - now, 0.0), self._beat, following)

    def _show(self) -> None:
        self._timers["show"] = asyncio.get_running_loop().call_later(SNAPSHOT_SECONDS, self._show)
        self._watch(self.snapshot())

    def snapshot(self) -> Snapshot:
        """How it goes now."""
        now = clock()
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()
        seconds = max(now - self._zero, 0.0)
        span = min(max(seconds, 1e-9), RECENT_SECONDS)
        ttft = [first for _, first in self._recent if first is not None]
        return Snapshot(
            seconds, self._planned, self._begun, self._ended, dict(self._errors), len(self._recent) / span, ttft
        )
