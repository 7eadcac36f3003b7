"""The invariants of a prefix tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.memory.commands import IntArray
from headrace.memory.pool import NO_PAGE
from headrace.memory.tree_eviction import TreeEviction
from headrace.memory.tree_node import NOWHERE, CachedGroup, Node


def check_nodes(nodes: Iterable[Node], groups: Sequence[CachedGroup], edge_bytes: int) -> None:
    """Assert that nodes fit each other and their pages, and that pages are whose the pools say."""
    held: list[list[IntArray]] = [[] for _ in groups]
    for node in nodes:
        count, rest = divmod(len(node.tokens), edge_bytes)
        assert count, "a node stands for no token"
        assert not rest, "a node ends within a page"
        assert node.parent is not None, "a node is cut off"
        assert node.start == node.parent.start + len(node.parent.tokens) // edge_bytes, "a node is at a wrong place"
        edge = node.tokens[:edge_bytes]
        assert node.parent.children.get(edge) is node, "a child is filed under a wrong edge"
        for n, group in enumerate(groups):
            row = node.rows[n]
            assert len(row) == (1 if group.kind == "state" else count), "tokens and pages do not fit"
            held[n].append(row[row != NO_PAGE])
            if group.kind == "full":
                chain = group.pool.references[np.concatenate([node.parent.rows[n][-1:], row])]
                assert (np.diff(chain) <= 0).all(), "a page is held by somebody who does not hold its ancestor"
                assert not _is_held(node, groups) or group.pool.references[row[0]], (
                    "something of a node is held by itself"
                )
    for n, group in enumerate(groups):
        mine = np.concatenate(held[n]) if held[n] else np.empty(0, np.int32)
        assert sorted(mine.tolist()) == np.flatnonzero(group.pool.cached).tolist(), "the tree holds other pages"


def check_queues(nodes: Iterable[Node], eviction: TreeEviction) -> None:
    """Assert that what may go, and nothing else, is in the queues."""
    pieces: list[tuple[int, bool]] = []
    pools = [group.pool for group in eviction.groups]
    waiting = {
        id(node) for (n, page), node in eviction.parked.items() if pools[n].watched[page] or page in pools[n].unheld
    }
    behind = {id(node) for node in eviction.behind}
    for node in nodes:
        leaf, stateful = not node.children, eviction.has_state(node)
        parked, queued, state_queued = id(node) in waiting, node.place != NOWHERE, node.state_place != NOWHERE
        assert queued == leaf or (leaf and parked), "a leaf can never be evicted, or an inner node may be"
        assert state_queued == stateful or (stateful and parked), "a state can never be evicted alone"
        assert (id(node) in behind) == node.in_windows, "a node is wrong about the queue of windows"
        assert node.in_windows or parked or not eviction.has_inner(node), (
            "what a window left behind can never be evicted"
        )
        pieces += [(id(node), False)] * queued + [(id(node), True)] * state_queued
    found = [(id(node), states) for node, states in eviction.queue.items()]
    assert sorted(found) == sorted(pieces), "the queue holds what is not in the tree"
    assert not any(eviction.doomed), "pages were not given back"


def _is_held(node: Node, groups: Sequence[CachedGroup]) -> bool:
    rows = zip(groups, node.rows, strict=True)
    return any(group.pool.references[row[row != NO_PAGE]].any() for group, row in rows)
