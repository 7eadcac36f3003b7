"""The process in which programs are tried. Started by ``process.py``.

    python -m headrace.runtime.tuning.child SOCKET

It reads one JSON object a line from the socket and answers one to each, as ``compiler/native/sandbox_child.py`` does.
Whatever a program does to this process, the parent sees it by the socket or by the clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array, Inventory
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.search.bound import Workload
from headrace.errors import HeadraceError
from headrace.memory.page_form import PageForm
from headrace.models.opening import open_checkpoint
from headrace.runtime.compile import PreparedModel
from headrace.runtime.kept_files import read_kept
from headrace.runtime.tuning.bench import Bench, Block, spent
from headrace.runtime.tuning.loads import Batch, batch_of
from headrace.runtime.tuning.memory import Arena
from headrace.runtime.tuning.oracle import interpreted

ROOM_SECONDS = 5.0  # beyond what the parent waits, until an endless loop is ended without it

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Opening:
    """What the child is told first.

    Attributes:
        checkpoint: The model's path.
        prepared: File of the prepared model.
        driver: Library of ``regions.TRIAL``.
        threads: That compute.
        loads: The workloads; the first is only checked, the others are timed.
        states: The states' arrays.
        offsets: See ``Arena``.
        pages: See ``Arena``.
        symbols: Order of the symbols' values.
        repeats: How often each part runs.
        row_pages: Columns of the table of pages.
        vocab: Tokens that there are.
    """

    checkpoint: str
    prepared: str
    driver: str
    threads: int
    loads: tuple[Workload, ...]
    states: tuple[Array, ...]
    offsets: tuple[int, ...]
    pages: PageForm
    symbols: tuple[str, ...]
    repeats: tuple[int, ...]
    row_pages: int
    vocab: int


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """A region's library.

    Attributes:
        key: Its name between parent and child.
        library: The file.
        arrays: See ``Region``.
        part: See ``Region``.
        stages: How many.
        ragged_tile: See ``Region``.
    """

    key: str
    library: str
    arrays: Inventory
    part: int
    stages: int
    ragged_tile: int


@dataclass(frozen=True, slots=True)
class WholeSpec:
    """A whole program's library.

    Attributes:
        key: Its name between parent and child.
        library: The file.
        arrays: What its tables hold.
        stages: How many waits a step has.
        parts: How many of its parts are a step.
        ragged_tile: See ``CompiledModel``.
    """

    key: str
    library: str
    arrays: Inventory
    stages: int
    parts: int
    ragged_tile: int


@dataclass(frozen=True, slots=True)
class _Whole:
    """A whole program, loaded."""

    run: Callable[[Batch], None]
    arrays: Inventory


class Child:
    """What the process holds: model, weights, states, programs."""

    def __init__(self) -> None:
        self.blocks: dict[str, Block] = {}
        self.wholes: dict[str, _Whole] = {}

    def open(self, message: Message) -> Message:
        """Load the model."""
        self.about = about = msgspec.convert(message["about"], Opening, strict=False)
        model = read_kept(Path(about.prepared), PreparedModel)
        if model is None:
            return {"error": f"{about.prepared} cannot be read"}
        self.positions = model.positions
        self.batches: list[Batch] = []
        pages = 0
        for load in about.loads:
            self.batches.append(batch_of(load, model.positions, about.row_pages, about.vocab, pages))
            pages = -(-self.batches[-1].pages.stop // about.pages.slab_pages) * about.pages.slab_pages
        arena = Arena(about.states, about.offsets, about.pages, pages)
        self.before = arena.holding(self.batches[0].pages).copy()
        capacity = {name: max(batch.sizes[name] for batch in self.batches) for name in self.batches[0].sizes}
        self.bench = Bench(
            model,
            model.load(open_checkpoint(Path(about.checkpoint))),
            ThreadPool(about.threads),
            ctypes.CDLL(about.driver),
            arena,
            capacity,
            about.repeats,
        )
        return {}

    def block(self, message: Message) -> Message:
        """Load a region's library and pack the weights that it wants."""
        spec = msgspec.convert(message["spec"], BlockSpec, strict=False)
        library = ctypes.CDLL(spec.library)
        self.blocks[spec.key] = self.bench.block(library, spec.arrays, spec.part, spec.stages, spec.ragged_tile)
        return {}

    def whole(self, message: Message) -> Message:
        """Load a whole program's library."""
        spec = msgspec.convert(message["spec"], WholeSpec, strict=False)
        library = ctypes.CDLL(spec.library)
        tables, held = self.bench.tables(spec.arrays, len(self.about.offsets) or 1)
        library.hr_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        library.hr_run.restype = None

        def run(batch: Batch, held: Any = held) -> None:
            keep: list[Any] = []
            step = self.bench.bound(tables, spec.arrays, batch, self.about.symbols, spec.ragged_tile, keep)
            step.first_part, step.last_part = 0, spec.parts
            library.hr_run(self.bench.pool.handle, ctypes.addressof(step), spec.stages)

        self.wholes[spec.key] = _Whole(run, spec.arrays)
        return {}

    def forget(self, message: Message) -> Message:
        """Give up regions that are not needed any more."""
        for key in message["keys"]:
            self.blocks.pop(key, None)
        wanted = [
            (array, array.repeats[: self.about.repeats[block.part]])
            for block in self.blocks.values()
            for array in block.arrays.weights.values()
        ]
        self.bench.weights.sweep(wanted)
        return {}

    def check(self, message: Message) -> Message:
        """Run the first workload; a digest of all that it wrote."""
        batch = self.batches[0]
        arena = self.bench.arena
        arena.holding(batch.pages)[:] = self.before
        self.bench.output("logits", batch.sizes["R"] * self.about.vocab)[:] = np.nan
        with _Timer(message["seconds"]):
            self._run(message["program"], batch)
        logits = self.bench.output("logits", batch.sizes["R"] * self.about.vocab)
        digest = self.bench.digest(batch, self.about.vocab, arena=True)
        return {"digest": digest, "finite": bool(np.isfinite(logits).all())}

    def time(self, message: Message) -> Message:
        """Run programs in turn on a workload.

        Of each program put together from blocks the nanoseconds of its functions: each stage of the step as fast as in
        the best of all rounds, for a process that wants a core disturbs some stages of each. Of each whole program the
        nanoseconds of all rounds.
        """
        batch = self.batches[message["workload"]]
        programs, rounds = message["programs"], message["rounds"]
        taken: list[list[npt.NDArray[np.int64]]] = [[] for _ in programs]
        digests = [""] * len(programs)
        with _Timer(message["seconds"]):
            for turn in range(rounds + 1):
                for n in range(len(programs)):
                    at = (n + turn) % len(programs)
                    found = self._run(programs[at], batch)
                    if turn == 0:  # to warm up
                        digests[at] = self.bench.digest(batch, self.about.vocab)
                    else:
                        taken[at].append(found)
        ns = [self._summed(program, rounds) for program, rounds in zip(programs, taken, strict=True)]
        return {"ns": ns, "digests": digests}

    def _summed(self, program: Sequence[str] | str, rounds: Sequence[npt.NDArray[np.int64]]) -> list[int]:
        if isinstance(program, str):
            return [int(taken[0]) for taken in rounds]
        return spent(np.min(rounds, axis=0), [self.blocks[key] for key in program], self.bench.repeats)

    def agree(self, message: Message) -> Message:
        """Compare a few layers of a program with the interpreter; the largest error over the largest logit."""
        small = Workload("small", ((0, 5), (0, 3), (0, 1)))
        batch = batch_of(small, self.positions, self.about.row_pages, self.about.vocab)
        before = self.bench.repeats
        self.bench.repeats = tuple(min(count, 2 - count % 2) for count in before)  # odd or even, as before
        slabs = self.bench.arena.holding(batch.pages)
        held = slabs.copy()
        try:
            slabs[:] = 0
            with _Timer(message["seconds"]):
                self._run(message["program"], batch)
            found = self.bench.output("logits", batch.sizes["R"] * self.about.vocab).reshape(batch.sizes["R"], -1)
            wanted = interpreted(self.bench.model, self.bench.weights, batch, self.bench.repeats)
        finally:
            slabs[:] = held
            self.bench.repeats = before
        return {"error_share": float(np.abs(found - wanted).max() / np.abs(wanted).max())}

    def _run(self, program: Sequence[str] | str, batch: Batch) -> npt.NDArray[np.int64]:
        """Run a step of a whole program, by its key, or of one put together from blocks; nanoseconds, all or each."""
        if isinstance(program, str):
            begin = time.perf_counter_ns()
            self.wholes[program].run(batch)
            return np.array([time.perf_counter_ns() - begin])
        return self.bench.run([self.blocks[key] for key in program], batch, self.about.symbols)


class _Timer:
    """Ends the process if what runs inside never returns and nobody else ends it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.seconds + ROOM_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def serve(channel: socket.socket, child: Child) -> None:
    """Answer requests until the parent hangs up."""
    pending = b""
    while True:
        while b"\n" not in pending:
            part = channel.recv(1 << 20)
            if not part:
                return
            pending += part
        line, _, pending = pending.partition(b"\n")
        message = json.loads(line)
        try:
            answer = getattr(child, message["do"])(message)
        except (HeadraceError, OSError, AttributeError, MemoryError, ValueError, KeyError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        channel.sendall(json.dumps({"id": message["id"], **answer}).encode() + b"\n")


def main() -> None:
    """Say that it lives, and serve."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's affair
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        os.set_inheritable(channel.fileno(), False)
        channel.sendall(b'{"id": 0}\n')
        serve(channel, Child())


if __name__ == "__main__":
    main()
