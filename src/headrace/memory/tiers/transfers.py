"""``Transfers``: bytes between the arena, host memory and disk, by threads of their own.

::

    arena ──store──▶ host ──save──▶ disk           a thread for what touches host memory only,
    arena ◀──load─── host                          one that reads files, one that writes them:
    arena ◀──load────────────────── disk           a disk that hangs stops only itself

A transfer may run beside steps. Whoever asks for it sees to it that its pages are neither freed nor moved until
it is in ``finished()`` or given up, and names the batch after which their bytes are what they should be.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.memory.tiers.copies import Copies
from headrace.memory.tiers.disk import DiskTier
from headrace.memory.tiers.host import HostTier
from headrace.memory.tiers.page_bytes import PageBytes
from headrace.memory.tiers.records import Leg, Part, StoredRun, Transfer
from headrace.memory.tiers.worker import Job, Worker

logger = logging.getLogger(__name__)
MOST_ASKED = 64
PROBE_SECONDS = 60.0  # between probes of a tier that seems not to pay


class Hands(Protocol):
    """Who does jobs; see ``Worker``."""

    def submit(self, job: Job, *, urgent: bool = False) -> bool:
        """Take a job, unless there are too many."""
        ...

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        ...

    def drain(self, seconds: float) -> bool:
        """Wait until all is done; False if that takes too long."""
        ...

    def close(self, seconds: float) -> bool:
        """The same, for good."""
        ...


class Transfers:
    """See the module. All methods but those that threads run are the engine thread's; none waits but ``close``.

    Args:
        pages: The arena.
        host: Host memory.
        disk: Disk; None: there is none.
        hands: Makes who does jobs, given a name.
        wake: Called by other threads when a transfer has ended.
        clock: Seconds.
    """

    def __init__(
        self,
        pages: PageBytes,
        host: HostTier,
        disk: DiskTier | None = None,
        *,
        hands: Callable[[str], Hands] = Worker,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host, self.disk = host, disk
        self._wake, self._clock = wake, clock
        self._copies = Copies(pages, host, disk, clock)
        self._asked: list[Transfer] = []
        self._running: list[Transfer] = []
        self._ended: deque[Transfer] = deque()
        self._lock = threading.Lock()
        self._saving = False
        self._probed = -PROBE_SECONDS
        self._memory, self._reader, self._writer = (hands(f"tiers-{name}") for name in ("memory", "reader", "writer"))
        self.refresh()

    # -- the engine's part

    def store(self, run: StoredRun, parts: Sequence[Part], after: int) -> Transfer | None:
        """Ask that pages be copied out of the arena; None if too much was asked for already.

        Args:
            run: What they are.
            parts: Where they are; all of the run, in order.
            after: Number of the batch after which their bytes are right.
        """
        return self._ask(Transfer("store", (Leg("host", run, tuple(parts)),), after))

    def load(self, legs: Sequence[Leg], after: int) -> Transfer | None:
        """Ask that pages be copied into the arena; None if too much was asked for already, or a run is gone.

        Args:
            legs: From where to where.
            after: Number of the batch after which nothing else writes there.
        """
        transfer = Transfer("load", tuple(legs), after)
        for leg in legs:
            if leg.tier == "host":
                data = self.host.get(leg.run)
                if data is None:
                    self._free(transfer)
                    return None
                transfer.held[leg.run.name] = data
        return self._ask(transfer)

    def launch(self, collected: int) -> None:
        """Start what may start now.

        Args:
            collected: Number of the last batch that was collected.
        """
        ready = [transfer for transfer in self._asked if transfer.after <= collected]
        self._asked = [transfer for transfer in self._asked if transfer.after > collected]
        for transfer in ready:
            self._start(transfer)

    def finished(self) -> list[Transfer]:
        """Transfers that have ended since the last call, well or not; their pages are free to go."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        gone = {id(transfer) for transfer in ended}
        self._running = [transfer for transfer in self._running if id(transfer) not in gone]
        return ended

    def give_up(self, transfer: Transfer) -> None:
        """Nobody waits for a transfer any more: its pages are free to go now, and it ends as soon as it can."""
        transfer.give_up()
        if transfer in self._asked:
            self._asked.remove(transfer)
            transfer.jobs = 1
            self._end(transfer, ok=False)

    def remove(self, runs: Sequence[StoredRun]) -> None:
        """Have files removed."""
        if self.disk is not None:
            for run in runs:
                self._writer.submit(partial(self.disk.remove, run))

    def load_seconds(self, legs: Sequence[Leg]) -> float:
        """What a load will take, behind those that run already."""
        total = 0.0
        for tier, rate in self._copies.rates.items():
            mine = [leg for leg in legs if leg.tier == tier]
            if mine:
                before = [leg for t in (*self._asked, *self._running) if t.kind == "load" for leg in t.legs]
                mine += [leg for leg in before if leg.tier == tier]
                total = max(total, rate.load_seconds(sum(leg.nbytes for leg in mine), len(mine)))
        return total

    @property
    def disk_usable(self) -> bool:
        """Whether the disk should be asked: it is there, does not rest, and holds up no load that was given up."""
        if self.disk is None or self.disk.reads.resting:
            return False
        return not any(t.given_up and t.nbytes("disk") for t in self._running)

    @property
    def waiting(self) -> int:
        """Transfers that have not ended."""
        return len(self._asked) + len(self._running)

    @property
    def idle(self) -> bool:
        """Whether no thread has anything to do."""
        return self._memory.idle and self._reader.idle and self._writer.idle

    def refresh(self) -> None:
        """Measure the tiers, and look what is on the disk, unless that was done not long ago."""
        if self._clock() - self._probed >= PROBE_SECONDS:
            self._probed = self._clock()
            self._memory.submit(self._copies.probe_host)
            if self.disk is not None:
                self._writer.submit(self._copies.probe_disk)

    def close(self, seconds: float) -> bool:
        """End all transfers, and write to the disk what it does not have.

        Args:
            seconds: Most time that may take; what is not done then is dropped.

        Returns:
            Whether all was done.
        """
        until = time.monotonic() + seconds

        def left() -> float:
            return max(0.0, until - time.monotonic())

        for transfer in self._asked.copy():
            self.give_up(transfer)
        done = self._memory.drain(left())
        done &= self._reader.drain(left())
        while done and self._unsaved and not self._writer_rests and self._save_soon():
            done = self._writer.drain(left())
        for hand in (self._memory, self._reader, self._writer):
            done &= hand.close(left())
        return done and not self._unsaved

    @property
    def _unsaved(self) -> bool:
        return self.disk is not None and self.host.unsaved() is not None

    @property
    def _writer_rests(self) -> bool:
        return self.disk is not None and self.disk.writes.resting

    def _ask(self, transfer: Transfer) -> Transfer | None:
        if self.waiting >= MOST_ASKED:
            self._free(transfer)
            return None
        self._asked.append(transfer)
        return transfer

    def _start(self, transfer: Transfer) -> None:
        self._running.append(transfer)
        if transfer.kind == "store":
            transfer.jobs = 1
            self._submit(self._memory, transfer, lambda: self._store(transfer))
            return
        tiers = {leg.tier for leg in transfer.legs}
        transfer.jobs = len(tiers)
        if "host" in tiers:
            self._submit(self._memory, transfer, lambda: self._copies.load_host(transfer))
        if "disk" in tiers:
            self._submit(self._reader, transfer, lambda: self._copies.load_disk(transfer))

    def _submit(self, hand: Hands, transfer: Transfer, work: Callable[[], bool]) -> None:
        def job() -> None:
            ok = False
            try:
                ok = not transfer.given_up and work()
            except Exception:
                logger.exception("a transfer of stored state failed")
            self._end(transfer, ok=ok)

        if not hand.submit(job, urgent=transfer.kind == "load"):
            self._end(transfer, ok=False)

    # -- what threads do

    def _end(self, transfer: Transfer, *, ok: bool) -> None:
        with self._lock:
            transfer.ok &= ok
            transfer.jobs -= 1
            last = not transfer.jobs
        if last:
            self._free(transfer)
            self._ended.append(transfer)
            self._wake()

    def _free(self, transfer: Transfer) -> None:
        for leg in transfer.legs:
            if transfer.held.pop(leg.run.name, None) is not None:
                self.host.free(leg.run)

    def _store(self, transfer: Transfer) -> bool:
        done = self._copies.store(transfer)
        self._save_soon()
        return done

    def _save_soon(self) -> bool:
        """Have runs written that the disk does not have; False if that cannot be."""
        with self._lock:
            if self.disk is None:
                return False
            if self._saving:
                return True
            self._saving = self._writer.submit(self._save)
            return self._saving

    def _save(self) -> None:
        saved = False
        try:
            saved = self._copies.save()
        finally:
            with self._lock:
                self._saving = False
        if saved and self._unsaved:
            self._save_soon()
