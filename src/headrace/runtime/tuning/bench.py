"""Programs on trial, in the process that tries them: blocks put together to a step, run on real weights and timed."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array, Inventory
from headrace.compiler.codegen.layout import Layout
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.search.choices import merged
from headrace.runtime.compile import PreparedModel
from headrace.runtime.compiled import tiles_of
from headrace.runtime.native_program import SLACK, StepTables, Tiles, aligned
from headrace.runtime.tuning.loads import Batch
from headrace.runtime.tuning.memory import Arena, Load, PackedWeights


@dataclass(frozen=True, slots=True)
class Block:
    """A region's library, loaded, with its tables.

    Attributes:
        part: The number of its part.
        functions: Addresses of its stages' functions.
        arrays: What its tables hold.
        tables: Its own ``hr_step``, without what a batch brings.
        held: Memory that it points to.
        ragged_tile: See ``Region``.
    """

    part: int
    functions: tuple[int, ...]
    arrays: Inventory
    tables: StepTables
    held: tuple[Any, ...]
    ragged_tile: int


class _Trial(ctypes.Structure):
    _fields_ = (
        ("parts", ctypes.c_int64),
        ("stages", ctypes.c_void_p),
        ("repeats", ctypes.c_void_p),
        ("functions", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        ("ends", ctypes.c_void_p),
        ("begin", ctypes.c_int64),
    )


class Bench:
    """Where programs are tried.

    Args:
        model: The model.
        load: Reads a stored weight by its full name.
        pool: Who computes.
        driver: The library of ``regions.TRIAL``.
        arena: The states.
        capacity: The largest value of each symbol.
        repeats: How often each part runs: all of its repetitions, or fewer of large models.
    """

    def __init__(
        self,
        model: PreparedModel,
        load: Load,
        pool: ThreadPool,
        driver: ctypes.CDLL,
        arena: Arena,
        capacity: Mapping[str, int],
        repeats: Sequence[int],
    ) -> None:
        self.model, self.pool, self.arena, self.capacity, self.repeats = model, pool, arena, capacity, tuple(repeats)
        self.weights = PackedWeights(model, load)
        self._try = driver.hr_try
        self._try.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self._try.restype = None
        self._buffers: dict[tuple[str, Layout], npt.NDArray[np.uint8]] = {}
        self._scratch = aligned(4096)
        self.step_count = 0

    def block(self, library: ctypes.CDLL, arrays: Inventory, part: int, stages: int, ragged_tile: int) -> Block:
        """A region's library with its tables."""
        names = [f"hr_stage_{n}" for n in range(stages)]
        functions = tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)
        tables, held = self.tables(arrays, self.repeats[part])
        return Block(part, functions, arrays, tables, (library, *held), ragged_tile)

    def tables(self, arrays: Inventory, most: int) -> tuple[StepTables, tuple[Any, ...]]:
        """An ``hr_step`` with pointers to weights, states and buffers; and what must live as long."""
        rows = [self.weights.addresses(array, array.repeats[:most]) for array in arrays.weights.values()]
        count = max((len(row) for row in rows), default=1)
        weights = np.zeros((count, max(1, len(rows))), np.uint64)
        for n, row in enumerate(rows):
            weights[: len(row), n] = row
        used = max((len(state.repeats[:most]) for state in arrays.states.values()), default=1)
        states = np.array(
            [self.arena.address(state.name, n) for n in range(used) for state in arrays.states.values()] or [0],
            np.uint64,
        )
        buffers = np.array([self._buffer(array).ctypes.data for array in arrays.buffers.values()] or [0], np.uint64)
        self._widen(arrays.scratch)
        tables = StepTables(
            weights=weights.ctypes.data,
            states=states.ctypes.data,
            buffers=buffers.ctypes.data,
            weight_count=weights.shape[1],
            state_count=len(arrays.states),
            threads=self.pool.threads,
        )
        return tables, (weights, states, buffers)

    def _buffer(self, array: Array) -> npt.NDArray[np.uint8]:
        key = (array.name, merged(array.layout))
        if key not in self._buffers:
            rows = {array.layout.pieces[0].axis: self.capacity[array.rows]} if array.rows else {}
            self._buffers[key] = aligned(array.layout.nbytes(array.dtype, rows) + SLACK)
        return self._buffers[key]

    def _widen(self, scratch: int) -> None:
        wanted = -(-(scratch + SLACK) // 4096) * 4096 * self.pool.threads
        if wanted > self._scratch.size:
            self._scratch = aligned(wanted)

    def run(self, blocks: Sequence[Block], batch: Batch, symbols: Sequence[str]) -> npt.NDArray[np.int64]:
        """Run a step; the nanoseconds of each stage, in the order in which they run.

        Args:
            blocks: All of a program's, in order.
            batch: What to compute.
            symbols: Order of the symbols' values.
        """
        keep: list[Any] = []
        steps = [self.bound(block.tables, block.arrays, batch, symbols, block.ragged_tile, keep) for block in blocks]
        ordered = [(block.part, function, step) for block, step in zip(blocks, steps, strict=True)
                   for function in block.functions]  # fmt: skip
        parts = 1 + max(block.part for block in blocks)
        stages = np.array([sum(part == n for part, *_ in ordered) for n in range(parts)], np.int64)
        repeats = np.array(self.repeats, np.int64)
        functions = np.array([function for _, function, _ in ordered], np.uint64)
        places = np.array([ctypes.addressof(step) for *_, step in ordered], np.uint64)
        count = int(stages @ repeats)
        ends = np.zeros(count, np.int64)
        trial = _Trial(
            parts=parts,
            stages=stages.ctypes.data,
            repeats=repeats.ctypes.data,
            functions=functions.ctypes.data,
            steps=places.ctypes.data,
            scratch=self._scratch.ctypes.data,
            scratch_bytes=self._scratch.size // self.pool.threads,
            ends=ends.ctypes.data,
        )
        self._try(self.pool.handle, ctypes.addressof(trial), count)
        return np.diff(ends, prepend=trial.begin)

    def bound(
        self,
        tables: StepTables,
        arrays: Inventory,
        batch: Batch,
        symbols: Sequence[str],
        ragged_tile: int,
        keep: list[Any],
    ) -> StepTables:
        """The tables with what a batch brings; what must live as long goes to ``keep``."""
        values = np.array([batch.sizes.get(name, 0) for name in symbols], np.int64)
        places = np.array([batch.arguments[name].ctypes.data for name in arrays.arguments] or [0], np.uint64)
        tiles = tiles_of(batch.offsets, ragged_tile) if ragged_tile else _no_tiles()
        step = StepTables.from_buffer_copy(tables)
        step.sizes, step.arguments = values.ctypes.data, places.ctypes.data
        step.tiles = len(tiles.segment)
        step.tile_segment, step.tile_begin = tiles.segment.ctypes.data, tiles.begin.ctypes.data
        step.tile_end = tiles.end.ctypes.data
        step.scratch, step.scratch_bytes = self._scratch.ctypes.data, self._scratch.size // self.pool.threads
        keep += [values, places, tiles, step]
        return step

    def output(self, name: str, elements: int) -> npt.NDArray[np.float32]:
        """The first elements of a result of the last part."""
        (key,) = [key for key in self._buffers if key[0] == f"{name}/0"]
        return self._buffers[key].view(np.float32)[:elements]

    def digest(self, batch: Batch, vocab: int, *, arena: bool = False) -> str:
        """Of the logits that a run left, and of the pages if ``arena``."""
        found = hashlib.sha256(self.output("logits", batch.sizes["R"] * vocab).tobytes())
        if arena:
            found.update(self.arena.holding(batch.pages).tobytes())
        return found.hexdigest()[:16]


def spent(taken: npt.NDArray[np.int64], blocks: Sequence[Block], repeats: Sequence[int]) -> list[int]:
    """Nanoseconds of each function, from those of each stage in the order in which they ran."""
    found: list[int] = []
    first = 0
    for part, times in enumerate(repeats):
        count = sum(len(block.functions) for block in blocks if block.part == part)
        found += [int(x) for x in taken[first : first + count * times].reshape(times, count).sum(axis=0)]
        first += count * times
    return found


def _no_tiles() -> Tiles:
    none = np.zeros(1, np.int32)
    return Tiles(none[:0], none[:0], none[:0])
