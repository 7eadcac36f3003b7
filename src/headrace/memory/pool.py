"""``Pool``: pages of one state group, named by virtual handles, held by sequences and by the prefix tree."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.memory.arena import Arena
from headrace.memory.commands import IntArray, PageCommand, PageCopy, PagePoison, PlaceWrite
from headrace.memory.page_form import PageForm

NO_OFFSET = -1
NO_PAGE = -1


class Pool:
    """Pages of one kind in slabs of an arena.

    A page is named by a *handle*, which stays valid while anybody holds it; where its bytes lie is
    ``page_table[handle]`` alone, so that bytes may move without anybody being told::

        handle      0     1     2     3    …
        page_table  96    -1    0     32        byte offset in the arena, -1: not in use
        references  2     0     0     1         sequences that hold it
        cached      yes   no    yes   no        whether the prefix tree holds it
        pins        0     0     0     1         transfers that read or write it where it lies: it does not move

    Args:
        arena: Where slabs come from.
        form: How pages lie in slabs.
        group: Number of the state group.
        capacity: Most pages; None: as many as the arena has room for.
        journal: Where to write what the executor must do, in order; shared by the pools of an arena, because a slab
            that one gives back may be the next one's.
        poison: Have freed pages overwritten with NaN.
    """

    def __init__(
        self,
        arena: Arena,
        form: PageForm,
        *,
        group: int = 0,
        capacity: int | None = None,
        journal: list[PageCommand] | None = None,
        poison: bool = False,
    ) -> None:
        if arena.slab_bytes != form.slab_bytes:
            raise ValueError(f"the arena's slabs have {arena.slab_bytes} bytes, the pages' {form.slab_bytes}")
        room = arena.slabs * form.slab_pages
        self.arena, self.form, self.group = arena, form, group
        self.capacity = room if capacity is None else min(capacity, room)
        self.page_table = np.full(self.capacity, NO_OFFSET, np.int64)
        self.references = np.zeros(self.capacity, np.int32)
        self.cached = np.zeros(self.capacity, np.bool_)
        self.pins = np.zeros(self.capacity, np.int32)
        self.held = 0  # pages that a sequence holds
        self._pinned = 0  # the sum of ``pins``
        self._poison = poison
        self._handles = list(range(self.capacity - 1, -1, -1))
        self._slabs: dict[int, dict[int, int]] = {}  # slab -> handle of each page in use there, by its offset
        self._spare: dict[int, list[int]] = {}  # slab -> offsets of its free pages; only slabs that have some
        self._room = 0  # free pages in slabs
        self._journal: list[PageCommand] = [] if journal is None else journal
        self._moved: dict[int, None] = {}  # handles whose place the executor does not know yet

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.capacity - len(self._handles)

    @property
    def evictable(self) -> int:
        """Pages that the prefix tree alone holds."""
        return self.used - self.held

    @property
    def room(self) -> int:
        """Free pages in the slabs that it has."""
        return self._room

    @property
    def slabs(self) -> frozenset[int]:
        """Offsets of the slabs that it has."""
        return frozenset(self._slabs)

    @property
    def free(self) -> int:
        """Pages that can be allocated now."""
        return min(self._room + self.arena.free_slabs * self.form.slab_pages, len(self._handles))

    def slabs_for(self, count: int) -> int:
        """Slabs that ``count`` more pages take from the arena."""
        return max(0, -(-(count - self._room) // self.form.slab_pages))

    # -- who holds what

    def allocate(self, count: int, after: int | None = None, spread: int = 0) -> IntArray:
        """Hand out pages to a sequence. Their contents are undefined.

        Args:
            count: How many; there must be that many free.
            after: The handle of the page that is read before them; they lie behind it where there is room.
            spread: Slabs that it may take beyond need, so that pages of other sequences do not come between.

        Returns:
            int32 [count] handles.
        """
        slabs = self.slabs_for(count) + spread
        handles = np.array([self._handles.pop() for _ in range(count)], np.int32)
        offset = NO_OFFSET if after is None else int(self.page_table[after])
        for handle in handles.tolist():
            before, offset = self.arena.free_slabs, self._take_offset(offset, slabs > 0)
            slabs -= before - self.arena.free_slabs
            self._place(handle, offset)
        self.references[handles] = 1
        self.held += count
        return handles

    def retain(self, handles: IntArray) -> None:
        """Another sequence holds each of these pages."""
        self.held += int(np.count_nonzero(self.references[handles] == 0))
        self.references[handles] += 1

    def release(self, handles: IntArray) -> None:
        """A sequence holds each of these pages no more."""
        self.references[handles] -= 1
        unheld = handles[self.references[handles] == 0]
        self.held -= len(unheld)
        self._free(unheld[~self.cached[unheld]])

    def cache(self, handles: IntArray) -> None:
        """The prefix tree holds each of these pages."""
        self.cached[handles] = True

    def uncache(self, handles: IntArray) -> None:
        """The prefix tree holds each of these pages no more."""
        self.cached[handles] = False
        self._free(handles[self.references[handles] == 0])

    def pin(self, handles: IntArray) -> None:
        """Each of these pages, which are held, stays where it is until ``unpin``."""
        self.pins[handles] += 1
        self._pinned += len(handles)

    def unpin(self, handles: IntArray) -> None:
        """A transfer is done with each of these pages."""
        self.pins[handles] -= 1
        self._pinned -= len(handles)

    def pinned_slabs(self) -> frozenset[int]:
        """Offsets of the slabs that cannot be emptied by moving pages."""
        return frozenset(map(self._slab_of, self.page_table[self.pins > 0].tolist())) if self._pinned else frozenset()

    # -- where bytes lie

    def places(self) -> list[PageCommand]:
        """Where the pages lie that came or moved since the last call."""
        if not self._moved:
            return []
        handles = np.fromiter(self._moved, np.int32, len(self._moved))
        self._moved = {}
        return [PlaceWrite(self.group, handles, self.page_table[handles])]

    def emptiest(self) -> tuple[int, int] | None:
        """The slab that the fewest moves would empty, and how many; None if its pages fit nowhere else."""
        if self._room < self.form.slab_pages:
            return None
        if self._pinned:
            pinned = self.pinned_slabs()
            loose = [slab for slab in self._slabs if slab not in pinned]
            slab = min(loose, key=lambda slab: len(self._slabs[slab]), default=NO_OFFSET)
            return None if slab == NO_OFFSET else (slab, len(self._slabs[slab]))
        free = list(map(len, self._spare.values()))
        most = max(free)
        slab = next(itertools.islice(self._spare, free.index(most), None))
        return slab, self.form.slab_pages - most

    def vacate(self, slab: int) -> None:
        """Move a slab's pages into other slabs with free pages, and give the slab back."""
        self._room -= len(self._spare.pop(slab, ()))
        for offset, handle in self._slabs[slab].items():
            target = self._take_any()
            self._journal.append(PageCopy(self.group, offset, target))
            self._place(handle, target)
        del self._slabs[slab]
        self.arena.give(slab)

    def copy(self, source: int, target: int) -> None:
        """The bytes of one page go to another one, given by handles."""
        self._journal.append(PageCopy(self.group, int(self.page_table[source]), int(self.page_table[target])))

    def _place(self, handle: int, offset: int) -> None:
        self.page_table[handle] = offset
        self._slabs[self._slab_of(offset)][offset] = handle
        self._moved[handle] = None

    def _take_offset(self, before: int, may_open: bool) -> int:
        """A free page: the one behind ``before``, else the first of a new slab if that may be, else any."""
        slab, offset = self._slab_of(before), before + self.form.page_bytes
        if before != NO_OFFSET and offset in self._spare.get(slab, ()):
            return self._take(slab, offset)
        if may_open and self._open_slab():
            slab = next(reversed(self._spare))
            return self._take(slab, self._spare[slab][-1])
        return self._take_any()

    def _take_any(self) -> int:
        slab = next(reversed(self._spare))
        offsets = self._spare[slab]
        offset = offsets.pop()
        if not offsets:
            del self._spare[slab]
        self._room -= 1
        return offset

    def _take(self, slab: int, offset: int) -> int:
        offsets = self._spare[slab]
        offsets.remove(offset)
        if not offsets:
            del self._spare[slab]
        self._room -= 1
        return offset

    def _open_slab(self) -> bool:
        slab = self.arena.take()
        if slab is None:
            return False
        step, pages = self.form.page_bytes, self.form.slab_pages
        self._slabs[slab] = {}
        self._spare[slab] = list(range(slab + (pages - 1) * step, slab - 1, -step))
        self._room += pages
        return True

    def _slab_of(self, offset: int) -> int:
        return offset - offset % self.form.slab_bytes

    def _free(self, handles: IntArray) -> None:
        for handle in handles.tolist():
            offset = int(self.page_table[handle])
            slab = self._slab_of(offset)
            if self._poison:
                self._journal.append(PagePoison(self.group, offset))
            self.page_table[handle] = NO_OFFSET
            self._moved.pop(handle, None)
            self._handles.append(handle)
            del self._slabs[slab][offset]
            self._spare.setdefault(slab, []).append(offset)
            self._room += 1
            if not self._slabs[slab]:
                self._room -= len(self._spare.pop(slab))
                del self._slabs[slab]
                self.arena.give(slab)

    def check(self, count_references: Callable[[], npt.NDArray[np.int64]] | None = None) -> None:
        """Assert the invariants.

        Args:
            count_references: Gives int64 [capacity], the references that sequences can account for.
        """
        used = (self.references > 0) | self.cached
        assert (self.references >= 0).all(), "a page was released more often than held"
        assert self._pinned == self.pins.sum(), "pins are miscounted"
        assert (self.pins >= 0).all(), "a page was unpinned more often than pinned"
        assert (self.references[self.pins > 0] > 0).all(), "a page is pinned that nobody holds"
        assert self.held == np.count_nonzero(self.references), "held pages are miscounted"
        assert (used == (self.page_table != NO_OFFSET)).all(), "a page in use has no bytes, or a free one has"
        assert sorted(self._handles) == np.flatnonzero(~used).tolist(), "a handle is lost or free twice"
        placed = {offset: handle for pages in self._slabs.values() for offset, handle in pages.items()}
        known = {int(self.page_table[handle]): handle for handle in np.flatnonzero(used).tolist()}
        assert placed == known, "a page is not where the table says"
        spare = [offset for offsets in self._spare.values() for offset in offsets]
        assert len(spare) == self._room, "room is miscounted"
        assert len(set(spare) | set(placed)) == len(spare) + len(placed), "two pages share bytes"
        assert len(spare) + len(placed) == len(self._slabs) * self.form.slab_pages, "lost pages"
        assert all(self._slabs.values()), "a slab holds nothing and was not given back"
        assert set(self._slabs) <= self.arena.lent, "a slab was not lent"
        if count_references is not None:
            wrong = np.flatnonzero(count_references() != self.references)
            assert not len(wrong), f"pages {wrong[:8].tolist()}: references that nobody accounts for"
