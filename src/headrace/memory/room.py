"""``Room``: how pages of one kind find room among those of others."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.memory.arena import Arena
from headrace.memory.pool import Pool
from headrace.memory.prefix_tree import PrefixTree

# Pages in use for each free one in a pool's slabs, before it takes slabs that it could do without.
FILLED = 4


class Room:
    """Makes room for pages: moves some together, or has some evicted.

    Args:
        arena: Where slabs come from.
        pools: Who uses them.
        tree: What can be evicted.

    Attributes:
        moves: Pages moved so far.
    """

    def __init__(self, arena: Arena, pools: Sequence[Pool], tree: PrefixTree) -> None:
        self.arena, self.pools, self.tree = arena, pools, tree
        self.moves = 0

    def make(self, counts: Sequence[int]) -> bool:
        """See to it that pages of every group can be allocated: by moving pages together, else by evicting."""
        if any(pool.held + count > pool.capacity for pool, count in zip(self.pools, counts, strict=True)):
            return False
        while True:
            slabs = sum(pool.slabs_for(count) for pool, count in zip(self.pools, counts, strict=True))
            handles = all(count <= pool.capacity - pool.used for pool, count in zip(self.pools, counts, strict=True))
            if handles and slabs <= self.arena.free_slabs:
                return True
            if handles and self._packed(counts) <= self.arena.slabs and self._compact(counts):
                continue
            # What another kind leaves can be used slab by slab alone, so fewer pages would seldom do.
            least = self.arena.slab_bytes if handles and len(self.pools) > 1 else 0
            if not self.tree.evict(max(least, self._short(counts))):
                return False

    def _packed(self, counts: Sequence[int]) -> int:
        """Slabs that all pages in use and so many more take if none has room to spare."""
        pairs = zip(self.pools, counts, strict=True)
        return sum(
            max(-(-(pool.used + count) // pool.form.slab_pages), len(pool.pinned_slabs())) for pool, count in pairs
        )

    def to_spread(self, counts: Sequence[int]) -> int:
        """Slabs that are free beyond need. With several groups a quarter is left: each may need one suddenly."""
        left = self.arena.slabs // 4 if len(self.pools) > 1 else 0
        return max(0, self.arena.free_slabs - sum(map(Pool.slabs_for, self.pools, counts)) - left)

    def may_spread(self, pool: Pool) -> bool:
        """Whether a pool may take slabs beyond need: another kind, which may want them soon, would make pages move."""
        return len(self.pools) == 1 or FILLED * pool.room <= pool.used

    def _short(self, counts: Sequence[int]) -> int:
        """Bytes that must at least become free."""
        room, handles = 0, 0
        for pool, count in zip(self.pools, counts, strict=True):
            room += max(0, count - pool.room) * pool.form.page_bytes
            handles += max(0, count - (pool.capacity - pool.used)) * pool.form.page_bytes
        return max(1, handles, room - self.arena.free_slabs * self.arena.slab_bytes)

    def _compact(self, counts: Sequence[int]) -> bool:
        """Empty the slab that takes the fewest bytes to move, of a pool with room for its own new pages and a slab's.

        So each slab that an allocation takes makes at most one other slab's pages move.
        """
        best: tuple[int, Pool, int] | None = None
        for pool, count in zip(self.pools, counts, strict=True):
            found = pool.emptiest() if pool.room - count >= pool.form.slab_pages else None
            if found is not None and (best is None or found[1] * pool.form.page_bytes < best[0]):
                best = found[1] * pool.form.page_bytes, pool, found[0]
        if best is None:
            return False
        nbytes, pool, slab = best
        self.moves += nbytes // pool.form.page_bytes
        pool.vacate(slab)
        return True
