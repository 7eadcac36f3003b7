"""``PrefixTree``: a radix tree over pages of tokens, so that equal prefixes are computed once.

An edge holds whole pages of tokens; children are told apart by their first page. A node holds, for each state group,
what its tokens keep: the pages of attention over all tokens, those of a window as far as they are still there, and what
a recurrent layer has after the node's last token::

    root("tenant a") ──[ 0..31 ]──┬──[ 32..63 ]            two pages of tokens, shared by both branches
                       full  h4 h7│    full  h9 h2
                       state s3   └──[ 32..47 ]
                                       full  h5

A hit is shortened to where all groups can go on. Invariant: whoever holds a page of attention over all tokens holds
those of its ancestors too. So what only the tree holds can be freed by cutting leaves from their ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headrace.memory.commands import IntArray
from headrace.memory.eviction import Policy, RecomputeCost, least_value_first
from headrace.memory.pool import NO_PAGE
from headrace.memory.tree_check import check_nodes, check_queues
from headrace.memory.tree_eviction import TreeEviction
from headrace.memory.tree_node import (
    NOWHERE,
    TOKEN_BYTES,
    CachedGroup,
    Match,
    Node,
    PrefixKey,
    as_bytes,
    find,
    no_state,
    row_between,
    row_of,
)
from headrace.memory.tree_uses import TreeUses

LOOKED_AT = 64  # pages at first, when it is looked for where a hit ends

__all__ = ["CachedGroup", "Match", "PrefixKey", "PrefixTree"]


class PrefixTree:
    """A radix tree over token pages, one root a key.

    Args:
        groups: What a prefix consists of.
        page_tokens: Tokens of a page.
        policy: What goes first.
        clock: Seconds; for the ages of what is cached.
    """

    def __init__(
        self,
        groups: Sequence[CachedGroup],
        page_tokens: int,
        *,
        policy: Policy = least_value_first,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.groups = tuple(groups)
        self.page_tokens = page_tokens
        self._edge_bytes = page_tokens * TOKEN_BYTES
        self._states = [n for n, group in enumerate(groups) if group.kind == "state"]
        self._windows = [n for n, group in enumerate(groups) if group.kind == "window"]
        self._by_token = [n for n, group in enumerate(groups) if group.kind != "state"]
        self._roots: dict[PrefixKey, Node] = {}
        self._clock = clock
        self._last = 0.0
        self._uses = TreeUses(self._edge_bytes)
        self._eviction = TreeEviction(self.groups, page_tokens, policy, self._uses)

    def set_cost(self, cost: RecomputeCost) -> None:
        """What it costs to compute tokens, for what is kept or used from now on."""
        self._eviction.cost = cost

    # -- finding

    def match(self, key: PrefixKey, tokens: IntArray, *, use: bool = True) -> Match:
        """Find the longest cached prefix behind which all groups can go on; the caller holds its pages.

        Args:
            key: Which root.
            tokens: int32 [n].
            use: Whether that is a use of it, of which is learned what to keep.
        """
        path, now = self._path(key, as_bytes(tokens)), self._now()
        if use:
            self._touch(path, now, use=True)
        pages = self._usable(path)
        rows: list[IntArray] = []
        last = next((node for node in reversed(path) if self._end(node) == pages), None) if self._states else None
        for n, group in enumerate(self.groups):
            if n in self._states:
                row = last.rows[n].copy() if last is not None else np.empty(0, np.int32)
            elif group.kind == "window":
                first = group.first_page(pages * self.page_tokens, self.page_tokens)
                row = np.concatenate([np.full(first, NO_PAGE, np.int32), row_between(path, n, first, pages)])
            else:
                row = row_of(path, n)[:pages]
            rows.append(row)
            group.pool.retain(row[row != NO_PAGE] if group.kind == "window" else row)
        if last is not None and use:
            self._uses.touch_states(last, now)
            self._eviction.note(last)
        return Match(pages, tuple(rows), self._end(path[-1]) if path else 0)

    def cached(self, key: PrefixKey, tokens: IntArray) -> int:
        """How many tokens ``match`` would find; asking is no use."""
        root = self._roots.get(key)
        path, partial = find(root, as_bytes(tokens), self._edge_bytes) if root else ([], 0)
        return self._usable(path, partial) * self.page_tokens

    def _path(self, key: PrefixKey, tokens: bytes) -> list[Node]:
        """The nodes along ``tokens``; where they go on in the middle of a node, it is split there."""
        root = self._roots.get(key)
        if root is None:
            return []
        path, partial = find(root, tokens, self._edge_bytes)
        if partial:
            self._split(path[-1], partial)
        return path

    def _touch(self, path: list[Node], now: float, *, use: bool) -> None:
        self._uses.touch(path, now, use=use)
        if path and path[-1].place != NOWHERE:
            self._eviction.note(path[-1])

    def _usable(self, path: list[Node], partial: int = 0) -> int:
        """Most pages of a path behind which all groups can go on; the last node may count in part."""
        total = (path[-1].start + partial if partial else self._end(path[-1])) if path else 0
        if not self._windows and not self._states:
            return total
        whole, end, look = (path[:-1] if partial else path), total, LOOKED_AT
        while end:
            # Mostly it is near the end of the path, so that is looked at first.
            start, look = max(0, end - look), 4 * look
            good = np.ones(end - start, np.bool_)  # behind start + 1 .. end pages
            for n in self._windows:
                good &= self._sees(path, n, start, end)
            if self._states:
                good &= self._has_states(whole, start, end)
            if good.any():
                return start + 1 + int(np.flatnonzero(good)[-1])
            end = start
        return 0

    def _sees(self, path: list[Node], group: int, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether all that a window sees is there, behind ``start + 1`` to ``end`` pages of a path."""
        tokens = np.arange(start + 1, end + 1) * self.page_tokens
        first = np.maximum(0, tokens - self.groups[group].window + 1) // self.page_tokens
        missing = np.cumsum(row_between(path, group, int(first[0]), end) == NO_PAGE)
        missing = np.concatenate([[0], missing])
        seen: npt.NDArray[np.bool_] = missing[start + 1 - first[0] :] == missing[first - first[0]]
        return seen

    def _has_states(self, path: list[Node], start: int, end: int) -> npt.NDArray[np.bool_]:
        """Whether there are states behind ``start + 1`` to ``end`` pages of a path."""
        there = np.zeros(end - start, np.bool_)
        for node in reversed(path):
            behind = self._end(node) - 1
            if behind < start:
                break
            if behind < end and all(node.rows[n].item(0) != NO_PAGE for n in self._states):
                there[behind - start] = True
        return there

    # -- keeping

    def insert(self, key: PrefixKey, tokens: IntArray, rows: Sequence[IntArray]) -> list[IntArray]:
        """Offer a prefix and what it keeps; where the tree already has equal pages, the caller gets those instead.

        The caller's holds move with it: a page that the tree had is exchanged, one that it had not is held by both.

        Args:
            key: Which root.
            tokens: int32 [pages x page_tokens].
            rows: int32 of each group, held by the caller: [pages], ``NO_PAGE`` where a window has left them behind;
                [1] of a state after exactly these tokens, or [0].

        Returns:
            The rows that the caller holds from now on.
        """
        now, data = self._now(), as_bytes(tokens)
        if key not in self._roots:
            self._roots[key] = Node(None, 0, b"", [row[:0] for row in rows], now)
        path = self._path(key, data)
        self._touch(path, now, use=False)
        own = [row.copy() for row in rows]
        done = self._end(path[-1]) if path else 0
        for n in self._by_token:
            self._exchange(path, n, own[n][:done])
        if done < len(tokens) // self.page_tokens:
            parent = path[-1] if path else self._roots[key]
            path.append(self._append(parent, data[done * self._edge_bytes :], [row[done:] for row in own], now))
        if path:
            self._adopt_states(path[-1], rows, now)
            self._eviction.note(path[-1])
        return own

    def _exchange(self, path: list[Node], group: int, own: IntArray) -> None:
        """Give the caller the tree's pages for its own; take those that the tree has not."""
        pool, theirs = self.groups[group].pool, row_of(path, group)
        differ = theirs != own
        if not differ.any():
            return
        mine, there = own != NO_PAGE, theirs != NO_PAGE
        adopted, swapped = mine & ~there, mine & there & differ
        if adopted.any():
            pool.cache(own[adopted])
            for node in path:
                part = slice(node.start, self._end(node))
                if adopted[part].any():
                    node.rows[group] = np.where(adopted[part], own[part], node.rows[group])
                    self._eviction.note(node)
        pool.retain(theirs[swapped])
        pool.release(own[swapped])
        own[swapped] = theirs[swapped]

    def _append(self, parent: Node, tokens: bytes, rows: list[IntArray], now: float) -> Node:
        leaf = Node(parent, self._end(parent), tokens, [], now)
        for n, row in enumerate(rows):
            if n in self._states:
                leaf.rows.append(no_state())
            else:
                leaf.rows.append(row.copy())
                self.groups[n].pool.cache(row[row != NO_PAGE])
        parent.children[tokens[: self._edge_bytes]] = leaf
        self._uses.begin(leaf)
        self._eviction.note(parent)
        return leaf

    def _adopt_states(self, node: Node, rows: Sequence[IntArray], now: float) -> None:
        for n in self._states:
            if len(rows[n]) and node.rows[n][0] == NO_PAGE:
                node.rows[n] = rows[n][:1].copy()
                self.groups[n].pool.cache(node.rows[n])
                self._uses.keep_states(node, now)

    def _split(self, node: Node, pages: int) -> None:
        """Keep the first pages in the node and move the rest, and what is known of it, into a child of it."""
        cut = pages * self._edge_bytes
        rest = Node(node, node.start + pages, node.tokens[cut:], [], node.last_used)
        for n, row in enumerate(node.rows):
            rest.rows.append(row if n in self._states else row[pages:])
        rest.children = node.children
        for child in rest.children.values():
            child.parent = rest
        self._uses.divide(node, rest)
        self._eviction.unqueue(node)
        node.tokens = node.tokens[:cut]
        node.rows = [no_state() if n in self._states else row[:pages] for n, row in enumerate(node.rows)]
        node.children = {rest.tokens[: self._edge_bytes]: rest}
        self._eviction.note(rest)
        self._eviction.note(node)

    # -- giving up

    def evict(self, nbytes: int) -> int:
        """Free pages that nobody but the tree holds, the least valuable first, until ``nbytes`` are free.

        First what windows have left behind inside of nodes, which only a prefix that ends there would need; then
        states, and leaves from their ends, by the tree's policy.

        Returns:
            Bytes freed; fewer than asked when nothing else is free to go.
        """
        freed = self._eviction.evict(nbytes, self._now(), self._nodes)
        self._drop_roots()
        return freed

    def forget(self, key: PrefixKey, tokens: IntArray) -> list[IntArray]:
        """Keep nothing of a prefix, nor of what goes on from any part of it; holders keep theirs.

        Returns:
            int32 of each group, the pages that were kept.
        """
        path = self._path(key, as_bytes(tokens))
        dropped = self._eviction.drop_below(path[0]) if path else [np.empty(0, np.int32) for _ in self.groups]
        self._drop_roots()
        return dropped

    def _drop_roots(self) -> None:
        """Forget the roots that hold nothing any more."""
        if gone := self._eviction.emptied:
            self._roots = {key: root for key, root in self._roots.items() if root not in gone}
            gone.clear()

    # -- shape

    def _end(self, node: Node) -> int:
        """Pages to the end of a node."""
        return node.start + len(node.tokens) // self._edge_bytes

    def _now(self) -> float:
        """The time; later with every call, so that it tells an order too."""
        self._last = max(self._clock(), self._last + 1e-6)
        return self._last

    def _nodes(self) -> Iterator[Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from child.below()

    def describe(self) -> dict[str, int]:
        """Size of the tree, for people."""
        pages = sum(int(np.count_nonzero(group.pool.cached)) for group in self.groups)
        return {"roots": len(self._roots), "nodes": sum(1 for _ in self._nodes()), "pages": pages}

    def check(self) -> None:
        """Assert the invariants of shape, ownership and the queues."""
        check_nodes(self._nodes(), self.groups, self._edge_bytes)
        assert all(root.children for root in self._roots.values()), "a root holds nothing"
        check_queues(self._nodes(), self._eviction)
