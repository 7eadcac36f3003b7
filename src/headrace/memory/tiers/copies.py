"""What the threads of transfers do: copy bytes between the arena, host memory and disk, and note what that takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from headrace.memory.page_form import Bytes
from headrace.memory.tiers.disk import DiskTier
from headrace.memory.tiers.host import HostTier
from headrace.memory.tiers.keys import DIGEST_BYTES, object_key
from headrace.memory.tiers.page_bytes import PageBytes
from headrace.memory.tiers.rates import TransferRate
from headrace.memory.tiers.records import Leg, Part, StoredRun, TierName, Transfer
from headrace.memory.tiers.run_file import Span

PROBE_BYTES = (256 << 10, 4 << 20)  # two sizes, to tell the cost of a transfer from that of a byte


class Copies:
    """Copies, one thread each for those with host memory, out of files, and into files.

    Args:
        pages: The arena.
        host: Host memory.
        disk: Disk; None: there is none.
        clock: Seconds.
    """

    def __init__(
        self,
        pages: PageBytes,
        host: HostTier,
        disk: DiskTier | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages, self._host, self._disk, self._clock = pages, host, disk, clock
        self.rates: dict[TierName, TransferRate] = {"host": TransferRate(), "disk": TransferRate()}

    def store(self, transfer: Transfer) -> bool:
        """Pages of the arena into host memory; whether there is room."""
        run, parts = transfer.legs[0].run, transfer.legs[0].parts
        room = self._host.reserve(run, saved=self._disk is None)
        if room is None:
            return False
        done = False
        try:
            done = all(
                transfer.touch(self._pages.read, part.group, part.offsets, _slice(run, part, room)) for part in parts
            )
        finally:
            (self._host.put if done else self._host.drop)(run)
        return done

    def load_host(self, transfer: Transfer) -> bool:
        """Pages in host memory into the arena."""
        for leg in transfer.legs:
            if leg.tier == "host":
                begin = self._clock()
                data = transfer.held[leg.run.name]
                for part in leg.parts:
                    piece = _slice(leg.run, part, data)
                    if not transfer.touch(self._pages.write, part.group, part.offsets, piece):
                        return False
                self.rates["host"].add(leg.nbytes, self._clock() - begin)
        return True

    def load_disk(self, transfer: Transfer) -> bool:
        """Pages of files into the arena; whether all were right."""
        return all(self._load_file(transfer, leg) for leg in transfer.legs if leg.tier == "disk")

    def _load_file(self, transfer: Transfer, leg: Leg) -> bool:
        assert self._disk is not None
        begin = self._clock()
        spans = [(part.first, part.first + len(part.offsets)) for part in leg.parts]
        if not self._disk.get(leg.run, spans, lambda span, data: self._take(transfer, leg, span, data)):
            return False
        self.rates["disk"].add(leg.nbytes, self._clock() - begin)
        return True

    def _take(self, transfer: Transfer, leg: Leg, span: Span, data: Bytes) -> bool:
        part = next(part for part in leg.parts if part.first <= span[0] < part.first + len(part.offsets))
        offsets = part.offsets[span[0] - part.first : span[1] - part.first]
        return transfer.touch(self._pages.write, part.group, offsets, data)

    def save(self) -> bool:
        """Write a run that the disk does not have; whether one was."""
        run = self._host.unsaved()
        data = None if run is None else self._host.get(run, use=False)
        if self._disk is None or run is None or data is None:
            return False
        try:
            saved = self._disk.put(run, data)
            if saved and not self._host.note_saved(run):
                self._disk.remove(run)
        finally:
            self._host.free(run)
        return saved

    # -- measuring

    def probe_host(self) -> None:
        """Copy some memory."""
        source, target = np.ones((2, PROBE_BYTES[-1]), np.uint8)
        for size in PROBE_BYTES:
            begin = self._clock()
            target[:size] = source[:size]
            self.rates["host"].add(size, self._clock() - begin)

    def probe_disk(self) -> None:
        """Read a file that is there, else write some of our own and read those."""
        assert self._disk is not None
        self._disk.scan()
        newest = self._disk.newest()
        if newest is not None:
            self._time_read(newest)
            return
        for size in PROBE_BYTES:
            run = StoredRun((_probe_key(),), (size,))
            if self._disk.put(run, np.zeros(size, np.uint8)) and self._disk.exists(run.keys[0]):
                self._time_read(run)
                self._disk.remove(run)

    def _time_read(self, run: StoredRun) -> None:
        assert self._disk is not None
        begin = self._clock()
        if self._disk.get(run, [(0, len(run.keys))], lambda span, data: True, forget=True):
            self.rates["disk"].add(run.nbytes, self._clock() - begin)


def _probe_key() -> bytes:
    """A name that no other process has."""
    return object_key(os.urandom(DIGEST_BYTES), 0)


def _slice(run: StoredRun, part: Part, data: Bytes) -> Bytes:
    """The bytes of some of a run's pages."""
    return data[run.begins[part.first] : run.begins[part.first + len(part.offsets)]]
