"""``Arena``: one block of bytes on a device, lent out in slabs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Arena:
    """One block of host memory, lent out in slabs of equal size.

    The block is reserved at once and paid for page by page as it is touched (the operating system's zero pages).

    Args:
        slabs: How many slabs.
        slab_bytes: Bytes of one slab.
    """

    def __init__(self, slabs: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        self.buffer: npt.NDArray[np.uint8] = np.zeros(slabs * slab_bytes, np.uint8)
        # Descending, so that low addresses are lent first and the untouched end costs nothing.
        self._free = list(range((slabs - 1) * slab_bytes, -1, -slab_bytes))
        self._lent: set[int] = set()

    @property
    def free_slabs(self) -> int:
        """Slabs that no pool holds."""
        return len(self._free)

    def take(self) -> int | None:
        """Lend a slab: its byte offset, or None when none is left."""
        if not self._free:
            return None
        offset = self._free.pop()
        self._lent.add(offset)
        return offset

    def give(self, offset: int) -> None:
        """Take back a slab that was lent."""
        self._lent.remove(offset)
        self._free.append(offset)

    def check(self) -> None:
        """Assert the invariants: every slab is either free or lent, once."""
        slabs = len(self.buffer) // self.slab_bytes
        assert len(self._free) == len(set(self._free)), "a slab is free twice"
        assert not self._lent & set(self._free), "a slab is both lent and free"
        assert self._lent | set(self._free) == {i * self.slab_bytes for i in range(slabs)}, "a slab is lost"
