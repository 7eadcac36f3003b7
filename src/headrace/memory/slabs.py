"""One slab size for pages of several sizes."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNMENT = 64
MOST_SLABS = 4096  # slabs smaller than that share of the arena gain nothing
LEAST_SLABS = 256  # larger ones leave too much of the arena in slabs that are not full
ENOUGH = 0.002  # share of a slab that may be left over


def common_slab(page_bytes: Sequence[int], nbytes: int) -> int:
    """Bytes of a slab that pages of all these sizes fill well; a multiple of ``ALIGNMENT``.

    Args:
        page_bytes: Of a page of each group.
        nbytes: Of the arena: a slab is a small part of it, unless pages are large.
    """
    largest = -(-max(page_bytes) // ALIGNMENT) * ALIGNMENT
    most = max(largest, nbytes // LEAST_SLABS)
    first = max(1, nbytes // MOST_SLABS // largest)
    sizes = [largest * count for count in range(first, most // largest + 1)] or [largest]
    waste = {size: max(size % page / size for page in page_bytes) for size in sizes[:2048]}
    return next((size for size, left in waste.items() if left <= ENOUGH), min(waste, key=waste.__getitem__))
