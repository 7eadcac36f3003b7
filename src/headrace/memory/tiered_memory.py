"""``TieredMemory``: a ``StateMemory`` whose prefixes are kept in host memory and on disk, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from headrace.memory.behind import Fetch, Tiers
from headrace.memory.commands import IntArray
from headrace.memory.pool import NO_PAGE
from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.state_memory import WRITE, Holding, MemoryGroup, StateMemory
from headrace.memory.tiers.rates import patience, worth_loading
from headrace.memory.tiers.records import Transfer
from headrace.memory.tiers.store import Found, TierGroup, TierStore, Wanted

LOADING_SHARE, STORING_SHARE = 0.5, 0.125  # of the arena, at most, may wait for loads, and for stores
MOST_UNFINISHED = 64  # prefixes that are stored bit by bit, because they have more than that


@dataclass(slots=True, eq=False)
class _Pinned:
    """What a transfer holds.

    Attributes:
        held: Pages that must not be freed: its own, and before them those of the prefix.
        handles: int32 of each group, pages that must not move.
        nbytes: Of the latter.
        fetch: Whom it is for.
    """

    held: Holding
    handles: list[IntArray]
    nbytes: int
    fetch: Fetch | None


class TieredMemory(Tiers):
    """Stores prefixes of the arena elsewhere, and loads them again where that is faster than computing them.

    Nothing here waits. Calls come from the engine's thread::

        fetch(...)         for a sequence that waits, which then waits for the fetch
        planned(step)      as soon as a batch has taken ``memory.commands()``, before anything counts as done in it
        after_share(...)   behind each ``memory.share``, before ``trim`` and ``release``
        collected(step)    when a batch was collected and what failed in it is forgotten; now and then while none runs
        forget(...)        behind ``memory.forget``
        reset()            before ``memory.reset``

    Args:
        memory: The arena, its pools and the prefix tree.
        store: The tiers.
        ended: Is set when a transfer has ended; what the store wakes.
        clock: Seconds.
    """

    present = True

    def __init__(
        self,
        memory: StateMemory,
        store: TierStore,
        ended: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(memory)
        self.store = store
        self._ended, self._clock = ended or threading.Event(), clock
        self._planned = 0
        self._pinned: dict[Transfer, _Pinned] = {}
        self._coming: dict[bytes, Fetch] = {}  # digests of pages that are being loaded
        # Last digest -> a prefix that is stored in part, and how many of its pages were missing.
        self._unfinished: dict[bytes, tuple[PrefixKey, IntArray, int]] = {}

    # -- loading

    def fetch(self, key: PrefixKey, tokens: IntArray, recompute_seconds: Callable[[int, int], float]) -> Fetch | None:
        """Start loading what a sequence's prefix has in the tiers beyond what the arena has.

        Args:
            key: Root of the prefix tree.
            tokens: int32, the sequence's; at least one is left to compute.
            recompute_seconds: Estimates what it takes to compute from one number of tokens to another.

        Returns:
            What to wait for; None if there is nothing, no room, or computing is faster.
        """
        digests = self.store.chain(key, tokens[:-1]) if self.memory.prefix_cache else []
        if not digests:
            return None
        held, computed = self.memory.match(key, tokens)
        start = computed // self.memory.page_tokens
        if start < len(digests) and digests[start] in self._coming:
            self.memory.release(held)
            return self._coming[digests[start]]
        found = self.store.lookup(digests, start)
        fetch = None
        if found is not None:
            end = found.pages * self.memory.page_tokens
            fetch = Fetch(key, tokens[:end], digests[start : found.pages], 0.0)
            if not self._worth(fetch, found, recompute_seconds(computed, end)) or not self._load(fetch, found, held):
                fetch = None
        if fetch is None:
            self.memory.release(held)
        return fetch

    def _worth(self, fetch: Fetch, found: Found, recompute_seconds: float) -> bool:
        seconds = self.store.load_seconds(found)
        fetch.deadline = self._clock() + patience(seconds, recompute_seconds)
        if worth_loading(seconds, recompute_seconds):
            return True
        self.store.transfers.refresh()  # what was measured may be long ago
        return False

    def _load(self, fetch: Fetch, found: Found, held: Holding) -> bool:
        """Take pages for what was found, and start; False if there is no room for it."""
        end = len(fetch.tokens)
        if self._pinned_bytes("load") + found.nbytes > LOADING_SHARE * self.memory.arena.nbytes:
            return False
        for n, group in enumerate(self.store.groups):
            if group.kind == "window":
                skipped = group.first_page(end, self.memory.page_tokens) - len(held.rows[n])
                held.rows[n] = np.concatenate([held.rows[n], np.full(max(0, skipped), NO_PAGE, np.int32)])
        if not self.memory.fits(held, end, step_tokens=0) or self.memory.grow(held, end) is None:
            return False
        handles = {wanted: self._handle(held, wanted) for wanted in found.sources}
        transfer = self.store.load(found, self._offsets(handles), self._after)
        if transfer is None:
            return False
        self._pin(transfer, handles, held, fetch)
        self._coming.update(dict.fromkeys(fetch.digests, fetch))
        return True

    def _loaded(self, fetch: Fetch, held: Holding) -> None:
        """Offer a prefix that came to the tree."""
        self.loaded_tokens += len(fetch.digests) * self.memory.page_tokens
        self.memory.settle(held)
        self.memory.share(fetch.key, fetch.tokens, held)

    # -- storing

    def after_share(self, key: PrefixKey, tokens: IntArray, held: Holding) -> None:
        """Store what no tier has of a prefix that was offered to the tree; the arguments are those of ``share``."""
        self._store(key, tokens, held)

    def _store(self, key: PrefixKey, tokens: IntArray, held: Holding, left_before: int | None = None) -> None:
        """As above; of what is stored bit by bit so many pages were missing the last time."""
        size = self.memory.page_tokens
        full, exact = len(tokens) // size, len(tokens) % size == 0
        if not self.memory.prefix_cache or not full:
            return
        digests = self.store.chain(key, tokens[: full * size])
        wanted = []
        for n, group in enumerate(self.store.groups):
            if group.kind == "state":
                wanted += [Wanted(n, full - 1)] * exact
            else:
                wanted += [Wanted(n, page) for page in range(group.first_page(full * size, size), full)]
        missing = {x: self._handle(held, x) for x in self.store.missing(digests, wanted)}
        handles, all_of_it = self._within_share({x: h for x, h in missing.items() if self._is_final(x, h)})
        if not all_of_it and (left_before is None or len(missing) < left_before):
            self._note_unfinished(key, tokens[: full * size], digests, len(missing))
        if not handles:
            return
        for transfer, members in self.store.store(digests, self._offsets(handles), self._after):
            mine = {x: handles[x] for x in members}
            self._pin(transfer, mine, self._hold(mine, held, full))

    def _within_share(self, handles: dict[Wanted, int]) -> tuple[dict[Wanted, int], bool]:
        """As many of these pages, from the front, as may wait for stores now; whether it is all of them."""
        room = STORING_SHARE * self.memory.arena.nbytes - self._pinned_bytes("store")
        chosen: dict[Wanted, int] = {}
        for x in sorted(handles, key=lambda x: x.page):
            room -= self.store.groups[x.group].page_bytes
            if room < 0:
                return chosen, False
            chosen[x] = handles[x]
        return chosen, True

    def _note_unfinished(self, key: PrefixKey, tokens: IntArray, digests: list[bytes], left: int) -> None:
        for digest in digests[:-1]:  # of which this one is longer
            self._unfinished.pop(digest, None)
        self._unfinished[digests[-1]] = key, tokens.copy(), left
        if len(self._unfinished) > MOST_UNFINISHED:
            del self._unfinished[next(iter(self._unfinished))]

    def _go_on(self) -> None:
        """Store more of a prefix that was too long to be stored at once."""
        while self._unfinished and not self._pinned_bytes("store"):
            key, tokens, left = self._unfinished.pop(next(iter(self._unfinished)))
            held, computed = self.memory.peek(key, tokens)
            self._store(key, tokens[:computed], held, left)
            self.memory.release(held)

    def _is_final(self, wanted: Wanted, handle: int) -> bool:
        """Whether a page is there and will not be written again: a state only if the tree has this very page."""
        if self.store.groups[wanted.group].kind == "state":
            return bool(self.memory.pools[wanted.group].cached[handle])
        return handle != NO_PAGE

    def _hold(self, handles: dict[Wanted, int], held: Holding, full: int) -> Holding:
        """Hold pages for a transfer; whoever holds a page of all tokens holds those before it, too."""
        rows = []
        for n, (group, pool) in enumerate(zip(self.store.groups, self.memory.pools, strict=True)):
            own = np.array([handle for x, handle in handles.items() if x.group == n], np.int32)
            row = held.rows[n][:full].copy() if group.kind == "full" else own
            pool.retain(row)
            rows.append(row)
        return Holding(rows)

    # -- around a step

    def planned(self, step: int) -> None:
        """A batch has taken the memory's commands.

        Args:
            step: Its number.
        """
        self._planned = step

    def collected(self, step: int) -> list[Fetch]:
        """Start what may start, and end what has ended.

        Args:
            step: Number of the last batch that was collected.

        Returns:
            Fetches that are over, well or not.
        """
        self.store.transfers.launch(step)
        ended = [transfer for transfer in self.store.finished() if transfer in self._pinned]
        over = [fetch for transfer in ended if (fetch := self._end(transfer)) is not None]
        now = self._clock()
        late = [t for t, pinned in self._pinned.items() if pinned.fetch is not None and now > pinned.fetch.deadline]
        over += self._give_up(late)
        self._go_on()
        return over

    def forget(self, key: PrefixKey, tokens: IntArray, pages: Sequence[IntArray]) -> list[Fetch]:
        """Let nobody find what is stored of a sequence that is not to be trusted.

        Args:
            key: Root of the prefix tree.
            tokens: int32, the sequence's.
            pages: What ``StateMemory.forget`` gave.

        Returns:
            Fetches that failed of it.
        """
        digests = self.store.chain(key, tokens)
        gone = [t for t, own in self._pinned.items() if t.concerns(digests) or self.memory.has_any(own.held, pages)]
        over = self._give_up(gone)
        self.store.forget(digests)
        return over

    def reset(self) -> list[Fetch]:
        """Give up all transfers, before ``StateMemory.reset``; fetches that failed of it."""
        self._unfinished.clear()
        return self._give_up(list(self._pinned))

    def _give_up(self, transfers: list[Transfer]) -> list[Fetch]:
        for transfer in transfers:
            self.store.transfers.give_up(transfer)
            transfer.ok = False
        return [fetch for transfer in transfers if (fetch := self._end(transfer)) is not None]

    @property
    def needs_batch(self) -> bool:
        """Whether a transfer waits for commands that no batch has taken: if there is no other, an empty one should."""
        return any(transfer.after > self._planned for transfer in self._pinned)

    @property
    def waiting(self) -> int:
        """Transfers that have not ended."""
        return len(self._pinned)

    def holdings(self) -> Iterator[Holding]:
        """What transfers hold, for ``StateMemory.check``."""
        return (pinned.held for pinned in self._pinned.values())

    def wait(self, seconds: float) -> None:
        """Wait until a transfer has ended, or so long."""
        self._ended.wait(seconds)
        self._ended.clear()

    def describe(self) -> dict[str, dict[str, int]]:
        """How full each tier is, what it has lost and how often it has failed."""
        tiers = {"host": self.store.transfers.host, "disk": self.store.transfers.disk}
        return {name: asdict(tier.usage()) for name, tier in tiers.items() if tier is not None}

    def close(self, seconds: float) -> bool:
        """End all transfers and write to the disk what it does not have, in so many seconds; whether all was done."""
        done = self.store.transfers.close(seconds)
        self.collected(self._planned)
        return done

    def _end(self, transfer: Transfer) -> Fetch | None:
        pinned = self._pinned.pop(transfer)
        for pool, handles in zip(self.memory.pools, pinned.handles, strict=True):
            pool.unpin(handles)
        fetch = pinned.fetch
        if fetch is not None and transfer.ok:
            self._loaded(fetch, pinned.held)
        self.memory.release(pinned.held)
        if fetch is not None:
            fetch.state = "done" if transfer.ok else "failed"
            self._coming = {digest: other for digest, other in self._coming.items() if other is not fetch}
        return fetch

    # -- pages

    @property
    def _after(self) -> int:
        """The batch behind which bytes are where and what the pools say: one to come if commands wait for it."""
        return self._planned + self.memory.unsent

    def _handle(self, held: Holding, wanted: Wanted) -> int:
        state = self.store.groups[wanted.group].kind == "state"
        return int(held.rows[wanted.group][WRITE if state else wanted.page])

    def _offsets(self, handles: dict[Wanted, int]) -> dict[Wanted, int]:
        return {x: int(self.memory.pools[x.group].page_table[handle]) for x, handle in handles.items()}

    def _pin(self, transfer: Transfer, handles: dict[Wanted, int], held: Holding, fetch: Fetch | None = None) -> None:
        by_group, nbytes = [], 0
        for n, pool in enumerate(self.memory.pools):
            mine = np.array([handle for x, handle in handles.items() if x.group == n], np.int32)
            pool.pin(mine)
            by_group.append(mine)
            nbytes += len(mine) * pool.form.page_bytes
        self._pinned[transfer] = _Pinned(held, by_group, nbytes, fetch)

    def _pinned_bytes(self, kind: str) -> int:
        return sum(pinned.nbytes for transfer, pinned in self._pinned.items() if transfer.kind == kind)

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert the invariants, given what all sequences hold."""
        self.memory.check([*holdings, *self.holdings()])
        self.store.check()
        for n, pool in enumerate(self.memory.pools):
            mine = [pinned.handles[n] for pinned in self._pinned.values()]
            counts = np.bincount(np.concatenate([np.empty(0, np.int32), *mine]), minlength=pool.capacity)
            assert (counts == pool.pins).all(), "a page is pinned by nobody"
        loading = {id(pinned.fetch) for pinned in self._pinned.values()}
        assert all(id(fetch) in loading for fetch in self._coming.values()), "a fetch waits for nothing"


def tier_groups(groups: Iterable[MemoryGroup]) -> tuple[TierGroup, ...]:
    """A memory's groups as the tiers see them."""
    return tuple(
        TierGroup("state" if not g.by_token else "window" if g.window else "full", g.form.page_bytes, g.window)
        for g in groups
    )
