"""``PageForm``: where the bytes of a page lie in its slab. What they mean is the executors' affair."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PageForm:
    """Pages in pieces, so that the like pieces of neighbouring pages lie side by side.

    Two runs, of two pieces and of one, in slabs of four pages (``2.1``: page 2, piece 1)::

        0.0 1.0 2.0 3.0 | 0.1 1.1 2.1 3.1 | 0.2   1.2   2.2   3.2   | rest of the slab

    The offset that names page ``n`` of a slab is the slab's plus ``n * page_bytes``, although its bytes lie elsewhere.

    Attributes:
        slab_pages: Pages of a slab.
        slab_bytes: Bytes of a slab, at least its pages'.
        runs: Of pieces of equal size: how many, and bytes of each.
    """

    slab_pages: int
    slab_bytes: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, slab_pages: int, runs: Iterable[tuple[int, int]]) -> PageForm:
        """The form with neighbouring runs of equal pieces joined, in slabs that its pages fill."""
        joined = []
        for size, some in itertools.groupby(runs, key=lambda run: run[1]):
            joined.append((sum(count for count, _ in some), size))
        return cls(slab_pages, slab_pages * sum(count * size for count, size in joined), tuple(joined))

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return sum(count * size for count, size in self.runs)

    def in_slabs(self, slab_bytes: int) -> PageForm:
        """The same pages, as many as there is room for, in slabs of another size."""
        return replace(self, slab_pages=slab_bytes // self.page_bytes, slab_bytes=slab_bytes)

    def pieces(self, buffer: Bytes, offset: int) -> list[Bytes]:
        """Views of a page's bytes, uint8 [pieces, bytes] for each run."""
        slab, page = offset - offset % self.slab_bytes, offset % self.slab_bytes // self.page_bytes
        found = []
        for count, size in self.runs:
            end = slab + count * self.slab_pages * size
            found.append(buffer[slab:end].reshape(count, self.slab_pages, size)[:, page])
            slab = end
        return found
