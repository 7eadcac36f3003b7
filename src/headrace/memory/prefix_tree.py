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

import heapq
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.memory.commands import IntArray
from headrace.memory.pool import NO_PAGE, Pool


@dataclass(frozen=True, slots=True)
class CachedGroup:
    """A state group as the tree sees it.

    Attributes:
        kind: ``full``: every page of a prefix is needed to go on behind it; ``window``: those of its last tokens;
            ``state``: one page, after its last token.
        pool: Whose pages.
        window: Tokens that a token sees, itself included; 0 if all.
    """

    kind: Literal["full", "window", "state"]
    pool: Pool
    window: int = 0

    def first_page(self, tokens: int, page_tokens: int) -> int:
        """The first page that the token behind ``tokens`` others sees."""
        return max(0, tokens - self.window + 1) // page_tokens if self.window else 0


@dataclass(frozen=True, slots=True)
class Match:
    """A cached prefix.

    Attributes:
        pages: Pages of tokens.
        rows: int32 of each group: [pages], ``NO_PAGE`` where none is needed; [1] or [0] of a state.
    """

    pages: int
    rows: tuple[IntArray, ...]


class Node:
    """Pages of tokens behind a common prefix.

    Attributes:
        tokens: int32 [pages x page_tokens].
        rows: int32 [pages] of each group by token, ``NO_PAGE`` where there is none; [1] of a state, after the last.
        children: First page's token bytes to node.
        last_used: Logical time of the last match or insert that went through the whole of it or a part.
    """

    __slots__ = ("children", "last_used", "parent", "queued", "rows", "tokens")

    def __init__(self, parent: Node | None, tokens: IntArray, rows: list[IntArray], last_used: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.rows = rows
        self.children: dict[bytes, Node] = {}
        self.last_used = last_used
        self.queued: set[str] = set()


class PrefixTree:
    """A radix tree over token pages, one root a key (tenant salt; later adapter and numerics id).

    Args:
        groups: What a prefix consists of.
        page_tokens: Tokens of a page.
    """

    def __init__(self, groups: Sequence[CachedGroup], page_tokens: int) -> None:
        self.groups = tuple(groups)
        self.page_tokens = page_tokens
        self._states = [n for n, group in enumerate(groups) if group.kind == "state"]
        self._windows = [n for n, group in enumerate(groups) if group.kind == "window"]
        self._by_token = [n for n, group in enumerate(groups) if group.kind != "state"]
        self._roots: dict[Hashable, Node] = {}
        self._clock = itertools.count(1)
        self._order = itertools.count()
        # What may be freed, by time of last use. An entry may be stale (used since, or gone): it is put right when it
        # comes up, so that a match costs nothing here.
        self._queues: dict[str, list[tuple[int, int, Node]]] = {"leaf": [], "state": [], "window": []}

    # -- finding

    def match(self, key: Hashable, tokens: IntArray) -> Match:
        """Find the longest cached prefix behind which all groups can go on; the caller holds its pages.

        Args:
            key: Which root.
            tokens: int32 [n].
        """
        path = list(self._walk(self._roots[key], tokens)) if key in self._roots else []
        pages = self._usable(path)
        rows: list[IntArray] = []
        for n, group in enumerate(self.groups):
            if n in self._states:
                row = next((node.rows[n] for node, _, end in path if end == pages), np.empty(0, np.int32))[:1].copy()
            else:
                row = self._row(path, n)[:pages].copy()
                row[: group.first_page(pages * self.page_tokens, self.page_tokens)] = NO_PAGE
            rows.append(row)
            group.pool.retain(row[row != NO_PAGE])
        return Match(pages, tuple(rows))

    def _usable(self, path: list[tuple[Node, int, int]]) -> int:
        """Most pages of a path behind which all groups can go on."""
        total = path[-1][2] if path else 0
        good = np.ones(total + 1, np.bool_)
        for n in self._windows:
            missing = np.concatenate([[0], np.cumsum(self._row(path, n) == NO_PAGE)])
            behind = np.arange(total + 1)
            first = np.maximum(0, behind * self.page_tokens - self.groups[n].window + 1) // self.page_tokens
            good &= missing[behind] == missing[first]
        if self._states:
            ends = [
                end
                for node, pages, end in path
                if pages == self._pages(node) and all(node.rows[n][0] != NO_PAGE for n in self._states)
            ]
            whole = np.zeros(total + 1, np.bool_)
            whole[[0, *ends]] = True
            good &= whole
        return int(np.flatnonzero(good)[-1])

    def _row(self, path: list[tuple[Node, int, int]], group: int) -> IntArray:
        rows = [node.rows[group][:pages] for node, pages, _ in path]
        return np.concatenate(rows) if rows else np.empty(0, np.int32)

    def _walk(self, root: Node, tokens: IntArray) -> Iterator[tuple[Node, int, int]]:
        """The nodes along ``tokens``, the pages of each that match, and those so far; the last may match in part."""
        now = next(self._clock)
        root.last_used = now
        node, position = root, 0
        while position + self.page_tokens <= len(tokens):
            child = node.children.get(self._edge(tokens[position : position + self.page_tokens]))
            if child is None:
                return
            ahead = tokens[position : position + len(child.tokens)]
            differ = np.flatnonzero(child.tokens[: len(ahead)] != ahead)
            same = int(differ[0]) if len(differ) else len(ahead)
            pages = same // self.page_tokens
            child.last_used = now
            whole = pages == self._pages(child)
            position += pages * self.page_tokens
            node = child
            yield child, pages, position // self.page_tokens
            if not whole:
                return

    # -- keeping

    def insert(self, key: Hashable, tokens: IntArray, rows: Sequence[IntArray]) -> list[IntArray]:
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
        now = next(self._clock)
        root = self._roots.setdefault(key, Node(None, tokens[:0], [row[:0] for row in rows], now))
        own = [row.copy() for row in rows]
        node, done = root, 0
        for node, pages, end in self._walk(root, tokens):
            for n in self._by_token:
                self._exchange(node, pages, n, own[n][done:end])
            done = end
            if pages < self._pages(node):
                self._split(node, pages)
        total = len(tokens) // self.page_tokens
        if done < total:
            node = self._append(node, tokens[done * self.page_tokens :], [row[done:] for row in own], now)
        if node is not root:
            self._adopt_states(node, rows)
        self._note(node)
        return own

    def _exchange(self, node: Node, pages: int, group: int, own: IntArray) -> None:
        """Give the caller the tree's pages for its own; take those that the tree has not."""
        pool, theirs = self.groups[group].pool, node.rows[group][:pages]
        mine = own != NO_PAGE
        adopted = mine & (theirs == NO_PAGE)
        if adopted.any():
            node.rows[group] = node.rows[group].copy()
            node.rows[group][:pages][adopted] = own[adopted]
            pool.cache(own[adopted])
        swapped = mine & ~adopted & (theirs != own)
        pool.retain(theirs[swapped])
        pool.release(own[swapped])
        own[swapped] = theirs[swapped]

    def _append(self, parent: Node, tokens: IntArray, rows: list[IntArray], now: int) -> Node:
        leaf = Node(parent, tokens.copy(), [], now)
        for n, row in enumerate(rows):
            if n in self._states:
                leaf.rows.append(np.full(1, NO_PAGE, np.int32))
            else:
                leaf.rows.append(row.copy())
                self.groups[n].pool.cache(row[row != NO_PAGE])
        parent.children[self._edge(leaf.tokens)] = leaf
        return leaf

    def _adopt_states(self, node: Node, rows: Sequence[IntArray]) -> None:
        for n in self._states:
            if len(rows[n]) and node.rows[n][0] == NO_PAGE:
                node.rows[n] = rows[n][:1].copy()
                self.groups[n].pool.cache(node.rows[n])

    def _split(self, node: Node, pages: int) -> None:
        """Keep the first pages in the node and move the rest into a child of it."""
        cut = pages * self.page_tokens
        rest = Node(node, node.tokens[cut:], [], node.last_used)
        for n, row in enumerate(node.rows):
            rest.rows.append(row if n in self._states else row[pages:])
        rest.children = node.children
        for child in rest.children.values():
            child.parent = rest
        node.tokens = node.tokens[:cut]
        node.rows = [
            np.full(1, NO_PAGE, np.int32) if n in self._states else row[:pages] for n, row in enumerate(node.rows)
        ]
        node.children = {self._edge(rest.tokens): rest}
        self._note(rest)

    def _note(self, node: Node) -> None:
        """Put a node into the queues of what may be freed."""
        if node.parent is None:
            return
        if not node.children:
            self._queue("leaf", node)
        if any(node.rows[n][0] != NO_PAGE for n in self._states):
            self._queue("state", node)
        if any((node.rows[n][: self._inner(node, n)] != NO_PAGE).any() for n in self._windows):
            self._queue("window", node)

    def _queue(self, name: str, node: Node) -> None:
        if name not in node.queued:
            node.queued.add(name)
            heapq.heappush(self._queues[name], (node.last_used, next(self._order), node))

    # -- giving up

    def evict(self, nbytes: int) -> int:
        """Free pages that nobody but the tree holds, the least valuable first, until ``nbytes`` are free.

        First what windows have left behind inside of nodes, which only a prefix that ends there would need; then
        what was not used for longest: states, and leaves from their ends.

        Returns:
            Bytes freed; fewer than asked when nothing else is free to go.
        """
        freed = 0
        held: list[tuple[str, Node]] = []
        while freed < nbytes and (name := self._oldest()):
            time, _, node = heapq.heappop(self._queues[name])
            node.queued.discard(name)
            if node.parent is None or (name == "leaf" and node.children):
                continue
            if time != node.last_used:
                self._queue(name, node)
                continue
            give = {"leaf": self._cut, "state": self._drop_states, "window": self._drop_inner}[name]
            some = give(node, nbytes - freed)
            freed += some
            if not some:
                held.append((name, node))
        for name, node in held:
            if node.parent is not None:
                self._queue(name, node)
        if freed < nbytes and self._windows:  # what windows have left at the ends of nodes that are held otherwise
            freed += sum(self._drop_windows(node, len(node.tokens)) for node in self._nodes())
        return freed

    def _oldest(self) -> str:
        if self._queues["window"]:
            return "window"
        names = [name for name in ("state", "leaf") if self._queues[name]]
        return min(names, key=lambda name: self._queues[name][0][:2], default="")

    def _cut(self, leaf: Node, nbytes: int) -> int:
        """Free pages from the end of a leaf; remove it when it is empty."""
        count = self._pages(leaf)
        held = np.zeros(count, np.bool_)
        sizes = np.zeros(count, np.int64)
        for n in self._by_token:
            pool, row = self.groups[n].pool, leaf.rows[n]
            there = row != NO_PAGE
            held |= there & (pool.references[row] > 0)
            sizes += there * pool.form.page_bytes
        # What is after the last token goes with it.
        states = [(self.groups[n].pool, leaf.rows[n]) for n in self._states if leaf.rows[n][0] != NO_PAGE]
        if any(pool.references[row[0]] > 0 for pool, row in states):
            return 0
        bound = int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0
        of_states = sum(pool.form.page_bytes for pool, _ in states)
        tail = np.cumsum(sizes[bound:][::-1])
        if len(tail) == 0 and not of_states:
            return 0
        pages = 0 if of_states >= nbytes else min(len(tail), int(np.searchsorted(tail, nbytes - of_states)) + 1)
        keep = count - pages
        for n in self._by_token:
            row = leaf.rows[n][keep:]
            self.groups[n].pool.uncache(row[row != NO_PAGE])
            leaf.rows[n] = leaf.rows[n][:keep]
        for pool, row in states:
            pool.uncache(row)
        for n in self._states:
            leaf.rows[n] = np.full(1, NO_PAGE, np.int32)
        edge, leaf.tokens = self._edge(leaf.tokens), leaf.tokens[: keep * self.page_tokens]
        if keep and (self._by_token or not pages):
            self._note(leaf)
        else:
            self._remove(leaf, edge)
        return (int(tail[pages - 1]) if pages else 0) + of_states

    def _remove(self, leaf: Node, edge: bytes) -> None:
        parent = leaf.parent
        assert parent is not None  # roots hold nothing and never come here
        del parent.children[edge]
        leaf.parent = None
        if parent.children:
            return
        if parent.parent is None:
            self._roots = {key: root for key, root in self._roots.items() if root is not parent}
        else:
            self._note(parent)

    def forget(self, key: Hashable, tokens: IntArray, pages: int) -> None:
        """Keep nothing of a prefix behind its first pages, nor of what goes on from there; holders keep theirs."""
        path = list(self._walk(self._roots[key], tokens)) if key in self._roots else []
        for node, count, end in path:
            if end <= pages:
                continue
            if pages > end - count:
                self._split(node, pages - (end - count))
                self._forget_below(next(iter(node.children.values())))
            else:
                self._forget_below(node)
            return

    def _forget_below(self, top: Node) -> None:
        for node in list(self._below(top)):
            for group, row in zip(self.groups, node.rows, strict=True):
                group.pool.uncache(row[row != NO_PAGE])
            if node is not top:
                node.parent = None
        self._remove(top, self._edge(top.tokens))

    def _drop_states(self, node: Node, nbytes: int) -> int:
        freed = 0
        for n in self._states:
            pool, row = self.groups[n].pool, node.rows[n]
            if row[0] != NO_PAGE and not pool.references[row[0]]:
                pool.uncache(row)
                node.rows[n] = np.full(1, NO_PAGE, np.int32)
                freed += pool.form.page_bytes
        return freed

    def _drop_inner(self, node: Node, nbytes: int) -> int:
        """Free the pages of windows inside of a node, which the tokens behind it do not see."""
        return sum(self._drop_windows(node, self._inner(node, n), n) for n in self._windows)

    def _drop_windows(self, node: Node, pages: int, group: int | None = None) -> int:
        """Free the pages of windows, of one group or of all, at the front of a node."""
        freed = 0
        for n in self._windows if group is None else (group,):
            pool, row = self.groups[n].pool, node.rows[n].copy()
            inner = row[:pages]
            gone = (inner != NO_PAGE) & (pool.references[inner] == 0)
            pool.uncache(inner[gone])
            inner[gone] = NO_PAGE
            node.rows[n] = row
            freed += int(np.count_nonzero(gone)) * pool.form.page_bytes
        return freed

    def _inner(self, node: Node, group: int) -> int:
        """Pages at the front of a node that the token behind it does not see."""
        window = self.groups[group].window
        return max(0, len(node.tokens) - window + 1) // self.page_tokens

    # -- shape

    def _pages(self, node: Node) -> int:
        return len(node.tokens) // self.page_tokens

    def _edge(self, tokens: IntArray) -> bytes:
        return tokens[: self.page_tokens].tobytes()

    def _nodes(self) -> Iterator[Node]:
        for root in self._roots.values():
            for child in root.children.values():
                yield from self._below(child)

    def _below(self, node: Node) -> Iterator[Node]:
        stack = [node]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def describe(self) -> dict[str, int]:
        """Size of the tree, for people."""
        pages = sum(int(np.count_nonzero(group.pool.cached)) for group in self.groups)
        return {"roots": len(self._roots), "nodes": sum(1 for _ in self._nodes()), "pages": pages}

    def check(self) -> None:
        """Assert the invariants of shape, ownership and the queues."""
        queued = {name: {id(node) for _, _, node in queue} for name, queue in self._queues.items()}
        held: list[list[npt.NDArray[np.int32]]] = [[] for _ in self.groups]
        for node in self._nodes():
            count = self._pages(node)
            assert count, "a node stands for no token"
            assert node.parent is not None, "a node is cut off"
            assert node.parent.children.get(self._edge(node.tokens)) is node, "a child is filed under a wrong edge"
            assert node.children or id(node) in queued["leaf"], "a leaf can never be evicted"
            assert all(len(node.rows[n]) == count for n in self._by_token), "tokens and pages do not fit"
            assert all(len(node.rows[n]) == 1 for n in self._states), "a node has more than one state"
            for n, group in enumerate(self.groups):
                row = node.rows[n]
                held[n].append(row[row != NO_PAGE])
                if group.kind == "full":
                    chain = group.pool.references[np.concatenate([node.parent.rows[n][-1:], row])]
                    assert (np.diff(chain) <= 0).all(), "a page is held by somebody who does not hold its ancestor"
            if any(node.rows[n][0] != NO_PAGE for n in self._states):
                assert id(node) in queued["state"], "a state can never be evicted alone"
        for n, group in enumerate(self.groups):
            mine = np.concatenate(held[n]) if held[n] else np.empty(0, np.int32)
            assert sorted(mine.tolist()) == np.flatnonzero(group.pool.cached).tolist(), "the tree holds other pages"
