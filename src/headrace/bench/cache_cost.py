"""What the prefix tree itself costs when it is huge."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import msgspec
import numpy as np

from headrace.memory.arena import Arena
from headrace.memory.commands import IntArray
from headrace.memory.page_form import PageForm
from headrace.memory.pool import NO_PAGE, Pool
from headrace.memory.prefix_tree import CachedGroup, PrefixKey, PrefixTree

PAGE = 16
LEAF = 100  # tokens
LONG = 120_000  # tokens of the long prompts
NODES = 300  # of the deep one
TURNS = 1_500  # nodes of the deepest one, an agent's turns
NEW = 2_000  # tokens that are new
EVICTED = 1_000  # pages
WINDOW = 1_024
KINDS: dict[str, tuple[str, ...]] = {
    "full": ("full",),
    "full and window": ("full", "window"),
    "full and state": ("full", "state"),
}
KEY = PrefixKey("bench")


class Times(msgspec.Struct, frozen=True):
    """Seconds that an operation takes.

    Attributes:
        groups: The state groups of the model.
        operation: What was timed.
        p50: Median of the processor's seconds: what else the machine does is not in them.
        p99: Their 99th percentile.
        wall_p50: Median of the seconds on the clock.
        wall_p99: Their 99th percentile.
    """

    groups: str
    operation: str
    p50: float
    p99: float
    wall_p50: float
    wall_p99: float


Seconds = tuple[float, float]  # of the processor, on the clock


class _Watch:
    """Times a block."""

    def __enter__(self) -> _Watch:
        self._start = time.thread_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds: Seconds = time.thread_time() - self._start[0], time.perf_counter() - self._start[1]


def measure_costs(tokens: int = 10_000_000, repeat: int = 200) -> list[Times]:
    """Time the operations of a tree that holds ``tokens`` tokens in nodes of ``LEAF`` tokens.

    Args:
        tokens: Of the tree.
        repeat: Times that each operation is run.
    """
    found = []
    for name in KINDS:
        bench = _Bench(name, tokens)
        gc.collect()
        gc.freeze()  # else a run of the collector of garbage over all nodes is what is measured
        found += bench.run(repeat)
        gc.unfreeze()
    return found


class _Bench:
    def __init__(self, name: str, tokens: int) -> None:
        self.name, self.rng = name, np.random.default_rng(0)
        self.kinds = KINDS[name]
        form = PageForm.of(16, [(1, 1)])
        room = 2 * tokens // PAGE + 8 * LONG // PAGE
        arena = Arena(len(self.kinds) * room // 16, form.slab_bytes)
        self.pools = [Pool(arena, form, group=n, capacity=room) for n in range(len(self.kinds))]
        groups = [
            CachedGroup(kind, pool, WINDOW if kind == "window" else 0)  # type: ignore[arg-type]
            for kind, pool in zip(self.kinds, self.pools, strict=True)
        ]
        self.tree = PrefixTree(groups, PAGE)
        self.deep, self.deepest, self.shallow = (self.random(LONG) for _ in range(3))
        for path, nodes in ((self.deep, NODES), (self.deepest, TURNS)):
            for end in range(LONG // nodes, LONG + 1, LONG // nodes):
                self.keep(path[: end // PAGE * PAGE])
        self.keep(self.shallow)
        hubs = [self.random(LEAF // PAGE * PAGE) for _ in range(300)]
        for n in range(tokens // LEAF):
            self.keep(np.concatenate([hubs[n % len(hubs)], self.random(LEAF // PAGE * PAGE)]))

    def random(self, count: int) -> IntArray:
        """Tokens that are nobody else's."""
        return self.rng.integers(0, 1 << 30, count, np.int32)

    def rows(self, found: tuple[IntArray, ...], pages: int) -> list[IntArray]:
        """What a sequence holds that goes on from a hit to ``pages`` pages."""
        rows = []
        for kind, pool, row in zip(self.kinds, self.pools, found, strict=True):
            if kind == "state":
                pool.release(row)
                rows.append(pool.allocate(1))
            else:
                rows.append(np.concatenate([row, pool.allocate(pages - len(row))]))
        return rows

    def release(self, rows: list[IntArray] | tuple[IntArray, ...]) -> None:
        """The sequence ends."""
        for pool, row in zip(self.pools, rows, strict=True):
            pool.release(row[row != NO_PAGE])

    def keep(self, tokens: IntArray) -> None:
        """A sequence computes these tokens and ends."""
        rows = self.rows(self.tree.match(KEY, tokens).rows, len(tokens) // PAGE)
        self.release(self.tree.insert(KEY, tokens, rows))
        for pool in self.pools:
            pool.places()

    def run(self, repeat: int) -> list[Times]:
        """Time each operation."""
        operations: dict[str, Callable[[], Seconds]] = {
            f"match {LONG:,} tokens in {TURNS:,} nodes": lambda: self.match(self.deepest),
            f"match {LONG:,} tokens in {NODES} nodes": lambda: self.match(self.deep),
            f"match {LONG:,} tokens in one node": lambda: self.match(self.shallow),
            f"insert {LONG:,} tokens behind {TURNS:,} nodes": lambda: self.insert(self.deepest[:-NEW]),
            f"insert {LONG:,} tokens, the last {NEW:,} new": lambda: self.insert(self.deep[:-NEW]),
            f"insert {NEW:,} tokens, all new": lambda: self.insert(self.deep[:0]),
            f"evict {EVICTED:,} pages": self.evict,
        }
        found = []
        for operation, run in operations.items():
            run()
            seconds = [run() for _ in range(repeat)]
            found.append(Times(self.name, operation, *np.percentile(seconds, [50, 99], axis=0).T.ravel().tolist()))
        return found

    def match(self, tokens: IntArray) -> Seconds:
        """Seconds to find a prefix."""
        with _Watch() as watch:
            match = self.tree.match(KEY, tokens)
        self.release(match.rows)
        return watch.seconds

    def insert(self, prefix: IntArray) -> Seconds:
        """Seconds to offer a prefix that is there, with new tokens behind it."""
        tokens = np.concatenate([prefix, self.random(NEW)])
        rows = self.rows(self.tree.match(KEY, tokens).rows, len(tokens) // PAGE)
        with _Watch() as watch:
            rows = self.tree.insert(KEY, tokens, rows)
        self.release(rows)
        for pool in self.pools:
            pool.places()
        return watch.seconds

    def evict(self) -> Seconds:
        """Seconds to evict pages; as many are kept anew afterwards."""
        with _Watch() as watch:
            self.tree.evict(EVICTED * self.pools[0].form.page_bytes)
        for _ in range(EVICTED * PAGE // LEAF // sum(kind != "state" for kind in self.kinds)):
            self.keep(self.random(LEAF // PAGE * PAGE))
        return watch.seconds
