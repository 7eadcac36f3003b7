"""``ReplicaLink``: what goes to a replica and comes from it, while there is one: requests down, deltas up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
import zmq.asyncio

from headrace.engine.messages import Abort, DebugState, Down, Finish, Generate, Inspect, TokenDelta
from headrace.errors import EngineError

INSPECT_SECONDS = 10.0


class ReplicaGone(EngineError):
    """The replica ended, or stopped answering, while it had this request; or it is not there to take it."""


_Mailbox = asyncio.Queue[TokenDelta | ReplicaGone]


async def _all_in(mailbox: _Mailbox) -> list[TokenDelta]:
    """What is in a mailbox, once there is something."""
    items = [await mailbox.get()]
    while not mailbox.empty():
        items.append(mailbox.get_nowait())
    for item in items:
        if isinstance(item, ReplicaGone):
            raise item
    return [item for item in items if isinstance(item, TokenDelta)]


def _is_late(request: Generate) -> bool:
    return request.deadline is not None and request.deadline < time.monotonic()


class ReplicaLink:
    """A replica as request handlers see it; whoever supervises the process opens and closes it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._mailboxes: dict[int, _Mailbox] = {}
        self._inspections: list[asyncio.Future[DebugState]] = []
        self._down: zmq.asyncio.Socket | None = None

    # --- for request handlers -----------------------------------------------------------------------------------

    async def generate(
        self, requests: Sequence[Generate], *, window: int
    ) -> AsyncGenerator[list[tuple[int, TokenDelta]], None]:
        """Run requests side by side, in order; leaving the iterator early aborts them.

        Args:
            requests: Their numbers, and the stamp of when each is sent, are set here.
            window: How many samples the replica has at once; those of one request go together.

        Yields:
            All that has arrived since the last time, as (position in ``requests``, delta).

        Raises:
            ReplicaGone: There is no replica, or it went away before the end.
        """
        numbers = list(itertools.islice(self._numbers, len(requests)))
        mailbox: _Mailbox = asyncio.Queue()
        waiting = deque(zip(numbers, requests, strict=True))
        open_samples = 0
        # Before sending: an answer, or the loss of the replica, must find the mailbox.
        self._mailboxes.update(dict.fromkeys(numbers, mailbox))
        try:
            while waiting or open_samples:
                while waiting and (not open_samples or open_samples + waiting[0][1].params.n <= window):
                    number, request = waiting.popleft()
                    open_samples += request.params.n
                    await self.send(msgspec.structs.replace(request, request=number, routed=time.monotonic()))
                deltas = await _all_in(mailbox)
                open_samples -= sum(delta.finish is not None for delta in deltas)
                if waiting and _is_late(waiting[0][1]):  # the replica, which refuses what is late, has not seen it
                    deltas.append(TokenDelta(waiting[0][0], 0, finish=Finish("late")))
                yield [(delta.request - numbers[0], delta) for delta in deltas]
        finally:
            for number in numbers:
                del self._mailboxes[number]
            if open_samples:
                with contextlib.suppress(ReplicaGone):  # then there is nothing left to stop
                    await self.send(Abort(numbers))

    async def inspect(self, *, check: bool) -> DebugState:
        """What slots, queue, pages and tree look like between two steps.

        Raises:
            ReplicaGone: There is no replica, or it does not answer.
        """
        answer: asyncio.Future[DebugState] = asyncio.get_running_loop().create_future()
        await self.send(Inspect(check))
        self._inspections.append(answer)
        try:
            return await asyncio.wait_for(answer, INSPECT_SECONDS)
        except TimeoutError:
            raise ReplicaGone("the engine is busy with a long step; try again") from None

    async def send(self, message: Down) -> None:
        """Send a message down.

        Raises:
            ReplicaGone: There is no replica, or it went away before it took the message.
        """
        if self._down is None:
            raise ReplicaGone("the engine is not running; it is being started")
        # With nobody at the other end it waits, and is cancelled together with the socket: of that the caller's own
        # cancellation must be told apart.
        sending = asyncio.ensure_future(self._down.send(msgspec.msgpack.encode(message)))
        if not sending.done():
            await asyncio.wait({sending})
        if sending.cancelled():
            raise ReplicaGone("the engine stopped before it took this request; it is being restarted")
        sending.result()

    # --- for whoever supervises the process ---------------------------------------------------------------------

    def open(self, down: zmq.asyncio.Socket) -> None:
        """There is a replica, which listens."""
        self._down = down

    def close(self) -> None:
        """There is none any more; those who wait are told by ``lose``."""
        self._down = None

    def deliver(self, deltas: Iterable[TokenDelta]) -> None:
        """Give each request what has come for it."""
        for delta in deltas:
            mailbox = self._mailboxes.get(delta.request)
            if mailbox is not None:  # else its client has gone, and the abort is on its way
                mailbox.put_nowait(delta)

    def answer(self, state: DebugState) -> None:
        """Give whoever has waited longest for it what the replica looks like."""
        while self._inspections:
            waiting = self._inspections.pop(0)
            if not waiting.done():
                waiting.set_result(state)
                return

    def lose(self, message: str) -> None:
        """Tell everybody who waits for the replica that it is gone."""
        for mailbox in set(self._mailboxes.values()):
            mailbox.put_nowait(ReplicaGone(message))
        for waiting in self._inspections:
            if not waiting.done():
                waiting.set_exception(ReplicaGone(message))
        self._inspections.clear()
