"""Programs on trial, in the process that tries them: blocks put together to a step, run on real weights and timed."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array, Inventory
from headrace.compiler.codegen.layout import Layout
from headrace.compiler.interpret import bind, run_program, storage
from headrace.compiler.ir import BITS, DType, Kind, Part, Program
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.search.bound import Workload
from headrace.compiler.search.choices import merged
from headrace.runtime.compile import PreparedModel
from headrace.runtime.compiled import tiles_of
from headrace.runtime.native_program import SLACK, StepTables, Tiles, aligned
from headrace.runtime.packed_weights import stored_bits, weight_value, write
from headrace.runtime.state_layout import PAGE_TOKENS

Load = Callable[[str], npt.NDArray[Any]]
Ints = npt.NDArray[np.int32]
KEEP_BYTES = 1 << 30  # of packed weights that nobody uses at present


@dataclass(frozen=True, slots=True)
class Batch:
    """A workload as a program wants it.

    Attributes:
        sizes: Values of the symbols.
        arguments: int32, each with room behind it.
        offsets: int32 [rows + 1], first token of each row.
        pages: Of the arena, those that it reads and writes, and no other batch that reads what it did not write.
    """

    sizes: Mapping[str, int]
    arguments: Mapping[str, Ints]
    offsets: Ints
    pages: slice


def batch_of(load: Workload, positions: int, row_pages: int, vocab: int, first_page: int = 0) -> Batch:
    """Random tokens for a workload, its sequences' pages in any order.

    Args:
        load: How many tokens.
        positions: See ``PreparedModel``.
        row_pages: Columns of the table of pages.
        vocab: Tokens that there are.
        first_page: Where its pages begin in the arena.
    """
    rng = np.random.default_rng(len(load.rows))
    starts = np.array([start for start, _ in load.rows])
    counts = np.array([count for _, count in load.rows])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    total, rows = int(offsets[-1]), len(load.rows)
    used = -(-(starts + counts) // PAGE_TOKENS)
    pages = int(used.sum())
    order = first_page + rng.permutation(pages)
    table = np.zeros((rows, row_pages), np.int32)
    for row, (first, count) in enumerate(zip(np.cumsum(used) - used, used, strict=True)):
        table[row, :count] = order[first : first + count]
    longest = int((starts + counts).max())
    most = -(-longest // PAGE_TOKENS)
    arguments: dict[str, npt.NDArray[Any]] = {
        "tokens": rng.integers(0, vocab, total),
        "positions": np.arange(total) + np.repeat(starts - offsets[:-1], counts),
        "row": np.repeat(np.arange(rows), counts),
        "page_rows": table.reshape(-1),
        "select": offsets[1:] - 1,
    }
    sizes = {"T": total, "B": rows, "N": first_page + pages, "P": most, "S": most * PAGE_TOKENS, "R": rows}
    sizes["NB"] = -(-longest // positions)
    return Batch(
        sizes,
        {name: _roomy(values) for name, values in arguments.items()},
        offsets,
        slice(first_page, first_page + pages),
    )


def _roomy(values: npt.NDArray[Any]) -> Ints:
    held = aligned(values.size * 4 + SLACK).view(np.int32)[: values.size]
    held[:] = values
    return held


_Key = tuple[tuple[str, ...], Layout, DType | None, tuple[str, ...]]


def _key(array: Array, repeats: tuple[str, ...]) -> _Key:
    """What tells regions of weights apart: weights of one record have one."""
    if not array.record:
        return (array.name,), merged(array.layout), array.dtype, repeats
    heads = Layout(array.layout.pieces[: array.layout.records[-1][0]])
    return array.record, merged(heads), None, repeats


class PackedWeights:
    """The weights of a model, in each layout that some block wants; those of one name side by side.

    Args:
        model: Whose they are.
        load: Reads a stored weight by its full name.
    """

    def __init__(self, model: PreparedModel, load: Load) -> None:
        self._model, self._load = model, load
        self._held: dict[_Key, tuple[npt.NDArray[np.uint8], int]] = {}
        self._written: set[tuple[str, _Key]] = set()

    def addresses(self, array: Array, repeats: tuple[str, ...]) -> list[int]:
        """Where the weight is, repetition by repetition; packed now if it was not wanted before."""
        key = _key(array, repeats)
        size = array.layout.nbytes(array.dtype, self._model.extents[array.name])
        if key not in self._held:
            step = -(-(size + SLACK) // 64) * 64
            self._held[key] = aligned(step * len(repeats)), step
        block, step = self._held[key]
        if (array.name, key) not in self._written:
            self._written.add((array.name, key))
            for n, repeat in enumerate(repeats):
                write(block[n * step : n * step + size], array, self.value(array.name, repeat))
        return [block.ctypes.data + n * step + array.offset for n in range(len(repeats))]

    def sweep(self, wanted: Sequence[tuple[Array, tuple[str, ...]]]) -> None:
        """Give back what is not wanted, if it is much."""
        used = {_key(array, repeats) for array, repeats in wanted}
        idle = [key for key in self._held if key not in used]
        if sum(self._held[key][0].nbytes for key in idle) > KEEP_BYTES:
            for key in idle:
                del self._held[key]
            self._written = {(name, key) for name, key in self._written if key in self._held}

    def value(self, name: str, repeat: str) -> npt.NDArray[Any]:
        """A weight of a repetition, not packed."""
        return weight_value(name, repeat, self._model.made, self._load)


class Arena:
    """Pages of state, with random contents that are numbers.

    Args:
        states: The states' arrays, each with its layout in a page.
        offsets: First byte in a page of each state, repetition by repetition.
        page_bytes: Bytes of a page.
        pages: How many.
    """

    def __init__(self, states: Sequence[Array], offsets: Sequence[int], page_bytes: int, pages: int) -> None:
        self.page_bytes = page_bytes
        self.raw = aligned(page_bytes * pages + SLACK)
        self.pages = self.raw[: page_bytes * pages].reshape(pages, page_bytes)
        self._places = {(state.name, n % len(states)): state for n, state in enumerate(states)}
        self._names, self._offsets = [state.name for state in states], offsets
        for n, begin in enumerate(offsets):
            end = offsets[n + 1] if n + 1 < len(offsets) else page_bytes
            self._fill(states[n % len(states)], begin, end)

    def _fill(self, state: Array, begin: int, end: int) -> None:
        """One page's worth for all pages: what is in it does not matter, as long as it is no NaN."""
        count = (end - begin) * 8 // BITS[state.dtype]
        values = np.random.default_rng(begin).standard_normal(count).astype(np.float32)
        self.pages[:, begin:end] = stored_bits(values, state.dtype).view(np.uint8)

    def address(self, name: str, repeat: int) -> int:
        """Where a state's share of the first page is."""
        return self.raw.ctypes.data + self._offsets[repeat * len(self._names) + self._names.index(name)]


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
            found.update(self.arena.pages[batch.pages].tobytes())
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


def interpreted(
    model: PreparedModel, weights: PackedWeights, batch: Batch, repeats: Sequence[int]
) -> npt.NDArray[np.float32]:
    """The logits of a batch whose states begin as zeros, by the interpreter; float32 [rows, vocab].

    Args:
        model: The program.
        weights: Its weights.
        batch: What to compute.
        repeats: How often each part runs.
    """
    parts = [
        Part(part.name, part.graph, part.repeats[:count])
        for part, count in zip(model.program.parts, repeats, strict=True)
    ]
    inputs: dict[str, npt.NDArray[Any]] = {}
    for part in parts:
        extents = {name: axis.extent for name, axis in part.graph.axes.items()}
        for declared in part.graph.inputs.values():
            shape = [e if isinstance(e := extents[a], int) else batch.sizes[e] for a in declared.type.axes]
            for repeat in part.repeats:
                name = bind(declared.state or declared.name, repeat)
                if declared.kind is Kind.WEIGHT:
                    inputs[name] = weights.value(declared.name, repeat)
                elif declared.kind is Kind.ARGUMENT:
                    inputs[name] = _shaped(batch.arguments[declared.name], shape)
                elif declared.kind is Kind.STATE:
                    inputs[name] = np.zeros(shape, storage(declared.type.dtype))
    found = run_program(Program(tuple(parts)), inputs, batch.sizes)["logits"]
    return np.asarray(found, np.float32)


def _shaped(values: Ints, shape: Sequence[int]) -> Ints:
    """An argument as the interpreter takes it: of a table whose rows have room, what is used."""
    if len(shape) < 2:
        return values
    wide = values.reshape(shape[0], -1)
    return wide[:, : math.prod(shape[1:])].reshape(shape)
