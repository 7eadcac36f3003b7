"""``Pool``: pages of one state kind, counted references, named by virtual handles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.memory.arena import Arena
from headrace.memory.page_form import PageForm

IntArray = npt.NDArray[np.int32]

NO_OFFSET = -1
POISON = 0xFF  # a NaN in float32, float16 and bfloat16


class Pool:
    """Pages of one state kind in slabs of an arena.

    A page is named by a *handle*, which stays valid while anybody holds a reference; where its bytes lie is
    ``page_table[handle]`` alone, so that bytes may move without anybody being told::

        handle      0     1     2     3    …
        page_table  96    -1    0     32        byte offset in the arena, -1: not in use
        references  2      0    1     1         running sequences, plus one if the prefix tree holds it

    Args:
        arena: Where slabs come from.
        form: How pages lie in slabs.
        capacity: Most pages; the arena has room for them.
        poison: Overwrite freed pages with NaN, so that a read of one shows.
    """

    def __init__(self, arena: Arena, form: PageForm, capacity: int, *, poison: bool = False) -> None:
        if arena.slab_bytes != form.slab_bytes:
            raise ValueError(f"the arena's slabs have {arena.slab_bytes} bytes, the pages' {form.slab_bytes}")
        self.arena = arena
        self.form = form
        self.capacity = capacity
        self.page_table = np.full(self.capacity, NO_OFFSET, np.int64)
        self.references = np.zeros(self.capacity, np.int32)
        self._poison = poison
        self._handles = list(range(self.capacity - 1, -1, -1))
        self._slabs: dict[int, list[int]] = {}  # slab offset -> free page offsets in it
        self._open: list[int] = []  # slabs of _slabs with a free page, the one to use last

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.capacity - len(self._handles)

    @property
    def free(self) -> int:
        """Pages that can be allocated now."""
        room = sum(len(self._slabs[s]) for s in self._open) + self.arena.free_slabs * self.form.slab_pages
        return min(room, len(self._handles))

    def allocate(self, count: int, after: int | None = None) -> IntArray | None:
        """Hand out pages, one reference each; all of them or None. Their contents are undefined.

        Args:
            count: How many.
            after: The handle of the page that is read before them; they lie behind it where there is room.

        Returns:
            int32 [count] handles, or None when fewer than ``count`` pages are free.
        """
        if count > self.free:
            return None
        handles = np.array([self._handles.pop() for _ in range(count)], np.int32)
        offset = NO_OFFSET if after is None else int(self.page_table[after])
        for handle in handles:
            self.page_table[handle] = offset = self._take_offset(offset)
        self.references[handles] = 1
        return handles

    def retain(self, handles: IntArray) -> None:
        """Add a reference to each page."""
        self.references[handles] += 1

    def release(self, handles: IntArray) -> None:
        """Drop a reference to each page; pages without references are free."""
        self.references[handles] -= 1
        for handle in handles[self.references[handles] == 0].tolist():
            self._give_offset(int(self.page_table[handle]))
            self.page_table[handle] = NO_OFFSET
            self._handles.append(handle)

    def _take_offset(self, before: int) -> int:
        """A free page: the one behind ``before``, else the first of a new slab, else any."""
        slab, offset = self._slab_of(before), before + self.form.page_bytes
        if before == NO_OFFSET or offset not in self._slabs[slab]:
            slab = self._open_slab()
            offset = self._slabs[slab][-1]
        offsets = self._slabs[slab]
        offsets.remove(offset)
        if not offsets:
            self._open.remove(slab)
        return offset

    def _open_slab(self) -> int:
        """A new slab, else one with free pages."""
        slab = self.arena.take()
        if slab is None:
            return self._open[-1]
        step = self.form.page_bytes
        self._slabs[slab] = list(range(slab + self.form.slab_bytes - step, slab - 1, -step))
        self._open.append(slab)
        return slab

    def _slab_of(self, offset: int) -> int:
        return offset - offset % self.form.slab_bytes

    def _give_offset(self, offset: int) -> None:
        if self._poison:
            for pieces in self.form.pieces(self.arena.buffer, offset):
                pieces[:] = POISON
        slab = self._slab_of(offset)
        offsets = self._slabs[slab]
        if not offsets:
            self._open.append(slab)
        offsets.append(offset)
        if len(offsets) == self.form.slab_pages:
            self._open.remove(slab)
            del self._slabs[slab]
            self.arena.give(slab)

    def check(self, count_references: Callable[[], npt.NDArray[np.int64]] | None = None) -> None:
        """Assert the invariants.

        Args:
            count_references: Gives int64 [capacity], the references that holders can account for.
        """
        self.arena.check()
        used = self.references > 0
        assert (self.references >= 0).all(), "a page was released more often than held"
        assert (used == (self.page_table != NO_OFFSET)).all(), "a page in use has no bytes, or a free one has"
        assert sorted(self._handles) == np.flatnonzero(~used).tolist(), "a handle is lost or free twice"
        offsets = self.page_table[used].tolist()
        free = [offset for slab in self._slabs.values() for offset in slab]
        assert len(set(offsets) | set(free)) == len(offsets) + len(free), "two pages share bytes"
        assert len(offsets) + len(free) == len(self._slabs) * self.form.slab_pages, "lost pages"
        assert sorted(self._open) == sorted(s for s, free in self._slabs.items() if free), "open slabs are wrong"
        if count_references is not None:
            counted = count_references()
            wrong = np.flatnonzero(counted != self.references)
            assert not len(wrong), f"pages {wrong[:8].tolist()}: references that nobody accounts for"
