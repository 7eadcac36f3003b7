"""``PrefixTree``: a radix tree over token pages, so that equal prefixes are computed once.

An edge holds whole pages of tokens; children are told apart by their first page::

    root("tenant a") ──[ 0..31 ]──┬──[ 32..63 ]            two pages, shared by both branches
                      h4 h7       │    h9 h2
                                  └──[ 32..47 ]
                                       h5

Invariant: whoever holds a page of a node holds the pages of all its ancestors too. So the pages that only the tree
holds form whole subtrees, and cutting leaves from their ends can free every one of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator

import numpy as np

from headrace.memory.pool import IntArray, Pool


class Node:
    """Pages of tokens behind a common prefix.

    Attributes:
        tokens: int32 [pages x page_tokens].
        handles: int32 [pages].
        children: First page's token bytes to node.
        last_used: Logical time of the last match or insert that went through the whole of it or a part.
    """

    __slots__ = ("children", "handles", "last_used", "parent", "queued", "tokens")

    def __init__(self, parent: Node | None, tokens: IntArray, handles: IntArray, last_used: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.handles = handles
        self.children: dict[bytes, Node] = {}
        self.last_used = last_used
        self.queued = False


class PrefixTree:
    """A radix tree over token pages, one root a key (tenant salt; later adapter and numerics id).

    Args:
        pool: Whose pages the nodes hold, one reference each.
        page_tokens: Tokens of a page.
    """

    def __init__(self, pool: Pool, page_tokens: int) -> None:
        self.pool = pool
        self.page_tokens = page_tokens
        self._holds = np.zeros(pool.capacity, np.bool_)
        self._roots: dict[Hashable, Node] = {}
        self._clock = itertools.count(1)
        self._order = itertools.count()
        # Leaves by time of last use. An entry may be stale (the leaf was used since, or is a leaf no more): it is
        # put right when it comes up, so that a match costs nothing here.
        self._leaves: list[tuple[int, int, Node]] = []

    def match(self, key: Hashable, tokens: IntArray) -> IntArray:
        """Find the longest cached prefix, in whole pages, and take a reference to each of its pages.

        Args:
            key: Which root.
            tokens: int32 [n].

        Returns:
            int32 [pages] handles; the caller releases them.
        """
        root = self._roots.get(key)
        found: list[IntArray] = []
        if root is not None:
            for node, pages in self._walk(root, tokens):
                found.append(node.handles[:pages])
        handles = np.concatenate(found) if found else np.empty(0, np.int32)
        self.pool.retain(handles)
        return handles

    def insert(self, key: Hashable, tokens: IntArray, handles: IntArray) -> IntArray:
        """Offer a prefix and its pages; where the tree already has equal pages, the caller gets those instead.

        The caller's references move: a page that the tree had is exchanged (the caller's own is released, the tree's
        retained for the caller), a page that it had not is now held by both.

        Args:
            key: Which root.
            tokens: int32 [pages x page_tokens].
            handles: int32 [pages], each held by the caller.

        Returns:
            int32 [pages] handles that the caller holds from now on.
        """
        now = next(self._clock)
        root = self._roots.setdefault(key, Node(None, np.empty(0, np.int32), np.empty(0, np.int32), now))
        row = handles.copy()
        node, done = root, 0
        for node, pages in self._walk(root, tokens):
            row[done : done + pages] = node.handles[:pages]
            done += pages
            if pages < len(node.handles):
                self._split(node, pages)
        self.pool.retain(row[:done])
        self.pool.release(handles[:done])
        if done < len(handles):
            start = done * self.page_tokens
            leaf = Node(node, tokens[start:].copy(), handles[done:].copy(), now)
            node.children[self._edge(leaf.tokens)] = leaf
            self.pool.retain(leaf.handles)
            self._holds[leaf.handles] = True
            self._queue(leaf)
        return row

    def evict(self, count: int) -> int:
        """Free up to ``count`` pages that nobody but the tree holds, least recently used leaves first.

        Returns:
            Pages freed; fewer than asked when nothing else is free to go.
        """
        freed, held = 0, []
        while freed < count and self._leaves:
            time, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if node.children:
                continue
            if time != node.last_used:
                self._queue(node)
                continue
            if self.pool.references[node.handles[-1]] > 1:
                held.append(node)
                continue
            freed += self._cut(node, count - freed)
        for node in held:
            self._queue(node)
        return freed

    def evictable(self) -> int:
        """Pages that only the tree holds; ``evict`` can free all of them."""
        return int(np.count_nonzero(self._holds & (self.pool.references == 1)))

    def _walk(self, root: Node, tokens: IntArray) -> Iterator[tuple[Node, int]]:
        """Yield the nodes along ``tokens`` with how many of their pages match; only the last may match in part."""
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
            whole = pages == len(child.handles)
            position += pages * self.page_tokens
            node = child
            yield child, pages
            if not whole:
                return

    def _edge(self, tokens: IntArray) -> bytes:
        return tokens[: self.page_tokens].tobytes()

    def _split(self, node: Node, pages: int) -> None:
        """Keep the first pages in the node and move the rest into a child of it."""
        cut = pages * self.page_tokens
        rest = Node(node, node.tokens[cut:], node.handles[pages:], node.last_used)
        rest.children = node.children
        for child in rest.children.values():
            child.parent = rest
        node.tokens, node.handles = node.tokens[:cut], node.handles[:pages]
        node.children = {self._edge(rest.tokens): rest}
        if not rest.children:
            self._queue(rest)

    def _queue(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            heapq.heappush(self._leaves, (node.last_used, next(self._order), node))

    def _cut(self, leaf: Node, count: int) -> int:
        """Free pages from the end of a leaf; remove it when it is empty."""
        references = self.pool.references[leaf.handles]
        free_tail = len(references) - int(np.flatnonzero(references > 1)[-1] + 1 if (references > 1).any() else 0)
        pages = min(free_tail, count)
        keep = len(leaf.handles) - pages
        self._holds[leaf.handles[keep:]] = False
        self.pool.release(leaf.handles[keep:])
        parent = leaf.parent
        assert parent is not None  # roots hold no pages and never come here
        if keep:
            leaf.tokens, leaf.handles = leaf.tokens[: keep * self.page_tokens], leaf.handles[:keep]
            self._queue(leaf)
        else:
            del parent.children[self._edge(leaf.tokens)]
            leaf.parent = None
            if not parent.children and parent.parent is not None:
                self._queue(parent)
            self._drop_empty_roots(parent)
        return pages

    def _drop_empty_roots(self, node: Node) -> None:
        if node.parent is None and not node.children:
            self._roots = {key: root for key, root in self._roots.items() if root is not node}

    def _nodes(self) -> Iterator[Node]:
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def handles(self) -> IntArray:
        """int32 [pages]: every page that the tree holds."""
        return np.flatnonzero(self._holds).astype(np.int32)

    def describe(self) -> dict[str, int]:
        """Size of the tree, for people."""
        return {"roots": len(self._roots), "nodes": sum(1 for _ in self._nodes()), "pages": len(self.handles())}

    def check(self) -> None:
        """Assert the invariants of shape, ownership and the eviction queue."""
        queued = {id(node) for _, _, node in self._leaves}
        held: list[int] = []
        for node in self._nodes():
            held.extend(node.handles.tolist())
            assert len(node.handles) > 0, "a node holds no page"
            assert len(node.tokens) == len(node.handles) * self.page_tokens, "tokens and pages do not fit"
            assert node.parent is not None, "a node is cut off"
            assert node.parent.children.get(self._edge(node.tokens)) is node, "a child is filed under a wrong edge"
            assert node.children or id(node) in queued, "a leaf can never be evicted"
            chain = self.pool.references[node.handles]
            above = node.parent.handles[-1:]
            chain = np.concatenate([self.pool.references[above], chain])
            assert (np.diff(chain) <= 0).all(), "a page is held by somebody who does not hold its ancestor"
        assert sorted(held) == self.handles().tolist(), "a page stands in the tree twice, or is not known to be in it"
