"""What a candidate is given and what is expected of it, laid out in memory that two processes share.

    read-only file      | guard | input | guard | input | guard |
    writable file       | guard | output | guard | output | guard |

Guards and what is to be written are full of patterns that are NaNs in float32, float16 and bfloat16: a kernel that
reads beyond an operand, or leaves an element out, shows it in its result. The two files have different ones, so that
one that copies too much shows it too; and they are signalling NaNs, which any arithmetic changes.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from headrace.compiler.native.verdict import NotFinite, OutOfBounds, Wrong
from headrace.errors import InvalidInput

Array = npt.NDArray[Any]

GUARD = 4096  # bytes
ALIGNMENT = 64
READ, WRITE = 0, 1
PATTERNS = np.array([[0xA5, 0xFF], [0x9A, 0xFF]], np.uint8)

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value x may be from the expected e: ``|x - e| <= absolute + relative * |e|``."""

    absolute: float
    relative: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """An operand that is only read. It cannot be written: the attempt is a segmentation fault.

    Attributes:
        data: Its contents, of any type; C order.
    """

    data: Array


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An operand that is written.

    Attributes:
        expected: Its contents afterwards, of any shape and type.
        tolerance: None: equal bit for bit.
        start: Its contents before, for what works in place; None: undefined.
        element: ``bf16`` where ``expected`` is uint16 that holds bfloat16; matters to a tolerance only.
    """

    expected: Array
    tolerance: Tolerance | None = None
    start: Array | None = None
    element: Literal["native", "bf16"] = "native"


Operand = Input | Output


class Case:
    """Operands of a kernel, in the order of its buffers, and the values of its symbolic dimensions.

    Holds memory until ``close``, or until nobody holds it any more. A context manager.

    Args:
        operands: What ``buffers`` points to.
        sizes: Signed 64-bit values.

    Raises:
        InvalidInput: An operand's ``start`` does not fit its ``expected``, or a size is out of range.
    """

    def __init__(self, operands: Sequence[Operand], sizes: Sequence[int] = ()) -> None:
        _check(operands, sizes)
        self.number = next(_numbers)
        self.operands = tuple(operands)
        self.sizes = tuple(int(size) for size in sizes)
        self.places: list[tuple[int, int, int]] = []  # region, begin, end of each operand
        ends = [GUARD, GUARD]
        for operand in operands:
            region = READ if isinstance(operand, Input) else WRITE
            begin, size = ends[region], _data(operand).nbytes
            self.places.append((region, begin, begin + size))
            ends[region] = (begin + size + GUARD + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.bytes = tuple(-(-end // mmap.PAGESIZE) * mmap.PAGESIZE for end in ends)
        self.files = tuple(_anonymous_file(size) for size in self.bytes)
        self._end = weakref.finalize(self, _close_files, self.files)
        # An array keeps the mapping that it lies on.
        maps = [mmap.mmap(file, size) for file, size in zip(self.files, self.bytes, strict=True)]
        self._memory = [np.frombuffer(region, np.uint8) for region in maps]
        for region, memory in enumerate(self._memory):
            memory[:] = _pattern(region, 0, memory.size)
        for operand, place in zip(self.operands, self.places, strict=True):
            if isinstance(operand, Input):
                self._bytes(place)[:] = _raw(operand.data)

    def guards(self) -> list[tuple[int, int, int]]:
        """Region, begin and end of all that lies around operands."""
        found = []
        for region in (READ, WRITE):
            at = 0
            for place, begin, end in self.places:
                if place == region:
                    found.append((region, at, begin))
                    at = end
            found.append((region, at, self.bytes[region]))
        return found

    def reset(self, *, only_in_place: bool = False) -> None:
        """Put what is to be written into the state before a run."""
        for operand, place in zip(self.operands, self.places, strict=True):
            if isinstance(operand, Output) and operand.start is not None:
                self._bytes(place)[:] = _raw(operand.start)
            elif isinstance(operand, Output) and not only_in_place:
                self._bytes(place)[:] = _pattern(*place)

    def judge(self) -> Wrong | NotFinite | OutOfBounds | None:
        """What is wrong with the memory after a run; None: nothing. Repairs the guards."""
        stray = self._stray()
        if stray is not None:
            return stray
        for number, (operand, place) in enumerate(zip(self.operands, self.places, strict=True)):
            if isinstance(operand, Output):
                found = self._bytes(place).view(operand.expected.dtype).reshape(operand.expected.shape)
                wrong = compare(number, found, operand)
                if wrong is not None:
                    return wrong
        return None

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return not self._end.alive

    def close(self) -> None:
        """Give the memory back; a sandbox does so when it is next asked for something. May be called again."""
        self._memory = []
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bytes(self, place: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        if self.closed:
            raise InvalidInput("it is closed: make another one", field="case")
        region, begin, end = place
        return self._memory[region][begin:end]

    def _stray(self) -> OutOfBounds | None:
        first = None
        for place in self.guards():
            if place[0] == READ:
                continue
            guard = self._bytes(place)
            pattern = _pattern(*place)
            changed = np.flatnonzero(guard != pattern)
            if len(changed):
                guard[:] = pattern
                first = first or self._nearest(place[1] + int(changed[0]), place[1] + int(changed[-1]))
        return first

    def _nearest(self, low: int, high: int) -> OutOfBounds:
        """The operand that a stray write at these offsets most likely belongs to."""
        candidates = []
        for number, (region, begin, end) in enumerate(self.places):
            if region == WRITE and end <= low:
                candidates.append((low - end, number, low - end))
            elif region == WRITE and begin > high:
                candidates.append((begin - high, number, high - begin))
        _, operand, distance = min(candidates)
        return OutOfBounds(operand, distance)


def compare(number: int, found: Array, output: Output) -> Wrong | NotFinite | None:
    """Judge one output.

    A NaN is never right, and an infinity only where one is expected.

    Args:
        number: Of the operand.
        found: The same shape and type as what is expected.
        output: What is expected.
    """
    x, e = _values(found, output.element), _values(output.expected, output.element)
    floating = x.dtype.kind in "fc"
    if floating:
        bad = ~np.isfinite(x) & ~(np.isinf(x) & (x == e))
        if bad.any():
            return NotFinite(number, _first(bad), int(bad.sum()))
    if output.tolerance is None:
        raw_x, raw_e = _raw(found), _raw(output.expected)
        if raw_x.size == 0:
            return None
        bad = (raw_x != raw_e).reshape(*found.shape, -1).any(-1)
        allowed = np.zeros(())
    else:
        allowed = output.tolerance.absolute + output.tolerance.relative * np.abs(np.where(np.isfinite(e), e, 0))
        bad = ~((x == e) | (np.abs(_difference(x, e)) <= allowed))
    if not bad.any():
        return None
    error = np.where(bad, np.abs(_difference(x, e)), -1.0)
    where = np.unravel_index(int(np.argmax(error - allowed)), error.shape)
    return Wrong(number, float(error.max()), tuple(int(i) for i in where), int(bad.sum()))


def _difference(x: Array, e: Array) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.asarray(x.astype(np.float64) - e.astype(np.float64))


def _values(array: Array, element: str) -> Array:
    if element == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _pattern(region: int, begin: int, end: int) -> npt.NDArray[np.uint8]:
    return np.resize(np.roll(PATTERNS[region], begin % 2), end - begin)


def _first(bad: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def _data(operand: Operand) -> Array:
    return operand.data if isinstance(operand, Input) else operand.expected


def _raw(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _check(operands: Sequence[Operand], sizes: Sequence[int]) -> None:
    for number, operand in enumerate(operands):
        if isinstance(operand, Output):
            expected, start = operand.expected, operand.start
            if start is not None and (start.shape, start.dtype) != (expected.shape, expected.dtype):
                raise InvalidInput("shape and type of `start` must be those of `expected`", field=f"operands[{number}]")
            if operand.element == "bf16" and expected.dtype != np.uint16:
                raise InvalidInput("bf16 is given as uint16", field=f"operands[{number}]")
        if _data(operand).dtype.hasobject:
            raise InvalidInput("Python objects are no operands", field=f"operands[{number}]")
    for number, size in enumerate(sizes):
        if not -(1 << 63) <= size < 1 << 63:
            raise InvalidInput("must fit 64 bits", field=f"sizes[{number}]")


def _close_files(files: tuple[int, ...]) -> None:
    for file in files:
        os.close(file)


def _anonymous_file(size: int) -> int:
    """A file without a name, in memory where the system has such files: nothing is left if we are killed."""
    if sys.platform == "linux":
        file = os.memfd_create("headrace-case")
    else:
        with tempfile.TemporaryFile() as named:
            file = os.dup(named.fileno())
    os.ftruncate(file, size)
    return file
