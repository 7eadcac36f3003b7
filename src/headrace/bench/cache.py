"""What a prefix cache finds: a trace through the real prefix tree, beside what foresight would find."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from headrace.bench.cache_trace import Asked, CacheTrace, read_cache_trace
from headrace.memory.arena import Arena
from headrace.memory.commands import IntArray
from headrace.memory.eviction import Policy, least_value_first, oldest_first
from headrace.memory.page_form import PageForm
from headrace.memory.pool import Pool
from headrace.memory.prefix_tree import CachedGroup, PrefixKey, PrefixTree

NEVER = 1 << 30


class HitRates(msgspec.Struct, frozen=True):
    """Shares of prompt tokens that were cached, at one size of the cache.

    Attributes:
        trace: Its name.
        share: Size of the cache as a share of all different pages.
        pages: The same in pages.
        lru: Of the tree that gives up what was not used for longest.
        value: Of the tree that gives up what is worth least.
        belady: Of a cache that knows when each page is used next.
    """

    trace: str
    share: float
    pages: int
    lru: float
    value: float
    belady: float

    @property
    def gap_closed(self) -> float:
        """How much of the way from LRU to foresight value goes."""
        gap = self.belady - self.lru
        return (self.value - self.lru) / gap if gap > 0 else 0.0


def measure_hits(
    path: Path,
    shares: Sequence[float],
    *,
    active: int,
    seed: int,
    report: Callable[[HitRates], None] = lambda found: None,
) -> list[HitRates]:
    """Replay a trace at several sizes of the cache.

    Args:
        path: See ``read_cache_trace``.
        shares: Sizes, as shares of all different pages.
        active: Sessions of agents at once.
        seed: Of their starts.
        report: Told each result.

    Raises:
        InvalidInput: The trace cannot be read.
    """
    trace = read_cache_trace(path, active=active, seed=seed)
    found = []
    for share in shares:
        pages = max(1, int(share * trace.distinct))
        rates = (replay(trace, pages, oldest_first), replay(trace, pages, least_value_first), foresee(trace, pages))
        found.append(HitRates(trace.name, share, pages, *rates))
        report(found[-1])
    return found


def replay(trace: CacheTrace, pages: int, policy: Policy) -> float:
    """Share of prompt tokens that a prefix tree of ``pages`` pages finds."""
    longest = max(len(asked.pages) for asked in trace.asked)
    form = PageForm.of(16, [(1, 1)])
    pool = Pool(Arena(-(-(pages + longest) // 16) + 1, form.slab_bytes), form)
    now = 0.0

    def clock() -> float:
        return now

    tree, key = PrefixTree([CachedGroup("full", pool)], trace.page_tokens, policy=policy, clock=clock), PrefixKey("")
    hits = 0
    for asked in trace.asked:
        now = asked.at
        tokens = np.repeat(asked.pages, trace.page_tokens)
        found = tree.match(key, tokens[: asked.prompt_pages * trace.page_tokens])
        hits += found.pages
        if len(asked.pages):
            rows = np.concatenate([found.rows[0], pool.allocate(len(asked.pages) - found.pages)])
            pool.release(tree.insert(key, tokens, [rows])[0])
        pool.places()  # an executor would be told
        if pool.used > pages:
            tree.evict((pool.used - pages) * form.page_bytes)
    return hits * trace.page_tokens / _tokens(trace)


def foresee(trace: CacheTrace, pages: int) -> float:
    """Share of prompt tokens that a cache finds which gives up the page whose next use is farthest (Belady, 1966).

    Whoever uses a page uses all before it, so a page goes before those that it is behind: what is left is prefixes.
    """
    following = _next_uses(trace.asked, trace.distinct)
    cached = np.zeros(trace.distinct, np.bool_)
    queue = _ByNextUse()
    count = hits = 0
    for n, asked in enumerate(trace.asked):
        there = cached[asked.pages]
        prompt = there[: asked.prompt_pages]
        hits += len(prompt) if prompt.all() else int(np.argmin(prompt))
        # Pages of the answer that are there already are in the queue, with their next use.
        fresh = ~there
        fresh[: asked.prompt_pages] = True
        count += int(np.count_nonzero(~there))
        cached[asked.pages] = True
        queue.drop(n)
        places = np.flatnonzero(fresh)
        uses = following[n][places]
        cuts = np.flatnonzero((np.diff(uses) != 0) | (np.diff(places) != 1)) + 1
        for piece in np.split(places, cuts) if len(places) else ():
            queue.put(int(following[n][piece[0]]), int(piece[-1]) + 1, asked.pages[piece])
        while count > pages:
            gone = queue.take(count - pages)
            cached[gone] = False
            count -= len(gone)
    return hits * trace.page_tokens / _tokens(trace)


class _ByNextUse:
    """Cached pages in pieces of prefixes, by the request that uses them next."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[tuple[int, int, IntArray]]] = {}  # of each request a heap, the deepest first
        self._farthest: list[int] = []  # the requests, negated, as a heap
        self._order = itertools.count()

    def put(self, use: int, depth: int, pages: IntArray) -> None:
        """Add pages that end ``depth`` pages behind the start of their prefix."""
        if use not in self._pieces:
            self._pieces[use] = []
            heapq.heappush(self._farthest, -use)
        heapq.heappush(self._pieces[use], (-depth, next(self._order), pages))

    def drop(self, use: int) -> None:
        """The request is there: what it uses is put anew."""
        self._pieces.pop(use, None)

    def take(self, most: int) -> IntArray:
        """Some of the pages whose next use is farthest, the deepest: none goes before one behind it."""
        while not (heap := self._pieces.get(-self._farthest[0])):
            self._pieces.pop(-heapq.heappop(self._farthest), None)
        depth, _, pages = heapq.heappop(heap)
        others = -heap[0][0] if heap else 0
        keep = len(pages) - max(1, min(most, len(pages), -depth - others))
        if keep:
            heapq.heappush(heap, (depth + len(pages) - keep, next(self._order), pages[:keep]))
        return pages[keep:]


def _next_uses(asked: Sequence[Asked], distinct: int) -> list[IntArray]:
    """For each request, the number of the next one whose prompt has each of its pages."""
    following = np.full(distinct, NEVER, np.int32)
    found: list[IntArray] = []
    for n in range(len(asked) - 1, -1, -1):
        found.append(following[asked[n].pages])
        following[asked[n].pages[: asked[n].prompt_pages]] = n
    return found[::-1]


def _tokens(trace: CacheTrace) -> int:
    return max(1, sum(asked.tokens for asked in trace.asked))
