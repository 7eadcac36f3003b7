"""How the bytes of pages get out of an arena and into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.memory.page_form import Bytes, PageForm
from headrace.memory.tiers.records import Offsets

Pieces = npt.NDArray[np.void]


class PageBytes(Protocol):
    """Access to the bytes of an arena, by offset. Other threads call it while steps run; nobody else uses the pages."""

    def read(self, group: int, offsets: Offsets, out: Bytes) -> None:
        """Copy pages out.

        Args:
            group: Number of their state group.
            offsets: int64 [pages].
            out: uint8 [pages x page bytes], where to.
        """
        ...

    def write(self, group: int, offsets: Offsets, source: Bytes) -> None:
        """Copy pages in; the arguments are those of ``read``."""
        ...


class ArenaBytes:
    """The arena of a CPU.

    Pages that are neighbours in a slab are copied together. A piece is one item to NumPy: its loop over items is
    in C and does not hold the interpreter.

    Args:
        buffer: uint8, the arena.
        forms: How the pages of each group lie in it.
    """

    def __init__(self, buffer: Bytes, forms: Sequence[PageForm]) -> None:
        self.buffer, self.forms = buffer, tuple(forms)

    def read(self, group: int, offsets: Offsets, out: Bytes) -> None:
        """See ``PageBytes``."""
        for inside, outside in self._pairs(group, offsets, out):
            outside[:] = inside

    def write(self, group: int, offsets: Offsets, source: Bytes) -> None:
        """See ``PageBytes``."""
        for inside, outside in self._pairs(group, offsets, source):
            inside[:] = outside

    def _pairs(self, group: int, offsets: Offsets, flat: Bytes) -> Iterator[tuple[Pieces, Pieces]]:
        """Views of the same pieces: in the arena, and in pages one after the other; items [pages, pieces]."""
        form = self.forms[group]
        pages = flat.reshape(len(offsets), form.page_bytes)
        for first, last in neighbours(offsets, form):
            slab, number = divmod(int(offsets[first]), form.slab_bytes)
            number //= form.page_bytes
            begin, column = slab * form.slab_bytes, 0
            for count, size in form.runs:
                piece = np.dtype((np.void, size))
                end = begin + count * form.slab_pages * size
                inside = self.buffer[begin:end].view(piece).reshape(count, form.slab_pages)
                outside = pages[first:last, column : column + count * size].view(piece)
                yield inside[:, number : number + last - first].T, outside
                begin, column = end, column + count * size


def neighbours(offsets: Offsets, form: PageForm) -> list[tuple[int, int]]:
    """Where pages lie side by side in a slab: first and end of each such stretch."""
    if not len(offsets):
        return []
    apart = (np.diff(offsets) != form.page_bytes) | (np.diff(offsets // form.slab_bytes) != 0)
    ends = [*(np.flatnonzero(apart) + 1).tolist(), len(offsets)]
    return list(zip([0, *ends[:-1]], ends, strict=True))
