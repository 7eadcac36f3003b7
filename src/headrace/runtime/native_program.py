"""A compiled program in memory: tables of pointers, and the call that runs a step."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.codegen.program import ProgramSource
from headrace.compiler.interpret import storage
from headrace.compiler.ir import DType
from headrace.compiler.native.pool import ThreadPool

AnyArray = npt.NDArray[Any]
ALIGNMENT = 64
SLACK = 256  # bytes behind each array, into which the last vector may reach


@dataclass(frozen=True, slots=True)
class Tiles:
    """Shares of the rows, each of one segment; int32 [tiles] each.

    Attributes:
        segment: Which one.
        begin: Its first row.
        end: One behind its last.
    """

    segment: npt.NDArray[np.int32]
    begin: npt.NDArray[np.int32]
    end: npt.NDArray[np.int32]


class StepTables(ctypes.Structure):
    """``hr_step`` of generated code."""

    _fields_ = (
        ("sizes", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_bytes", ctypes.c_int64),
        ("tiles", ctypes.c_int64),
        ("tile_segment", ctypes.c_void_p),
        ("tile_begin", ctypes.c_void_p),
        ("tile_end", ctypes.c_void_p),
        ("weight_count", ctypes.c_int64),
        ("state_count", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("first_part", ctypes.c_int64),
        ("last_part", ctypes.c_int64),
        ("spent", ctypes.c_void_p),
    )


class Bound:
    """Arguments and tiles in place, so that steps that find theirs there need not look up where they are.

    Args:
        arguments: Each as its layout has it, contiguous, with some bytes behind it (see ``SLACK``).
        tiles: Of a step; it may have fewer.
    """

    def __init__(self, arguments: Sequence[AnyArray], tiles: Tiles) -> None:
        self._places = np.array([array.ctypes.data for array in arguments], np.uint64)
        self._kept = arguments, tiles  # native code has their addresses
        self.arguments = self._places.ctypes.data
        self.tiles = tiles.segment.ctypes.data, tiles.begin.ctypes.data, tiles.end.ctypes.data


class NativeProgram:
    """Runs steps of one program, one at a time, at once or in two halves.

    Args:
        source: What was compiled.
        library: The result.
        pool: Who computes.
        weights: Address of each weight, repetition by repetition, in the order of ``source.arrays.weights``.
        states: Address of each state's share of the first page, in the same manner.
        capacity: The largest value of each symbol.
    """

    def __init__(
        self,
        source: ProgramSource,
        library: ctypes.CDLL,
        pool: ThreadPool,
        *,
        weights: Sequence[int],
        states: Sequence[int],
        capacity: Mapping[str, int],
    ) -> None:
        self.source, self.pool = source, pool
        self._start = library.hr_start
        self._start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self._start.restype = None
        arrays = source.arrays
        self._buffers = [_allocate(array, capacity) for array in arrays.buffers.values()]
        scratch = -(-(arrays.scratch + SLACK) // 4096) * 4096
        self._scratch = aligned(scratch * pool.threads)
        self.spent = np.zeros(len(source.names), np.int64)
        self._weights = np.array(weights, np.uint64)
        self._states = np.array(states, np.uint64)
        self._tables = np.array([b.ctypes.data for b in self._buffers], np.uint64)
        self._sizes = np.zeros(len(source.symbols), np.int64)
        self._step = StepTables(
            sizes=self._sizes.ctypes.data,
            weights=self._weights.ctypes.data,
            states=self._states.ctypes.data,
            buffers=self._tables.ctypes.data,
            scratch=self._scratch.ctypes.data,
            scratch_bytes=scratch,
            weight_count=len(arrays.weights),
            state_count=len(arrays.states),
            threads=pool.threads,
        )
        self._at = ctypes.addressof(self._step)

    def profile(self, on: bool) -> None:
        """Whether steps add the nanoseconds of each stage to ``spent`` (int64 [stages]); it costs some microseconds."""
        self._step.spent = self.spent.ctypes.data if on else None

    def run(
        self,
        sizes: Mapping[str, int],
        arguments: Mapping[str, AnyArray],
        tiles: Tiles,
        parts: tuple[int, int] | None = None,
    ) -> None:
        """Run a step; the interpreter lock is released meanwhile.

        Args:
            sizes: Values of the symbols, none above the capacity.
            arguments: Each argument as its layout has it, contiguous, with some bytes behind it (see ``SLACK``).
            tiles: The rows, cut where a segment ends.
            parts: The first part to run and the one behind the last; all by default.
        """
        self.run_bound(sizes, self.bind(arguments, tiles), len(tiles.segment), parts)

    def bind(self, arguments: Mapping[str, AnyArray], tiles: Tiles) -> Bound:
        """Arguments and tiles for ``run_bound``."""
        return Bound([arguments[name] for name in self.source.arrays.arguments], tiles)

    def run_bound(
        self, sizes: Mapping[str, int], bound: Bound, tiles: int, parts: tuple[int, int] | None = None
    ) -> None:
        """``run`` with the arguments that ``bound`` has by now, and the first so many of its tiles."""
        self.start(sizes, bound, tiles, parts)
        self.join()

    def start(self, sizes: Mapping[str, int], bound: Bound, tiles: int, parts: tuple[int, int] | None = None) -> None:
        """Begin a step on the pool's threads; until ``join`` the caller may do something else.

        Arguments, tiles and results belong to the step until then.
        """
        self._sizes[:] = [sizes.get(name, 0) for name in self.source.symbols]
        step = self._step
        step.arguments = bound.arguments
        step.tile_segment, step.tile_begin, step.tile_end = bound.tiles
        step.tiles = tiles
        step.first_part, step.last_part = parts or (0, len(self.source.parts))
        self._start(self.pool.handle, self._at, self.source.stages)

    def join(self) -> None:
        """Take part in the step that was begun, and return at its end."""
        self.pool.join()

    def output(self, name: str) -> AnyArray:
        """The memory of a value that the last part left, one-dimensional; see ``value``."""
        return self.value(f"{name}/{self.source.arrays.turns.get(name, 0)}")

    def value(self, name: str) -> AnyArray:
        """A buffer's memory, one-dimensional, in its element type (bfloat16 as uint16)."""
        at = list(self.source.arrays.buffers).index(name)
        dtype = self.source.arrays.buffers[name].dtype
        return self._buffers[at].view(np.uint16 if dtype in (DType.BF16, DType.F16) else storage(dtype))


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that begin at a multiple of 64."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def _allocate(array: Array, capacity: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    rows = {array.layout.pieces[0].axis: capacity[array.rows]} if array.rows else {}
    return aligned(array.layout.nbytes(array.dtype, rows) + SLACK)
