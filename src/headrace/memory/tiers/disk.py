"""``DiskTier``: runs of pages as files of a folder, which outlive the process and which several processes may share."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from headrace.memory.page_form import Bytes
from headrace.memory.tiers import run_file
from headrace.memory.tiers.files import PART, FileEntry, Files
from headrace.memory.tiers.host import Usage
from headrace.memory.tiers.records import StoredRun
from headrace.memory.tiers.rest import Rest
from headrace.memory.tiers.run_file import BadFileError, Span, file_bytes
from headrace.memory.tiers.run_index import Place, RunIndex

logger = logging.getLogger(__name__)
PART_SECONDS = 60.0  # a file that was not written to for so long belongs to a process that died
SCAN_SECONDS = 10.0  # between looks at what other processes did
NAME = re.compile(r"[0-9a-f]{32}\Z")


class DiskTier:
    """Runs of one model, a file each. What cannot be read whole and right is a miss.

    No method raises for what a disk does. A bad file is removed; a disk that fails again and again rests for a while,
    apart for reading and for writing. For any thread.

    Args:
        files: The folder.
        identity: 16 bytes, of the model.
        nbytes: Most bytes of all files.
        clock: Seconds.
    """

    def __init__(self, files: Files, identity: bytes, nbytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._identity, self._limit, self._clock = files, identity, nbytes, clock
        self._index = RunIndex()
        self._sizes: dict[str, int] = {}
        self._doomed: set[str] = set()  # files that are to be removed, and not to be found until then
        self._lock = threading.Lock()
        self._evicted = self._errors = 0
        self._scanned: float | None = None
        self.reads, self.writes = Rest(clock), Rest(clock)

    # -- finding

    def find(self, keys: Iterable[bytes]) -> list[Place | None]:
        """Where pages are."""
        with self._lock:
            return self._index.find(keys)

    def exists(self, key: bytes) -> bool:
        """Whether a page is here."""
        return self._index.has(key)

    def newest(self) -> StoredRun | None:
        """The run that was used last."""
        with self._lock:
            return next(reversed(self._index.runs.values()), None)

    def scan_if_due(self) -> None:
        """Look at the folder, if that was long ago."""
        if self._scanned is None or self._clock() - self._scanned >= SCAN_SECONDS:
            self.scan()

    def scan(self) -> None:
        """Find out what others wrote and removed, and what was there before this process. Reads headers only."""
        self._scanned = self._clock()
        try:
            entries = self._files.entries()
        except OSError as error:
            self._failed(self.reads, "be listed", error)
            return
        # In the order of use, so that what was not used for longest is the first to go.
        for entry in sorted(entries, key=lambda entry: entry.used):
            try:
                self._meet(entry)
            except OSError as error:  # one bad file hides no other; a bad disk is left alone
                self._failed(self.reads, "be read", error)
                if self.reads.resting:
                    return
        there = {entry.name for entry in entries}
        with self._lock:
            for name in [name for name in self._index.runs if name not in there]:
                self._forget(name)

    def _meet(self, entry: FileEntry) -> None:
        if entry.name.endswith(PART):
            # A process that is alive after all fails to rename, which is a store that did not happen.
            if time.time() - entry.used > PART_SECONDS:
                self._files.remove(entry.name)
        elif entry.name in self._doomed:
            self._remove(entry.name)
        elif NAME.match(entry.name) and entry.name not in self._index.runs:
            try:
                with self._files.open(entry.name) as file:
                    run, _ = run_file.read_header(entry.name, file, self._identity)
            except BadFileError as error:
                self._bad(entry.name, error)
            except FileNotFoundError:
                pass
            else:
                self.reads.worked()
                with self._lock:
                    self._add(run)

    # -- transfers

    def put(self, run: StoredRun, payload: Bytes) -> bool:
        """Write a run, giving up others if need be.

        Returns:
            False if it may be tried again later; True if it is here, or can never be.
        """
        size = file_bytes(run)
        if run.name in self._index.runs or size > self._limit:
            return True
        if self.writes.resting:
            return False
        self.scan_if_due()
        self.evict(self.usage().nbytes + size - self._limit)
        try:
            header = run_file.encode_header(run, self._identity, run_file.checksums(run, payload))
            self._files.write(run.name, (header, payload))
        except OSError as error:
            self._failed(self.writes, "be written", error)
            return False
        self.writes.worked()
        with self._lock:
            self._doomed.discard(run.name)
            self._add(run)
        return True

    def get(
        self,
        run: StoredRun,
        spans: Sequence[Span],
        take: Callable[[Span, Bytes], bool],
        *,
        forget: bool = False,
    ) -> bool:
        """Read pages of a run, some at a time, and check them.

        Args:
            run: Which.
            spans: Which pages.
            take: Is given some pages at a time, once they are there and right; the bytes are its until it returns. It
                says whether to go on.
            forget: Have the system forget the file first, to measure the disk.

        Returns:
            Whether all pages came; if not, some may have.
        """
        if self.reads.resting:
            return False
        try:
            with self._files.open(run.name) as file:
                if forget:
                    file.forget()
                done = run_file.read_pages(run, file, self._identity, spans, take)
            with contextlib.suppress(OSError):  # a folder that cannot be written is good enough to read
                self._files.touch(run.name)
        except FileNotFoundError:  # another process needed the room
            with self._lock:
                self._forget(run.name)
            return False
        except BadFileError as error:
            self._bad(run.name, error)
            return False
        except OSError as error:
            self._failed(self.reads, "be read", error)
            return False
        self.reads.worked()
        with self._lock:
            self._index.use(run.name)
        return done

    # -- giving up

    def evict(self, nbytes: int) -> int:
        """Remove files, the least recently used first, until some bytes are free; how many became free."""
        freed = 0
        while freed < nbytes:
            with self._lock:
                name = next(iter(self._index.runs), None)
                if name is None:
                    break
                freed += self._sizes[name]
                self._forget(name)
                self._evicted += 1
            self._remove(name)
        return freed

    def forget(self, keys: Iterable[bytes]) -> list[StoredRun]:
        """Have some pages found no more. What had them is to be removed, which takes longer.

        Args:
            keys: Of the pages.
        """
        with self._lock:
            wanted = set(keys)
            runs = [run for run in self._index.runs.values() if not wanted.isdisjoint(run.keys)]
            for run in runs:
                self._forget(run.name)
                self._doomed.add(run.name)
            return runs

    def remove(self, run: StoredRun) -> None:
        """Remove a run's file."""
        with self._lock:
            self._forget(run.name)
        self._remove(run.name)

    # -- inspection

    def usage(self) -> Usage:
        """What is here."""
        with self._lock:
            return Usage(len(self._sizes), sum(self._sizes.values()), self._limit, self._evicted, self._errors)

    def check(self) -> None:
        """Assert the invariants."""
        with self._lock:
            self._index.check()
            assert set(self._sizes) == set(self._index.runs), "the size of a file is not known"

    def _add(self, run: StoredRun) -> None:
        if run.name not in self._index.runs:
            self._index.add(run)
            self._sizes[run.name] = file_bytes(run)

    def _forget(self, name: str) -> None:
        if name in self._index.runs:
            self._index.remove(name)
            del self._sizes[name]

    def _remove(self, name: str) -> None:
        try:
            self._files.remove(name)
        except OSError as error:
            self._failed(self.writes, "be removed", error)
        else:
            with self._lock:
                self._doomed.discard(name)

    def _bad(self, name: str, error: BadFileError) -> None:
        logger.warning("stored state is damaged, it is computed again: %s", error, extra={"file": name})
        with self._lock:
            self._errors += 1
            self._forget(name)
        self._remove(name)

    def _failed(self, rest: Rest, what: str, error: OSError) -> None:
        with self._lock:
            self._errors += 1
        rest.failed()
        logger.warning("stored state cannot %s in %s: %s", what, self._files.folder, error.strerror or error)
