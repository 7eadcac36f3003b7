"""Where the elements of an array lie in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.ir import BITS, DType


@dataclass(frozen=True, slots=True)
class Piece:
    """One digit of an axis' index: ``index // divisor % extent``; an extent of 0 is not bounded (outermost only)."""

    axis: str
    divisor: int
    extent: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Digits from the slowest to the fastest.

    Codes of 4-bit weights, 16 output columns (``n``) beside each other, four inputs (``k``) of a column in a word::

        n//16 | k//32 | k//4 % 4 | n % 16 | k % 4        nibble: k//16 % 2

    Attributes:
        pieces: The digits.
        nibble: The digit that chooses between the low and the high half of a byte; of 4-bit elements alone.
        records: Where other arrays' elements lie between this one's: after how many digits, and how many elements
            (bytes, if there is a nibble) it is from one value of the last of these digits to the next.
    """

    pieces: tuple[Piece, ...]
    nibble: Piece | None = None
    records: tuple[tuple[int, int], ...] = ()

    def strides(self) -> tuple[int, ...]:
        """Elements (bytes, if there is a nibble) from one value of each digit to the next."""
        if not self.pieces:
            return ()
        steps: list[int] = []
        given = dict(self.records)
        for digits in range(len(self.pieces), 0, -1):
            own = steps[-1] * self.pieces[digits].extent if steps else 1
            steps.append(given.get(digits, own))
        return tuple(reversed(steps))

    def leads(self, piece: Piece) -> bool:
        """Whether a digit is its axis' highest, which no index exceeds."""
        digits = [p for p in (*self.pieces, self.nibble) if p and p.axis == piece.axis and p.extent != 1]
        return all(p == piece or p.divisor < piece.divisor for p in digits)

    def axes(self) -> set[str]:
        """The axes that have a digit."""
        return {piece.axis for piece in self.pieces}

    def elements(self, extents: Mapping[str, int]) -> int:
        """Elements (bytes, if there is a nibble) of an array whose axes have these extents."""
        first = self.pieces[0] if self.pieces else None
        if first is None:
            return 1
        outer = first.extent or math.ceil(extents[first.axis] / first.divisor)
        return outer * self.strides()[0]

    def covers(self, axis: str, extent: int) -> bool:
        """Whether there is room for an axis of this length: there may be more than it needs."""
        return math.prod(p.extent for p in self.pieces if p.axis == axis) >= extent

    def nbytes(self, dtype: DType, extents: Mapping[str, int]) -> int:
        """Bytes of such an array."""
        return self.elements(extents) * (1 if self.nibble else element_bytes(dtype))


def element_bytes(dtype: DType) -> int:
    """Bytes of an element that has its own: where there is no nibble, 4-bit elements do."""
    return max(1, BITS[dtype] // 8)


def plain(axes: Sequence[str], extents: Mapping[str, int | str]) -> Layout:
    """The axes in this order, whole; only the first may be symbolic."""
    sized = ((axis, extents[axis]) for axis in axes)
    return Layout(tuple(Piece(axis, 1, extent if isinstance(extent, int) else 0) for axis, extent in sized))


def pack(values: npt.NDArray[Any], axes: Sequence[str], layout: Layout) -> npt.NDArray[Any]:
    """A constant laid out, one-dimensional.

    Args:
        values: The array; 4-bit elements one a byte.
        axes: Its axes, in the order of its dimensions.
        layout: Where its elements shall lie. Digits of an axis that together exceed its extent are padded with zeros.
    """
    digits = [*layout.pieces, *([layout.nibble] if layout.nibble else [])]
    split: list[int] = []  # the digits, axis by axis, from the highest
    shape: list[int] = []
    padded = values
    for at, axis in enumerate(axes):
        mine = sorted((n for n, d in enumerate(digits) if d.axis == axis), key=lambda n: -digits[n].divisor)
        sizes = [digits[n].extent or -(-values.shape[at] // digits[n].divisor) for n in mine]
        missing = math.prod(sizes) - values.shape[at]
        if missing:
            padded = np.pad(padded, [(0, missing if i == at else 0) for i in range(values.ndim)])
        split += mine
        shape += sizes
    order = [split.index(n) for n in range(len(digits))]
    laid = padded.reshape(shape).transpose(order)
    if layout.nibble:
        laid = laid[..., 0] | laid[..., 1] << 4
    return np.ascontiguousarray(laid).reshape(-1)
