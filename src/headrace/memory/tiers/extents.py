"""Pieces of one block of bytes, lent at any size."""

from __future__ import annotations

import bisect

ALIGNMENT = 4096


class Extents:
    """First fit. Neighbouring free pieces are joined, so that what is freed in the order of lending leaves no holes.

    Args:
        nbytes: Bytes of the block.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes // ALIGNMENT * ALIGNMENT
        self._free: list[tuple[int, int]] = [(0, self.nbytes)] if self.nbytes else []  # begin and end, by begin
        self._lent: dict[int, int] = {}  # begin to end

    @property
    def used(self) -> int:
        """Bytes lent."""
        return sum(end - begin for begin, end in self._lent.items())

    @property
    def lent(self) -> frozenset[int]:
        """Where lent pieces begin."""
        return frozenset(self._lent)

    def take(self, nbytes: int) -> int | None:
        """Lend a piece: where it begins, or None when no free piece is large enough."""
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for place, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[place : place + 1] = [(begin + size, end)] if end - begin > size else []
                self._lent[begin] = begin + size
                return begin
        return None

    def give(self, begin: int) -> None:
        """Take back a piece."""
        end = self._lent.pop(begin)
        place = bisect.bisect(self._free, (begin, end))
        before = self._free[place - 1] if place else None
        behind = self._free[place] if place < len(self._free) else None
        low, high = place, place
        if before is not None and before[1] == begin:
            begin, low = before[0], place - 1
        if behind is not None and behind[0] == end:
            end, high = behind[1], place + 1
        self._free[low:high] = [(begin, end)]

    def check(self) -> None:
        """Assert the invariants: free and lent pieces cover the block once, and no two free ones touch."""
        pieces = sorted([*self._free, *self._lent.items()])
        assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces[:-1])][: len(pieces)], "a piece is lost"
        assert not self.nbytes or pieces[-1][1] == self.nbytes, "the end is lost"
        assert all(a[1] < b[0] for a, b in zip(self._free, self._free[1:], strict=False)), "free pieces are in two"
