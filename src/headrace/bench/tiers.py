"""How fast stored state comes back: from host memory beside a copy of memory, from disk beside a read of the same file.

The pages are those of SmolLM2-135M in 16 bits an element, laid as compiled code has them, sixteen to a slab.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.memory.page_form import PageForm
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.records import Transfer
from headrace.memory.tiers.store import Found, TierGroup, TierLimits, TierStore, Wanted

LAYERS, HEADS, HEAD_SIZE, ITEM_BYTES = 30, 3, 64, 2
PAGE_TOKENS = SLAB_PAGES = 16
FORM = PageForm.of(SLAB_PAGES, [(LAYERS * HEADS * 2, PAGE_TOKENS * HEAD_SIZE * ITEM_BYTES)])
IDENTITY = Identity("bench", "bench", "bench")
SECONDS = 60.0  # of one transfer, at most
READ_BYTES = 1 << 20

Bytes = npt.NDArray[np.uint8]
Report = Callable[[str], None]


class TierRates(msgspec.Struct, frozen=True):
    """Medians of several runs in turn, in seconds for all pages.

    Attributes:
        tokens: Tokens of the prefix.
        nbytes: Bytes of its pages.
        copy: A copy of so many bytes, memory to memory.
        store: Out of the arena into host memory.
        load_host: Host memory into the arena.
        read_cold: A plain read of the files, after the system has dropped them.
        load_cold: Disk into the arena, likewise.
        read_warm: A plain read of files that the system has in memory.
        load_warm: Files that the system has in memory into the arena.
        save: Writing the files, until they are on the disk.
    """

    tokens: int
    nbytes: int
    copy: float
    store: float
    load_host: float
    read_cold: float
    load_cold: float
    read_warm: float
    load_warm: float
    save: float


class Bench:
    """An arena with a prefix in it, and tiers behind it.

    Args:
        folder: Where files go.
        tokens: Of the prefix.
    """

    def __init__(self, folder: Path, tokens: int) -> None:
        self.pages = -(-tokens // PAGE_TOKENS)
        self.nbytes = self.pages * FORM.page_bytes
        slabs = -(-self.pages // SLAB_PAGES)
        self.arena = _memory(slabs * FORM.slab_bytes)
        self.arena[:] = np.random.default_rng(1).integers(0, 256, len(self.arena), np.uint8)
        self.woken = threading.Event()
        self.folder = folder
        self.store = TierStore(
            [TierGroup("full", FORM.page_bytes)],
            PAGE_TOKENS,
            ArenaBytes(self.arena, [FORM]),
            IDENTITY,
            TierLimits(2 * self.nbytes + (16 << 20), folder, 16 * self.nbytes),
            wake=self.woken.set,
        )
        self._chain = self.store.chain("", np.arange(self.pages * PAGE_TOKENS, dtype=np.int32))
        self.wait_for_writer()

    def close(self) -> None:
        """End the threads, and remove the files."""
        self.store.host.evict(1 << 62)
        self.store.transfers.close(1.0)
        if self.store.disk is not None:
            self.store.disk.evict(1 << 62)

    def put(self) -> float:
        """Store the prefix in host memory; seconds."""
        self.store.host.evict(1 << 62)
        begin = time.perf_counter()
        started = self.store.store(self._chain, self._offsets(), 0)
        self._finish([transfer for transfer, _ in started])
        return time.perf_counter() - begin

    def load(self) -> float:
        """Load the prefix from where it is; seconds, from asking to the end."""
        begin = time.perf_counter()
        found = self._found()
        transfer = self.store.load(found, self._offsets(), 0)
        self._finish([transfer])
        return time.perf_counter() - begin

    def wait_for_writer(self) -> float:
        """Wait until the disk has all; seconds."""
        begin = time.perf_counter()
        while self.store.host.unsaved() is not None or not self._idle():
            time.sleep(0.001)
        return time.perf_counter() - begin

    def files(self) -> list[Path]:
        """The files of the prefix, in order."""
        names = dict.fromkeys(run.name for _, (run, _) in self._found().sources.values())
        (folder,) = self.folder.iterdir()
        return [folder / name for name in names]

    def only_on_disk(self) -> None:
        """Forget what host memory has."""
        self.store.host.evict(1 << 62)

    def _found(self) -> Found:
        found = self.store.lookup(self._chain, 0)
        if found is None or found.pages != self.pages:
            raise RuntimeError("what was stored is not found; has the folder room for it?")
        return found

    def _offsets(self) -> dict[Wanted, int]:
        places = (divmod(n, SLAB_PAGES) for n in range(self.pages))
        return {Wanted(0, n): s * FORM.slab_bytes + p * FORM.page_bytes for n, (s, p) in enumerate(places)}

    def _idle(self) -> bool:
        return self.store.transfers.idle

    def _finish(self, transfers: list[Transfer | None]) -> None:
        self.store.transfers.launch(0)
        left, until = len(transfers), time.monotonic() + SECONDS
        while left and time.monotonic() < until:
            self.woken.wait(0.1)
            self.woken.clear()
            for transfer in self.store.finished():
                left -= transfer.ok
        if left:
            raise RuntimeError("a transfer failed; the log says why")


def measure_tiers(
    folder: Path, *, tokens: int = 4000, repeat: int = 5, report: Report = lambda what: None
) -> TierRates:
    """Measure the tiers of this machine.

    Args:
        folder: On the disk to measure; a folder of its own is made in it and removed.
        tokens: Of the prefix.
        repeat: Runs of each kind.
        report: Called with what is measured next.
    """
    own = folder / f"headrace-bench-{os.getpid()}"
    with closing(Bench(own, tokens)) as bench:
        found = _measure(bench, repeat, report)
    for path in (*own.iterdir(), own):
        path.rmdir()
    return TierRates(tokens, bench.nbytes, **{key: statistics.median(some) for key, some in found.items()})


def _measure(bench: Bench, repeat: int, report: Report) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}

    def note(key: str, seconds: float) -> None:
        found.setdefault(key, []).append(seconds)

    source, target = _memory(bench.nbytes), _memory(bench.nbytes)
    source[:], target[:] = 1, 2
    buffer = target[:READ_BYTES]
    before = bench.arena.copy()
    bench.put()
    bench.wait_for_writer()
    paths = bench.files()
    for turn in range(repeat):
        report(f"round {turn + 1} of {repeat}")
        note("copy", _timed(lambda: np.copyto(target, source)))
        note("store", bench.put())
        bench.arena[:] = 0
        note("load_host", bench.load())
        for state, prepare in (("cold", _drop), ("warm", _read)):
            prepare(paths, buffer)
            note(f"read_{state}", _timed(lambda: _read(paths, buffer)))
            bench.only_on_disk()
            prepare(paths, buffer)
            note(f"load_{state}", bench.load())
        if not np.array_equal(bench.arena[: bench.nbytes], before[: bench.nbytes]) and not bench.pages % SLAB_PAGES:
            raise RuntimeError("what was loaded is not what was stored")
    if bench.store.disk is not None:
        bench.store.disk.evict(1 << 62)
    bench.put()
    note("save", bench.wait_for_writer())
    return found


def _memory(nbytes: int) -> Bytes:
    return np.empty(nbytes, np.uint8)


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _read(paths: list[Path], buffer: Bytes) -> None:
    """Read files from begin to end, as a program that does nothing else would."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while os.readv(descriptor, [buffer.data]):
                pass
        finally:
            os.close(descriptor)


def _drop(paths: list[Path], buffer: Bytes) -> None:
    """Have the system forget files."""
    for path in paths:
        with Files(path.parent).open(path.name) as file:
            file.forget()
