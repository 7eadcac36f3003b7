"""``KvMemory``: arena, pool and prefix tree as the scheduler uses them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from headrace.memory.arena import Arena
from headrace.memory.page_form import PageForm
from headrace.memory.pool import IntArray, Pool
from headrace.memory.prefix_tree import PrefixTree


class KvMemory:
    """The pages of a replica: an allocation that finds none free evicts from the prefix tree.

    Args:
        pages: Pages in all.
        form: How they lie in memory.
        page_tokens: Tokens of a page.
        prefix_cache: Keep the pages of finished sequences for others with the same prefix.
        poison: Overwrite freed pages with NaN (for tests).
    """

    def __init__(
        self,
        *,
        pages: int,
        form: PageForm,
        page_tokens: int,
        prefix_cache: bool = True,
        poison: bool = False,
    ) -> None:
        self.arena = Arena(-(-pages // form.slab_pages), form.slab_bytes)
        self.pool = Pool(self.arena, form, pages, poison=poison)
        self.tree = PrefixTree(self.pool, page_tokens)
        self.page_tokens = page_tokens
        self.prefix_cache = prefix_cache

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)

    def available(self) -> int:
        """Pages that ``allocate`` could hand out, by evicting if need be."""
        return self.pool.free + self.tree.evictable()

    def allocate(self, count: int, after: int | None = None) -> IntArray | None:
        """Hand out pages, evicting cached ones if need be; all of them or None. See ``Pool.allocate``."""
        missing = count - self.pool.free
        if missing > 0 and self.tree.evict(missing) < missing:
            return None
        return self.pool.allocate(count, after)

    def match(self, key: Hashable, tokens: IntArray) -> IntArray:
        """Take the pages of the longest cached prefix that leaves at least one token to compute."""
        if not self.prefix_cache:
            return np.empty(0, np.int32)
        return self.tree.match(key, tokens[:-1])

    def share(self, key: Hashable, tokens: IntArray, handles: IntArray) -> IntArray:
        """Offer the full pages of a computed prefix to others; returns the caller's new page row.

        Args:
            key: Root of the tree.
            tokens: int32 [computed tokens].
            handles: int32 [pages], of which the last may be partly filled.
        """
        full = len(tokens) // self.page_tokens
        if not self.prefix_cache or not full:
            return handles
        shared = self.tree.insert(key, tokens[: full * self.page_tokens], handles[:full])
        return np.concatenate([shared, handles[full:]])

    def release(self, handles: IntArray) -> None:
        """Drop the caller's references."""
        self.pool.release(handles)

    def check(self, rows: Iterable[IntArray]) -> None:
        """Assert the invariants, given the page rows of all sequences."""

        def count() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            held = np.concatenate([self.tree.handles(), *rows])
            return np.bincount(held, minlength=self.pool.capacity)

        self.pool.check(count)
        self.tree.check()
