"""What the bytes of an arena are good for at a moment."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from headrace.engine.sequence import Sequence
from headrace.memory.pool import NO_PAGE
from headrace.memory.state_memory import READ, StateMemory
from headrace.runtime.batch import IntArray

LOST = ("not computed", "behind windows", "cached", "free pages", "rests of slabs", "free slabs")


def bytes_in_use(memory: StateMemory, running: Many[Sequence]) -> dict[str, float]:
    """Shares of an arena; they add up to 1.

    ``useful`` is what a later step of a running sequence reads; a page that several share counts once. The
    rest is lost: positions ``not computed`` yet, those ``behind windows``, pages that only the prefix tree holds
    (``cached``), ``free pages``, ``rests of slabs``, ``free slabs``.

    Args:
        memory: The arena's.
        running: Sequences that have a slot.
    """
    arena = memory.arena
    found: dict[str, float] = dict.fromkeys(("useful", *LOST), 0.0)
    found["free slabs"] = arena.free_slabs * arena.slab_bytes
    for n, pool in enumerate(memory.pools):
        computed, again = _positions(memory, n, running)
        tokens = memory.page_tokens if memory.groups[n].by_token else 1
        page = pool.form.page_bytes
        found["useful"] += again * page / tokens
        found["not computed"] += (pool.held - computed / tokens) * page
        found["behind windows"] += (computed - again) * page / tokens
        found["cached"] += pool.evictable * page
        found["free pages"] += pool.room * page
        found["rests of slabs"] += len(pool.slabs) * (arena.slab_bytes - pool.form.slab_pages * page)
    return {name: some / arena.nbytes for name, some in found.items()}


def _positions(memory: StateMemory, n: int, running: Many[Sequence]) -> tuple[int, int]:
    """Positions of a group's held pages that are computed, and those of them that are read again."""
    group, tokens = memory.groups[n], memory.page_tokens
    end = np.zeros(memory.pools[n].capacity, np.int32)
    begin = np.full(len(end), tokens, np.int32)
    for sequence in running:
        row: IntArray = sequence.held.rows[n]
        if not group.by_token:
            end[row[READ : READ + 1]], begin[row[READ : READ + 1]] = 1, 0
            continue
        there = np.flatnonzero(row != NO_PAGE)
        handles, starts = row[there], there * tokens
        first = max(0, sequence.computed - group.window + 1) if group.window else 0
        np.maximum.at(end, handles, np.clip(sequence.computed - starts, 0, tokens))
        np.minimum.at(begin, handles, np.clip(first - starts, 0, tokens))
    return int(end.sum()), int(np.maximum(end - begin, 0).sum())
