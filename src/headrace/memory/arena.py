"""``Arena``: one block of bytes on a device, lent out in slabs."""

from __future__ import annotations


class Arena:
    """Which slabs of a block of bytes are lent; the bytes themselves are an executor's.

    Args:
        slabs: How many slabs.
        slab_bytes: Bytes of one slab.
    """

    def __init__(self, slabs: int, slab_bytes: int) -> None:
        self.slabs, self.slab_bytes = slabs, slab_bytes
        # Descending, so that low addresses are lent first and the untouched end costs nothing.
        self._free = list(range((slabs - 1) * slab_bytes, -1, -slab_bytes))
        self._lent: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.slabs * self.slab_bytes

    @property
    def lent(self) -> frozenset[int]:
        """Offsets of the slabs that pools hold."""
        return frozenset(self._lent)

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
        assert len(self._free) == len(set(self._free)), "a slab is free twice"
        assert not self._lent & set(self._free), "a slab is both lent and free"
        assert self._lent | set(self._free) == {i * self.slab_bytes for i in range(self.slabs)}, "a slab is lost"
