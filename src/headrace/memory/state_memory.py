"""``StateMemory``: arena, pools and prefix tree as the scheduler uses them, for every kind of state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.memory.arena import Arena
from headrace.memory.commands import IntArray, PageCommand
from headrace.memory.page_form import PageForm
from headrace.memory.pool import NO_PAGE, Pool
from headrace.memory.prefix_tree import CachedGroup, PrefixKey, PrefixTree
from headrace.memory.room import Room
from headrace.memory.snapshots import snapshot_spacing

# Of a state's row: the page that a step reads, and the one that it writes.
READ, WRITE = 0, 1


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A state group as memory sees it.

    Attributes:
        by_token: Each token has a share, in pages of ``page_tokens``; else a page holds the state of a whole sequence.
        form: How its pages lie in the arena.
        window: Tokens that a token sees, itself included; 0 if all.
    """

    by_token: bool
    form: PageForm
    window: int = 0


@dataclass(slots=True, eq=False)
class Holding:
    """What a running sequence holds.

    Attributes:
        rows: int32 handles of each group: one a page of tokens, ``NO_PAGE`` where a window has left it behind; ``READ``
            and ``WRITE`` of a state, or none yet.
        reach: Tokens that it can have without growing.
        branch: Tokens up to where it leaves what is cached, although it may have to begin before: the place where a
            state that is kept serves the next one.
    """

    rows: list[IntArray] = field(default_factory=list)
    reach: int = 0
    branch: int = 0

    @property
    def pages(self) -> int:
        """Pages that it holds."""
        return sum(len(np.unique(row[row != NO_PAGE])) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Entries of a holding's row that changed.

    Attributes:
        group: Whose.
        start: Index of the first.
        handles: int32, what they are now.
    """

    group: int
    start: int
    handles: IntArray


class StateMemory:
    """One arena for all state of a replica's sequences. An allocation that finds no room moves pages, or evicts some.

    Args:
        groups: The model's state groups; their forms have one slab size.
        nbytes: Bytes in all, as far as they make whole slabs; at least one slab a group.
        page_tokens: Tokens of a page.
        most_pages: Most pages of each group; None: as many as there is room for.
        prefix_cache: Keep the pages of finished sequences for others with the same prefix.
        poison: Have freed pages overwritten with NaN (for tests).
        clock: Seconds; for the ages of what is cached.
    """

    def __init__(
        self,
        groups: Sequence[MemoryGroup],
        *,
        nbytes: int,
        page_tokens: int,
        most_pages: Sequence[int] | None = None,
        prefix_cache: bool = True,
        poison: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.groups, self.page_tokens, self.prefix_cache = tuple(groups), page_tokens, prefix_cache
        self._slabs = max(len(groups), nbytes // groups[0].form.slab_bytes)
        self._most_pages, self._poison = most_pages, poison
        self.reset()

    def reset(self) -> None:
        """Forget everything that anybody holds, after a failure: no page is in use."""
        self.arena = Arena(self._slabs, self.groups[0].form.slab_bytes)
        self._journal: list[PageCommand] = []
        self.pools = [
            Pool(
                self.arena,
                group.form,
                group=n,
                capacity=None if self._most_pages is None else self._most_pages[n],
                journal=self._journal,
                poison=self._poison,
            )
            for n, group in enumerate(self.groups)
        ]
        cached = []
        for group, pool in zip(self.groups, self.pools, strict=True):
            kind = "state" if not group.by_token else "window" if group.window else "full"
            cached.append(CachedGroup(kind, pool, group.window))  # type: ignore[arg-type]
        self.tree = PrefixTree(cached, self.page_tokens, clock=self._clock)
        self.room = Room(self.arena, self.pools, self.tree)

    @property
    def moves(self) -> int:
        """Pages moved by compaction since the last reset."""
        return self.room.moves

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state of the whole sequence, which is only there where a chunk ends."""
        return not all(group.by_token for group in self.groups)

    @property
    def has_windows(self) -> bool:
        """Whether some layers see the last tokens alone, so that what is to be shared must be offered early."""
        return any(group.window for group in self.groups)

    def snapshot_spacing(self, step_seconds: float, token_seconds: float, branch_tokens: float) -> int:
        """See ``snapshots.snapshot_spacing``."""
        size = self.page_tokens
        return snapshot_spacing(
            page_tokens=size,
            state_bytes=sum(group.form.page_bytes for group in self.groups if not group.by_token),
            token_bytes=sum(group.form.page_bytes for group in self.groups if group.by_token) / size,
            step_seconds=step_seconds,
            token_seconds=token_seconds,
            branch_tokens=branch_tokens,
        )

    def usage(self) -> tuple[int, int, int]:
        """Pages that sequences hold, that only the prefix tree holds, and that are free (of the first group)."""
        held, cached = (sum(x) for x in zip(*((p.held, p.evictable) for p in self.pools), strict=True))
        return held, cached, self.pools[0].free

    # -- what fits

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def fits(self, held: Holding, tokens: int, *, step_tokens: int, spare: int = 0) -> bool:
        """Whether a sequence can grow to ``tokens`` tokens, evicting and moving pages if need be.

        Args:
            held: What it holds.
            tokens: Its length then.
            step_tokens: Most tokens that it grows by in a step: a window holds that many more.
            spare: Pages of each group that shall be left for others.
        """
        slabs = 0
        for n, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            most = tokens if not group.window else min(tokens, group.window + step_tokens + self.page_tokens)
            wanted = self.pages_for(most) if group.by_token else 2
            own = len(np.unique(held.rows[n][held.rows[n] != NO_PAGE])) if held.rows else 0
            count = pool.held + max(0, wanted - own) + (spare if group.by_token else 0)
            if count > pool.capacity:
                return False
            slabs += max(-(-count // pool.form.slab_pages), len(pool.pinned_slabs()))
        return slabs <= self.arena.slabs

    def holds(self, held: Holding, tokens: int) -> bool:
        """Whether there is a page for each of so many tokens."""
        pairs = zip(self.groups, held.rows, strict=False)
        return not tokens or all(not group.by_token or len(row) * self.page_tokens >= tokens for group, row in pairs)

    def longest(self, limit: int, step_tokens: int) -> int:
        """Tokens of the longest sequence that fits beside what is held, up to ``limit``."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.fits(Holding(), middle, step_tokens=step_tokens)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    # -- a sequence's life

    def match(self, key: PrefixKey, tokens: IntArray) -> tuple[Holding, int]:
        """Take the longest cached prefix that leaves at least one token to compute; how many tokens it has."""
        return self._take(key, tokens[:-1], use=True)

    def peek(self, key: PrefixKey, tokens: IntArray) -> tuple[Holding, int]:
        """Take the longest cached prefix, which may be all of it, without a use of it; how many tokens it has."""
        return self._take(key, tokens, use=False)

    def _take(self, key: PrefixKey, tokens: IntArray, *, use: bool) -> tuple[Holding, int]:
        if not self.prefix_cache:
            return self._empty(), 0
        found = self.tree.match(key, tokens, use=use)
        rows = [row if group.by_token else row.repeat(2) for group, row in zip(self.groups, found.rows, strict=True)]
        return Holding(rows, branch=found.branch * self.page_tokens), found.pages * self.page_tokens

    def cached(self, key: PrefixKey, tokens: IntArray) -> int:
        """How many tokens ``match`` would find; asking is no use of them."""
        return self.tree.cached(key, tokens[:-1]) if self.prefix_cache else 0

    def grow(self, held: Holding, tokens: int) -> list[RowWrite] | None:
        """Give a sequence what it needs to reach ``tokens`` tokens; all of it or None."""
        if not held.rows:
            held.rows = self._empty().rows
        counts = [
            max(0, self.pages_for(tokens) - len(row)) if group.by_token else int(not len(row) or self._shared(n, row))
            for n, (group, row) in enumerate(zip(self.groups, held.rows, strict=True))
        ]
        if not self.room.make(counts):
            return None
        writes = []
        spread = self.room.to_spread(counts)
        for n, (group, pool, count) in enumerate(zip(self.groups, self.pools, counts, strict=True)):
            if not count:
                continue
            row = held.rows[n]
            after = int(row[-1]) if group.by_token and len(row) and row[-1] != NO_PAGE else None
            wanted, before = pool.slabs_for(count), self.arena.free_slabs
            new = pool.allocate(count, after, spread if self.room.may_spread(pool) else 0)
            spread -= before - self.arena.free_slabs - wanted
            if group.by_token:
                held.rows[n] = np.concatenate([row, new])
                writes.append(RowWrite(n, len(row), new))
            else:
                held.rows[n] = np.array([row[READ] if len(row) else new[0], new[0]], np.int32)
                writes.append(RowWrite(n, 0, held.rows[n]))
        rows = [row for group, row in zip(self.groups, held.rows, strict=True) if group.by_token]
        held.reach = min((len(row) * self.page_tokens for row in rows), default=sys.maxsize)
        return writes

    def fork(self, source: Holding, held: Holding, tokens: int) -> bool:
        """Let a sequence begin behind tokens that another one has computed, whose last page is not full.

        Both will write into that page, so this one gets a copy.

        Args:
            source: What the other one holds.
            held: What this one holds: the whole pages before.
            tokens: How many are the same in both.

        Returns:
            Whether it was possible: not for states, which cannot be taken back to an earlier token.
        """
        page = tokens // self.page_tokens
        rows = zip(source.rows, held.rows, strict=False)
        there = all(len(row) > page and row[page] != NO_PAGE and len(own) == page for row, own in rows)
        if self.has_states or not there or not source.rows or tokens % self.page_tokens == 0:
            return False
        if not self.room.make([1] * len(self.groups)):
            return False
        for n, pool in enumerate(self.pools):
            own = held.rows[n]
            new = pool.allocate(1, int(own[-1]) if page and own[-1] != NO_PAGE else None)
            pool.copy(int(source.rows[n][page]), int(new[0]))
            held.rows[n] = np.concatenate([own, new])
        held.reach = (page + 1) * self.page_tokens
        return True

    def settle(self, held: Holding) -> list[RowWrite]:
        """What a step wrote is the sequence's state from now on; the page that the step read is given back."""
        writes = []
        for n, (group, pool, row) in enumerate(zip(self.groups, self.pools, held.rows, strict=True)):
            if not group.by_token and row[READ] != row[WRITE]:
                pool.release(row[READ : READ + 1])
                held.rows[n] = row[[WRITE, WRITE]]
                writes.append(RowWrite(n, 0, held.rows[n]))
        return writes

    def trim(self, held: Holding, computed: int) -> None:
        """Give back what windows have left behind, now that ``computed`` tokens are computed."""
        for n, (group, pool, row) in enumerate(zip(self.groups, self.pools, held.rows, strict=True)):
            behind = row[: max(0, computed - group.window + 1) // self.page_tokens if group.window else 0]
            gone = behind[behind != NO_PAGE]
            if len(gone):
                pool.release(gone)
                # Into a row of its own: a batch that has yet to run may carry this one.
                held.rows[n] = np.concatenate([np.full_like(behind, NO_PAGE), row[len(behind) :]])

    def share(self, key: PrefixKey, tokens: IntArray, held: Holding, *, keep_state: bool = True) -> list[RowWrite]:
        """Offer the computed prefix of a sequence to others; what of its rows became equal pages of theirs.

        Between ``settle`` and ``trim``: states are those after the prefix, windows still hold what they leave behind.

        Args:
            key: Root of the tree.
            tokens: int32 [computed tokens].
            held: What the sequence holds.
            keep_state: Whether the states after the prefix are to be found again.
        """
        full = len(tokens) // self.page_tokens
        if not self.prefix_cache or not full:
            return []
        exact = keep_state and len(tokens) == full * self.page_tokens
        offered = [
            row[:full] if group.by_token else row[READ : READ + exact]
            for group, row in zip(self.groups, held.rows, strict=True)
        ]
        got = self.tree.insert(key, tokens[: full * self.page_tokens], offered)
        writes = []
        for n, group in enumerate(self.groups):
            if group.by_token and not np.array_equal(got[n], offered[n]):
                held.rows[n] = np.concatenate([got[n], held.rows[n][full:]])
                writes.append(RowWrite(n, 0, held.rows[n]))
            elif not group.by_token and self._shared(n, held.rows[n]):
                held.reach = 0  # the next token needs a state of its own
        return writes

    def forget(self, key: PrefixKey, tokens: IntArray) -> list[IntArray]:
        """Let nobody find what is cached of a sequence that is not to be trusted; the pages of each group that were."""
        return self.tree.forget(key, tokens)

    @staticmethod
    def has_any(held: Holding, pages: Sequence[IntArray]) -> bool:
        """Whether a sequence holds any of these pages of each group."""
        return any(bool(np.isin(row, own).any()) for row, own in zip(held.rows, pages, strict=False))

    def release(self, held: Holding) -> None:
        """Drop all that a sequence holds."""
        for pool, row in zip(self.pools, held.rows, strict=False):
            pool.release(np.unique(row[row != NO_PAGE]))
        held.rows, held.reach = [], 0

    def _empty(self) -> Holding:
        return Holding([np.empty(0, np.int32) for _ in self.groups])

    def _shared(self, group: int, row: IntArray) -> bool:
        """Whether the state that a sequence would write into is kept by the tree too: it must not be changed."""
        return bool(row[READ] == row[WRITE] and self.pools[group].cached[row[WRITE]])

    # -- the executor's part, and ours

    @property
    def unsent(self) -> bool:
        """Whether bytes are to be moved or overwritten by commands that no batch has taken yet."""
        return bool(self._journal)

    def commands(self) -> tuple[PageCommand, ...]:
        """What the executor must be told before the next step."""
        found = [*self._journal, *(write for pool in self.pools for write in pool.places())]
        self._journal.clear()
        return tuple(found)

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert the invariants, given what all sequences hold."""
        rows = [held.rows for held in holdings if held.rows]
        self.arena.check()
        for n, pool in enumerate(self.pools):

            def count(n: int = n, pool: Pool = pool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
                mine = [np.unique(row[n][row[n] != NO_PAGE]) for row in rows]
                return np.bincount(np.concatenate([np.empty(0, np.int32), *mine]), minlength=pool.capacity)

            pool.check(count)
        assert self.arena.lent == {slab for pool in self.pools for slab in pool.slabs}, "a slab belongs to nobody"
        self.tree.check()
