"""``TreeEviction``: what of a prefix tree goes when memory is full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from headrace.memory.commands import IntArray
from headrace.memory.eviction import EvictionQueue, Policy, RecomputeCost
from headrace.memory.pool import NO_PAGE
from headrace.memory.reuse import MOST_USES, STATE, Floats, Ints, buckets
from headrace.memory.tree_node import NOWHERE, TOKEN_BYTES, CachedGroup, Node, no_state
from headrace.memory.tree_uses import TreeUses

Piece = tuple[Node, bool]  # a leaf, or (True) the states of a node alone


class TreeEviction:
    """Queues of what may go, and how it goes.

    Args:
        groups: What a prefix consists of.
        page_tokens: Tokens of a page.
        policy: What goes first.
        uses: What is learned of uses.
    """

    def __init__(self, groups: Sequence[CachedGroup], page_tokens: int, policy: Policy, uses: TreeUses) -> None:
        self.cost = RecomputeCost()
        self.emptied: set[Node] = set()  # roots that lost their last child
        self._groups, self._page_tokens, self._edge_bytes = groups, page_tokens, page_tokens * TOKEN_BYTES
        kinds = {
            kind: [n for n, group in enumerate(groups) if group.kind == kind] for kind in ("full", "window", "state")
        }
        self._full, self._windows, self._states = kinds["full"], kinds["window"], kinds["state"]
        self._full_bytes = sum(groups[n].pool.form.page_bytes for n in self._full)
        self._state_bytes = sum(groups[n].pool.form.page_bytes for n in self._states)
        self._by_token = (*self._full, *self._windows)
        by_token = self._full or self._windows
        self._page_bytes = sum(groups[n].pool.form.page_bytes for n in by_token) or self._state_bytes
        self.queue: EvictionQueue[Piece] = EvictionQueue(policy)
        self.behind: deque[Node] = deque()  # nodes with pages that windows left behind
        self._uses = uses
        self.doomed: list[list[IntArray]] = [[] for _ in groups]  # pages to free at the end of a call

    # -- queues

    def note(self, node: Node) -> None:
        """Put a node where it belongs: it may be a leaf now or none any more, or have states or have lost them."""
        if node.parent is None:
            return
        leaf = not node.children
        if leaf or node.place != NOWHERE:
            node.place = self._set(node.place, (node, False), leaf, node.last_used, node.uses, self._leaf_cost)
        stateful = self.has_state(node)
        if stateful or node.state_place != NOWHERE:
            place = self._set(
                node.state_place, (node, True), stateful, node.state_used, node.state_uses, self._state_cost
            )
            node.state_place = place
        if self._windows and not node.in_windows and self.has_inner(node):
            node.in_windows = True
            self.behind.append(node)

    def _set(self, place: int, piece: Piece, there: bool, used: float, uses: int, cost: Callable[[Node], float]) -> int:
        if not there:
            self.queue.remove(place)
            return NOWHERE
        kind = min(uses, MOST_USES) + (STATE if piece[1] else 0)
        if place == NOWHERE:
            return self.queue.put(piece, used, kind, cost(piece[0]))
        self.queue.change(place, used, kind, cost(piece[0]))
        return place

    def unqueue(self, node: Node) -> None:
        """A node is gone, or changes so that it must be noted anew."""
        if node.place != NOWHERE:
            self.queue.remove(node.place)
            node.place = NOWHERE
        if node.state_place != NOWHERE:
            self.queue.remove(node.state_place)
            node.state_place = NOWHERE

    def _leaf_cost(self, node: Node) -> float:
        """Of a byte at a leaf's end: its last page, and with it the states behind that."""
        if self.has_state(node):
            return self._back_to_state(node) / (self._state_bytes + (self._page_bytes if self._by_token else 0))
        end = self._end(node)
        first = end - 1 if self._by_token else node.start
        return self.cost.of(first * self._page_tokens, end * self._page_tokens) / self._page_bytes

    def _state_cost(self, node: Node) -> float:
        """Of a byte of the states behind a node."""
        return self._back_to_state(node) / self._state_bytes

    def _back_to_state(self, node: Node) -> float:
        """What it costs to go on from the states before those behind a node."""
        before = node.parent
        while before is not None and before.parent is not None and not self.has_state(before):
            before = before.parent
        start = 0 if before is None else self._end(before)
        return self.cost.of(start * self._page_tokens, self._end(node) * self._page_tokens)

    def has_state(self, node: Node) -> bool:
        """Whether there is a state behind a node."""
        return bool(self._states) and any(node.rows[n][0] != NO_PAGE for n in self._states)

    # -- giving up

    def evict(self, nbytes: int, now: float, nodes: Callable[[], Iterable[Node]]) -> int:
        """See ``PrefixTree.evict``.

        Args:
            nbytes: To free.
            now: The time.
            nodes: All nodes of the tree.
        """
        freed = self._evict_behind(nbytes)
        held: list[Node] = []
        table = self._uses.density(now)

        def density(kinds: Ints, ages: Floats) -> Floats:
            found: Floats = table[kinds, buckets(ages)]
            return found

        while freed < nbytes and (piece := self.queue.next(now, density)) is not None:
            node, states = piece
            some = self._drop_states(node) if states else self._cut(node, nbytes - freed)
            if some is not None:
                freed += some
            else:
                held.append(node)
                self.queue.remove(node.state_place if states else node.place)
                if states:
                    node.state_place = NOWHERE
                else:
                    node.place = NOWHERE
        for node in held:
            self.note(node)
        if freed < nbytes and self._windows:  # what windows have left at the ends of nodes that are held otherwise
            freed += sum(self._drop_windows(node, len(node.tokens), n) for node in nodes() for n in self._windows)
        self._flush()
        return freed

    def drop_below(self, top: Node) -> None:
        """Keep nothing of a node and of what is behind it."""
        for node in list(top.below()):
            for n, row in enumerate(node.rows):
                self.doomed[n].append(row)
            if node is not top:
                self.unqueue(node)
                node.parent = None
        self._remove(top)
        self._flush()

    def _evict_behind(self, nbytes: int) -> int:
        freed = 0
        held: list[Node] = []
        while freed < nbytes and self.behind:
            node = self.behind.popleft()
            node.in_windows = False
            if node.parent is not None:
                freed += sum(self._drop_windows(node, self._inner(node, n), n) for n in self._windows)
                held.append(node)
        for node in held:  # pages that somebody holds are still there
            self.note(node)
        return freed

    def _cut(self, leaf: Node, nbytes: int) -> int | None:
        """Free pages from the end of a leaf, and its states; remove it when it is empty. None if its end is held."""
        states = self._lone_states(leaf) if self._states else 0
        if states is None:
            return None
        count = len(leaf.tokens) // self._edge_bytes
        bound = self._held_pages(leaf)
        total = count * self._full_bytes + states
        for n in self._windows:
            total += int(np.count_nonzero(leaf.rows[n] != NO_PAGE)) * self._groups[n].pool.form.page_bytes
        if not bound and total <= nbytes:  # all of it, mostly
            for doomed, row in zip(self.doomed, leaf.rows, strict=True):
                doomed.append(row)
            self._remove(leaf)
            return total
        sizes = self._sizes(leaf, bound)
        tail = np.cumsum(sizes[::-1])
        if not len(tail) and not states:
            return None
        pages = 0 if states >= nbytes else min(len(tail), int(np.searchsorted(tail, nbytes - states)) + 1)
        keep = count - pages
        for n in self._by_token:
            self.doomed[n].append(leaf.rows[n][keep:])
        for n in self._states:
            self.doomed[n].append(leaf.rows[n])
            leaf.rows[n] = no_state()
        if keep and self._by_token:
            for n in self._by_token:
                leaf.rows[n] = leaf.rows[n][:keep]
            leaf.tokens = leaf.tokens[: keep * self._edge_bytes]
            self.note(leaf)
        else:
            self._remove(leaf)
        return (int(tail[pages - 1]) if pages else 0) + states

    def _lone_states(self, node: Node) -> int | None:
        """Bytes of a node's states; None if somebody holds one."""
        total = 0
        for n in self._states:
            pool, handle = self._groups[n].pool, int(node.rows[n][0])
            if handle != NO_PAGE:
                if pool.references[handle]:
                    return None
                total += pool.form.page_bytes
        return total

    def _held_pages(self, leaf: Node) -> int:
        """Pages from a leaf's start to the last that somebody holds."""
        bound = 0
        for n in self._by_token:
            row = leaf.rows[n]
            held = self._groups[n].pool.references[row]
            if held.any():
                held *= row != NO_PAGE
                bound = max(bound, int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0)
        return bound

    def _sizes(self, leaf: Node, first: int) -> Ints:
        """Bytes of each page of tokens from ``first`` on."""
        sizes = np.full(self._end(leaf) - leaf.start - first, self._full_bytes, np.int64)
        for n in self._windows:
            sizes += (leaf.rows[n][first:] != NO_PAGE) * self._groups[n].pool.form.page_bytes
        return sizes

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None  # roots hold nothing and never come here
        edge = leaf.tokens[: self._edge_bytes]
        del parent.children[edge]
        leaf.parent = None
        self.unqueue(leaf)
        self._uses.end(leaf, parent)
        if parent.parent is not None:
            self.note(parent)
        elif not parent.children:
            self.emptied.add(parent)

    def _drop_states(self, node: Node) -> int | None:
        """Free the states of a node; None if all are held."""
        freed = 0
        for n in self._states:
            pool, row = self._groups[n].pool, node.rows[n]
            if row[0] != NO_PAGE and not pool.references[row[0]]:
                self.doomed[n].append(row)
                node.rows[n] = no_state()
                freed += pool.form.page_bytes
        if not freed:
            return None
        self.note(node)
        return freed

    def _drop_windows(self, node: Node, pages: int, group: int) -> int:
        """Free the pages of a window group at the front of a node."""
        pool, row = self._groups[group].pool, node.rows[group].copy()
        inner = row[:pages]
        gone = (inner != NO_PAGE) & (pool.references[inner] == 0)
        self.doomed[group].append(inner[gone])
        inner[gone] = NO_PAGE
        node.rows[group] = row
        return int(np.count_nonzero(gone)) * pool.form.page_bytes

    def _flush(self) -> None:
        for group, doomed in zip(self._groups, self.doomed, strict=True):
            if doomed:
                pages = np.concatenate(doomed)
                group.pool.uncache(pages if group.kind == "full" else pages[pages != NO_PAGE])
                doomed.clear()

    # -- shape

    def _end(self, node: Node) -> int:
        return node.start + len(node.tokens) // self._edge_bytes

    def _inner(self, node: Node, group: int) -> int:
        """Pages at the front of a node that the token behind it does not see."""
        window = self._groups[group].window
        return max(0, len(node.tokens) // TOKEN_BYTES - window + 1) // self._page_tokens

    def has_inner(self, node: Node) -> bool:
        """Whether windows left something behind in a node."""
        return any((node.rows[n][: self._inner(node, n)] != NO_PAGE).any() for n in self._windows)
