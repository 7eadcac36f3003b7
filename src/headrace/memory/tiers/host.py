"""``HostTier``: runs of pages in host memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.memory.page_form import Bytes
from headrace.memory.tiers.extents import Extents
from headrace.memory.tiers.records import StoredRun
from headrace.memory.tiers.run_index import Place, RunIndex


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tier has.

    Attributes:
        runs: How many.
        nbytes: Bytes that they take.
        limit: Most bytes.
        evicted: Runs given up for others so far.
        errors: Transfers that failed.
    """

    runs: int
    nbytes: int
    limit: int
    evicted: int
    errors: int


@dataclass(slots=True)
class _Kept:
    """A run's place in the block.

    Attributes:
        run: The run.
        begin: Where it begins.
        users: Transfers that read or write it; it is not evicted while there are some.
        saved: The next tier has it, or need not have it.
        whole: Its bytes are there, so that it may be found.
        doomed: It goes as soon as nobody uses it.
    """

    run: StoredRun
    begin: int
    users: int
    saved: bool
    whole: bool = False
    doomed: bool = False


class HostTier:
    """Runs in one block of memory, which is paid for as it is touched.

    When it is full the runs go that were not used for longest, first those that the next tier has too. For any thread.

    Args:
        nbytes: Bytes of the block.
    """

    def __init__(self, nbytes: int) -> None:
        self._extents = Extents(nbytes)
        self._block = np.empty(self._extents.nbytes, np.uint8)
        self._index = RunIndex()
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()
        self._evicted = self._unsaved_lost = self._errors = 0

    # -- finding

    def find(self, keys: Iterable[bytes]) -> list[Place | None]:
        """Where pages are."""
        with self._lock:
            return self._index.find(keys)

    def exists(self, key: bytes) -> bool:
        """Whether a page is here."""
        return self._index.has(key)

    def get(self, run: StoredRun, *, use: bool = True) -> Bytes | None:
        """The bytes of a run, which stay until ``free``; None if it is not here any more.

        Args:
            run: Which.
            use: Count this as a use of it.
        """
        with self._lock:
            kept = self._kept.get(run.name)
            if kept is None or not kept.whole or kept.doomed:
                return None
            kept.users += 1
            if use:
                self._index.use(run.name)
            return self._bytes(kept)

    def free(self, run: StoredRun) -> None:
        """A transfer is done with a run that it got."""
        with self._lock:
            self._done(self._kept[run.name])

    # -- keeping

    def reserve(self, run: StoredRun, *, saved: bool) -> Bytes | None:
        """Make room for a run, which the caller fills; then it calls ``put``, or ``drop`` if that failed.

        Args:
            run: What comes.
            saved: The next tier has it, or there is none.

        Returns:
            Where to, or None if there is no room or the run is here.
        """
        with self._lock:
            if run.name in self._kept or run.nbytes > self._extents.nbytes:
                return None
            while (begin := self._extents.take(run.nbytes)) is None:
                if not self._evict_one():
                    return None
            kept = self._kept[run.name] = _Kept(run, begin, 1, saved)
            return self._bytes(kept)

    def put(self, run: StoredRun) -> None:
        """A reserved run is whole and may be found."""
        with self._lock:
            kept = self._kept[run.name]
            kept.whole = True
            if not kept.doomed:
                self._index.add(run)
            self._done(kept)

    def drop(self, run: StoredRun) -> None:
        """A reserved run could not be filled."""
        with self._lock:
            self._extents.give(self._kept.pop(run.name).begin)
            self._errors += 1

    # -- the next tier

    def unsaved(self) -> StoredRun | None:
        """The run that the next tier does not have and that is evicted first."""
        with self._lock:
            return next((run for run in self._index.runs.values() if not self._kept[run.name].saved), None)

    def note_saved(self, run: StoredRun) -> bool:
        """The next tier has a run that was got here, or has refused it for good; whether it may keep it."""
        with self._lock:
            self._kept[run.name].saved = True
            return not self._kept[run.name].doomed

    # -- giving up

    def evict(self, nbytes: int) -> int:
        """Free some bytes, the least recently used first; how many became free."""
        with self._lock:
            before = self._extents.used
            while before - self._extents.used < nbytes and self._evict_one():
                pass
            return before - self._extents.used

    def forget(self, keys: Iterable[bytes]) -> None:
        """Have some pages, and all that were stored with them, found no more."""
        with self._lock:
            wanted = set(keys)
            for kept in list(self._kept.values()):
                if not kept.doomed and not wanted.isdisjoint(kept.run.keys):
                    kept.doomed = True
                    kept.users += 1
                    if kept.whole:
                        self._index.remove(kept.run.name)
                    self._done(kept)

    def _done(self, kept: _Kept) -> None:
        kept.users -= 1
        if kept.doomed and not kept.users:
            self._extents.give(self._kept.pop(kept.run.name).begin)

    def _evict_one(self) -> bool:
        idle = [kept for name in self._index.runs if not (kept := self._kept[name]).users]
        if not idle:
            return False
        kept = next((kept for kept in idle if kept.saved), idle[0])
        self._unsaved_lost += not kept.saved
        self._index.remove(kept.run.name)
        self._extents.give(self._kept.pop(kept.run.name).begin)
        self._evicted += 1
        return True

    # -- inspection

    @property
    def unsaved_lost(self) -> int:
        """Runs given up before the next tier had them."""
        return self._unsaved_lost

    def usage(self) -> Usage:
        """What is here."""
        with self._lock:
            size = self._extents.used
            return Usage(len(self._kept), size, self._extents.nbytes, self._evicted, self._errors)

    def check(self) -> None:
        """Assert the invariants."""
        with self._lock:
            self._extents.check()
            self._index.check()
            whole = {name for name, kept in self._kept.items() if kept.whole and not kept.doomed}
            assert set(self._index.runs) == whole, "a run is found that is not there"
            lent = sorted(kept.begin for kept in self._kept.values())
            assert lent == sorted(self._extents.lent), "bytes belong to nobody"
            assert all(kept.users >= (not kept.whole) for kept in self._kept.values()), "users are miscounted"
            assert all(kept.users for kept in self._kept.values() if kept.doomed), "a run stays that nobody wants"

    def _bytes(self, kept: _Kept) -> Bytes:
        return self._block[kept.begin : kept.begin + kept.run.nbytes]
