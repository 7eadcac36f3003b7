"""``Pool``: pages of one state group, named by virtual handles, held by sequences and by the prefix tree."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.memory.arena import Arena
from headrace.memory.commands import IntArray, PageCommand, PageCopy, PagePoison, PlaceWrite
from headrace.memory.page_form import PageForm

Places = npt.NDArray[np.int64]

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
        watched     no    no    no    yes       whether the prefix tree waits until no sequence holds it

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
        self._page_bytes = form.page_bytes
        self.capacity = room if capacity is None else min(capacity, room)
        self.page_table = np.full(self.capacity, NO_OFFSET, np.int64)
        self.references = np.zeros(self.capacity, np.int32)
        self.cached = np.zeros(self.capacity, np.bool_)
        self.pins = np.zeros(self.capacity, np.int32)
        self.watched = np.zeros(self.capacity, np.bool_)
        self.unheld: list[int] = []  # those that were watched, and that no sequence holds any more
        self.held = 0  # pages that a sequence holds
        self._pinned = 0  # the sum of ``pins``
        self._poison = poison
        # Places are numbered through the arena: slab number * slab_pages + page of the slab.
        self._handle_at = np.full(room, NO_PAGE, np.int32)  # by place
        self._in_use = np.zeros(arena.slabs, np.int32)  # pages in use of each slab
        self._slabs: dict[int, None] = {}  # numbers of the slabs that it has
        self._spare: dict[int, None] = {}  # those with free pages, the last to get one at the end
        self._room = 0  # free pages in slabs
        self._unused = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)  # free handles are the first ones
        self._unused_count = self.capacity
        self._journal: list[PageCommand] = [] if journal is None else journal
        # Handles whose place the executor does not know yet; some may be free again.
        self._moved: list[IntArray] = []
        self._moved_singly: list[int] = []
        # The same memory as the arrays: a number is read and written several times as fast through these.
        self._table, self._counts, self._is_cached = self.page_table.data, self.references.data, self.cached.data
        self._places, self._filled, self._stack = self._handle_at.data, self._in_use.data, self._unused.data

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.capacity - self._unused_count

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
        return frozenset(slab * self.form.slab_bytes for slab in self._slabs)

    @property
    def free(self) -> int:
        """Pages that can be allocated now."""
        return min(self._room + self.arena.free_slabs * self.form.slab_pages, self._unused_count)

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
        self._unused_count -= count
        handles = self._unused[self._unused_count : self._unused_count + count][::-1].copy()
        before = NO_PAGE if after is None else self._place_of(self._table[after])
        self.held += count
        if count == 1:
            handle = self._stack[self._unused_count]
            self._counts[handle] = 1
            self._put_one(handle, self._find_one(before, slabs > 0))
        else:
            self.references[handles] = 1
            self._put_all(handles, before, slabs)
        return handles

    def retain(self, handles: IntArray) -> None:
        """Another sequence holds each of these pages."""
        self.held += int(np.count_nonzero(self.references[handles] == 0))
        self.references[handles] += 1

    def release(self, handles: IntArray) -> None:
        """A sequence holds each of these pages no more."""
        if len(handles) == 1:
            handle = handles.item()
            self._counts[handle] = left = self._counts[handle] - 1
            if not left:
                self.held -= 1
                if self.watched[handle]:
                    self._tell(handles)
                if not self._is_cached[handle]:
                    self._free_one(handle)
            return
        self.references[handles] -= 1
        unheld = handles[self.references[handles] == 0]
        self.held -= len(unheld)
        if len(watched := unheld[self.watched[unheld]]):
            self._tell(watched)
        self._free(unheld[~self.cached[unheld]])

    def is_held(self, handle: int) -> bool:
        """Whether a sequence holds a page."""
        return self._counts[handle] > 0

    def watch(self, handle: int) -> None:
        """Put a page into ``unheld`` when no sequence holds it any more."""
        self.watched[handle] = True

    def _tell(self, handles: IntArray) -> None:
        self.watched[handles] = False
        self.unheld += handles.tolist()

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

    def pinned_slabs(self) -> npt.NDArray[np.int64]:
        """Numbers of the slabs that cannot be emptied by moving pages."""
        offsets = self.page_table[self.pins > 0] if self._pinned else self.page_table[:0]
        return np.unique(offsets // self.form.slab_bytes)

    # -- where bytes lie

    def places(self) -> list[PageCommand]:
        """Where the pages lie that came or moved since the last call."""
        if not self._moved and not self._moved_singly:
            return []
        # One may be there twice, with the same place.
        handles = np.array(self._moved_singly, np.int32)
        if self._moved:
            handles = np.concatenate([*self._moved, handles])
        self._moved, self._moved_singly = [], []
        offsets = self.page_table[handles]
        there = offsets != NO_OFFSET
        if not there.all():
            handles, offsets = handles[there], offsets[there]
        return [PlaceWrite(self.group, handles, offsets)] if len(handles) else []

    def emptiest(self) -> tuple[int, int] | None:
        """The slab that the fewest moves would empty, and how many; None if its pages fit nowhere else."""
        if self._room < self.form.slab_pages:
            return None
        slabs = np.fromiter(self._spare, np.int64, len(self._spare))
        if self._pinned:  # then a full slab may be the best: there is room beside pinned pages
            slabs = np.setdiff1d(np.fromiter(self._slabs, np.int64, len(self._slabs)), self.pinned_slabs())
            if not len(slabs):
                return None
        slab = int(slabs[np.argmin(self._in_use[slabs])])
        return slab * self.form.slab_bytes, int(self._in_use[slab])

    def vacate(self, slab: int) -> None:
        """Move a slab's pages into other slabs with free pages, and give the slab back."""
        number, pages = slab // self.form.slab_bytes, self.form.slab_pages
        handles = self._handle_at[number * pages : (number + 1) * pages]
        handles = handles[handles != NO_PAGE]
        self._close_slab(number)
        for handle in handles.tolist():
            source = self._table[handle]
            self._put_one(handle, self._find_one(NO_PAGE, False))
            self._journal.append(PageCopy(self.group, source, self._table[handle]))

    def copy(self, source: int, target: int) -> None:
        """The bytes of one page go to another one, given by handles."""
        self._journal.append(PageCopy(self.group, self._table[source], self._table[target]))

    def _put_all(self, handles: IntArray, before: int, slabs: int) -> None:
        """Lay pages behind the place ``before``, then into up to ``slabs`` new slabs, then wherever there is room."""
        size = self.form.slab_pages
        if before != NO_PAGE:
            after = self._handle_at[before + 1 : min(before + 1 + len(handles), (before // size + 1) * size)]
            used = np.flatnonzero(after != NO_PAGE)
            count = int(used[0]) if len(used) else len(after)
            self._put(handles[:count], np.arange(before + 1, before + 1 + count))
            handles = handles[count:]
        new = min(slabs, self.arena.free_slabs, -(-len(handles) // size))
        handles = self._put_into([self._open_slab() for _ in range(new)], handles)
        handles = self._put_into(list(itertools.islice(reversed(self._spare), len(handles))), handles)
        assert not len(handles), "pages were allocated beyond what is free"

    def _put_into(self, slabs: list[int], handles: IntArray) -> IntArray:
        """Lay pages into slabs, in order; those that are left when they are full."""
        if not slabs:
            return handles
        size = self.form.slab_pages
        rows, columns = np.nonzero(self._handle_at.reshape(-1, size)[slabs] == NO_PAGE)
        places = (np.array(slabs)[rows] * size + columns)[: len(handles)]
        self._put(handles[: len(places)], places)
        return handles[len(places) :]

    def _put(self, handles: IntArray, places: Places) -> None:
        """These pages lie at these places, which were free."""
        slabs, pages = np.divmod(places, self.form.slab_pages)
        self.page_table[handles] = slabs * self.form.slab_bytes + pages * self._page_bytes
        self._handle_at[places] = handles
        self._room -= len(handles)
        self._moved.append(handles)
        touched, counts = np.unique(slabs, return_counts=True)
        self._in_use[touched] += counts.astype(np.int32)
        for slab in touched[self._in_use[touched] == self.form.slab_pages].tolist():
            del self._spare[slab]

    def _find_one(self, before: int, may_open: bool) -> int:
        """The place behind ``before``, else the first of a new slab if that may be, else any, as long as it is free."""
        size, place = self.form.slab_pages, before + 1
        if before != NO_PAGE and place % size and self._places[place] == NO_PAGE:
            return place
        if may_open and self.arena.free_slabs:
            return self._open_slab() * size
        assert self._spare, "pages were allocated beyond what is free"
        first = next(reversed(self._spare)) * size
        return first + int(self._handle_at[first : first + size].argmin())

    def _put_one(self, handle: int, place: int) -> None:
        slab, page = divmod(place, self.form.slab_pages)
        self._table[handle] = slab * self.form.slab_bytes + page * self._page_bytes
        self._places[place] = handle
        self._room -= 1
        self._moved_singly.append(handle)
        self._filled[slab] = in_use = self._filled[slab] + 1
        if in_use == self.form.slab_pages:
            del self._spare[slab]

    def _open_slab(self) -> int:
        offset = self.arena.take()
        assert offset is not None, "a slab was taken beyond what is free"
        slab = offset // self.form.slab_bytes
        self._slabs[slab] = self._spare[slab] = None
        self._room += self.form.slab_pages
        return slab

    def _close_slab(self, slab: int) -> None:
        """Give a slab back; whatever lies there has been moved or is free."""
        size, in_use = self.form.slab_pages, self._filled[slab]
        self._room -= size - in_use
        if in_use:
            self._filled[slab] = 0
            self._handle_at[slab * size : (slab + 1) * size] = NO_PAGE
        del self._slabs[slab]
        self._spare.pop(slab, None)
        self.arena.give(slab * self.form.slab_bytes)

    def _place_of(self, offset: int) -> int:
        slab, rest = divmod(offset, self.form.slab_bytes)
        return slab * self.form.slab_pages + rest // self._page_bytes

    def _free(self, handles: IntArray) -> None:
        count = len(handles)
        if count <= 1:
            for handle in handles.tolist():
                self._free_one(handle)
            return
        offsets = self.page_table[handles]
        if self._poison:
            self._journal.extend(PagePoison(self.group, offset) for offset in offsets.tolist())
        slabs, rest = np.divmod(offsets, self.form.slab_bytes)
        self._handle_at[slabs * self.form.slab_pages + rest // self._page_bytes] = NO_PAGE
        self.page_table[handles] = NO_OFFSET
        self._unused[self._unused_count : self._unused_count + count] = handles
        self._unused_count += count
        self._room += count
        touched, counts = np.unique(slabs, return_counts=True)
        self._in_use[touched] -= counts.astype(np.int32)
        self._spare.update(dict.fromkeys(touched.tolist()))
        for slab in touched[self._in_use[touched] == 0].tolist():
            self._close_slab(slab)

    def _free_one(self, handle: int) -> None:
        offset = self._table[handle]
        if self._poison:
            self._journal.append(PagePoison(self.group, offset))
        place = self._place_of(offset)
        slab = place // self.form.slab_pages
        self._places[place] = NO_PAGE
        self._table[handle] = NO_OFFSET
        self._stack[self._unused_count] = handle
        self._unused_count += 1
        self._room += 1
        self._filled[slab] = in_use = self._filled[slab] - 1
        self._spare[slab] = None
        if not in_use:
            self._close_slab(slab)

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
        assert (self.references[self.watched] > 0).all(), "the prefix tree waits for a page that nobody holds"
        assert self.held == np.count_nonzero(self.references), "held pages are miscounted"
        assert (used == (self.page_table != NO_OFFSET)).all(), "a page in use has no bytes, or a free one has"
        unused = self._unused[: self._unused_count]
        assert sorted(unused.tolist()) == np.flatnonzero(~used).tolist(), "a handle is lost or free twice"
        places = np.flatnonzero(self._handle_at != NO_PAGE)
        slabs, pages = np.divmod(places, self.form.slab_pages)
        placed = dict(
            zip(
                (slabs * self.form.slab_bytes + pages * self._page_bytes).tolist(),
                self._handle_at[places].tolist(),
                strict=True,
            )
        )
        known = {int(self.page_table[handle]): handle for handle in np.flatnonzero(used).tolist()}
        assert placed == known, "a page is not where the table says"
        in_use = np.bincount(slabs, minlength=len(self._in_use))
        assert (in_use == self._in_use).all(), "a slab's pages are miscounted"
        assert self._room == len(self._slabs) * self.form.slab_pages - len(places), "room is miscounted"
        assert set(np.flatnonzero(in_use).tolist()) == set(self._slabs), "a slab holds nothing and was not given back"
        assert set(self._spare) == {slab for slab in self._slabs if in_use[slab] < self.form.slab_pages}, "lost pages"
        assert self.slabs <= self.arena.lent, "a slab was not lent"
        if count_references is not None:
            wrong = np.flatnonzero(count_references() != self.references)
            assert not len(wrong), f"pages {wrong[:8].tolist()}: references that nobody accounts for"
