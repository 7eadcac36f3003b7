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
        self.groups, self._page_tokens, self._edge_bytes = groups, page_tokens, page_tokens * TOKEN_BYTES
        kinds = {
            kind: [n for n, group in enumerate(groups) if group.kind == kind] for kind in ("full", "window", "state")
        }
        self._full, self._windows, self._states = kinds["full"], kinds["window"], kinds["state"]
        self._sizes = [group.pool.form.page_bytes for group in groups]
        self._full_bytes = sum(self._sizes[n] for n in self._full)
        self._state_bytes = sum(self._sizes[n] for n in self._states)
        self._by_token = (*self._full, *self._windows)
        self._page_bytes = sum(self._sizes[n] for n in self._full or self._windows) or self._state_bytes
        self.queue: EvictionQueue[Piece] = EvictionQueue(policy)
        self.behind: deque[Node] = deque()  # nodes with pages that windows left behind
        self._uses = uses
        # Group and page -> a node of which something cannot go while that page is held; that is in no queue.
        self.parked: dict[tuple[int, int], Node] = {}
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
        return self._state_size(node) > 0

    # -- giving up

    def evict(self, nbytes: int, now: float, nodes: Callable[[], Iterable[Node]]) -> int:
        """See ``PrefixTree.evict``.

        Args:
            nbytes: To free.
            now: The time.
            nodes: All nodes of the tree.
        """
        self._unpark()
        freed = self._evict_behind(nbytes)
        table = self._uses.density(now)

        def density(kinds: Ints, ages: Floats) -> Floats:
            found: Floats = table[kinds, buckets(ages)]
            return found

        while freed < nbytes and (piece := self.queue.next(now, density)) is not None:
            node, states = piece
            freed += self._drop_states(node) if states else self._cut(node, nbytes - freed)
        if freed < nbytes and self._windows:  # what windows have left at the ends of nodes that are held otherwise
            freed += sum(self._drop_windows(node, len(node.tokens), n) for node in nodes() for n in self._windows)
        self._flush()
        return freed

    def drop_below(self, top: Node) -> list[IntArray]:
        """Keep nothing of a node and of what is behind it; the pages of each group that were kept."""
        for node in list(top.below()):
            self._doom(node)
            if node is not top:
                self.unqueue(node)
                node.parent = None
        self._remove(top)
        dropped = [np.concatenate([np.empty(0, np.int32), *rows]) for rows in self.doomed]
        self._flush()
        return [pages[pages != NO_PAGE] for pages in dropped]

    def _evict_behind(self, nbytes: int) -> int:
        freed = 0
        while freed < nbytes and self.behind:
            node = self.behind.popleft()
            node.in_windows = False
            if node.parent is not None:
                freed += sum(self._drop_windows(node, self._inner(node, n), n) for n in self._windows)
                for n in self._windows:
                    inner = node.rows[n][: self._inner(node, n)]
                    for handle in inner[inner != NO_PAGE][:1].tolist():
                        self._park(node, n, handle)
        return freed

    def _park(self, node: Node, group: int, handle: int) -> None:
        """Something of a node can go only when a page is held no more; till then nobody looks at it again."""
        self.parked[group, handle] = node
        self.groups[group].pool.watch(handle)

    def _unpark(self) -> None:
        for n, group in enumerate(self.groups):
            for handle in group.pool.unheld:
                if (node := self.parked.pop((n, handle), None)) is not None:
                    self.note(node)
            group.pool.unheld.clear()

    def _cut(self, leaf: Node, nbytes: int) -> int:
        """Free pages from the end of a leaf, and its states; remove it when it is empty; park it if its end is held."""
        count = len(leaf.tokens) // self._edge_bytes
        states = self._state_size(leaf) if self._states else 0
        total = count * self._full_bytes + states
        for n in self._windows:
            total += int(np.count_nonzero(leaf.rows[n] != NO_PAGE)) * self._sizes[n]
        if total <= nbytes and not self._is_held(leaf):  # all of it, mostly
            self._doom(leaf)
            self._remove(leaf)
            return total
        held = self._held_state(leaf)
        bound = self._held_pages(leaf)
        if held is None and bound == count and not states:
            ends = ((n, leaf.rows[n].item(-1)) for n in self._by_token)
            held = next((n, handle) for n, handle in ends if handle != NO_PAGE and self.groups[n].pool.is_held(handle))
        if held is None:
            return self._cut_end(leaf, bound, nbytes)
        self.queue.remove(leaf.place)
        leaf.place = NOWHERE
        self._park(leaf, *held)
        return 0

    def _cut_end(self, leaf: Node, bound: int, nbytes: int) -> int:
        """Free what is needed of a leaf's states and of its pages behind the first ``bound``."""
        count, states = len(leaf.tokens) // self._edge_bytes, self._state_size(leaf)
        sizes = np.full(count - bound, self._full_bytes, np.int64)
        for n in self._windows:
            sizes += (leaf.rows[n][bound:] != NO_PAGE) * self._sizes[n]
        tail = np.cumsum(sizes[::-1])
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

    def _doom(self, node: Node) -> None:
        for n, row in enumerate(node.rows):
            self.doomed[n].append(row)

    def _is_held(self, leaf: Node) -> bool:
        """Whether somebody holds anything of a leaf: then its first page, if there is a group of all tokens."""
        if self._full:
            n = self._full[0]
            return self.groups[n].pool.is_held(leaf.rows[n].item(0))
        return self._held_pages(leaf) > 0 or self._held_state(leaf) is not None

    def _held_state(self, node: Node) -> tuple[int, int] | None:
        """Group and page of a state of a node that somebody holds."""
        for n in self._states:
            handle = node.rows[n].item(0)
            if handle != NO_PAGE and self.groups[n].pool.is_held(handle):
                return n, handle
        return None

    def _state_size(self, node: Node) -> int:
        """Bytes of a node's states."""
        total = 0
        for n in self._states:
            if node.rows[n].item(0) != NO_PAGE:
                total += self._sizes[n]
        return total

    def _held_pages(self, leaf: Node) -> int:
        """Pages from a leaf's start to the last that somebody holds."""
        bound = 0
        for n in self._by_token:
            row = leaf.rows[n]
            held = self.groups[n].pool.references[row]
            if held.any():
                held *= row != NO_PAGE
                bound = max(bound, int(np.flatnonzero(held)[-1]) + 1 if held.any() else 0)
        return bound

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None  # roots hold nothing and never come here
        edge = leaf.tokens[: self._edge_bytes]
        del parent.children[edge]
        leaf.parent = None
        self.unqueue(leaf)
        self._uses.end(leaf, parent, edge)
        if parent.children:
            return
        if parent.parent is not None:
            self.note(parent)
        else:
            self.emptied.add(parent)

    def _drop_states(self, node: Node) -> int:
        """Free the states of a node; if all are held, park it."""
        freed = 0
        for n in self._states:
            pool, handle = self.groups[n].pool, node.rows[n].item(0)
            if handle != NO_PAGE and not pool.is_held(handle):
                self.doomed[n].append(node.rows[n])
                node.rows[n] = no_state()
                freed += self._sizes[n]
        if freed:
            self.note(node)
        elif (held := self._held_state(node)) is not None:
            self.queue.remove(node.state_place)
            node.state_place = NOWHERE
            self._park(node, *held)
        return freed

    def _drop_windows(self, node: Node, pages: int, group: int) -> int:
        """Free the pages of a window group at the front of a node."""
        pool, row = self.groups[group].pool, node.rows[group].copy()
        inner = row[:pages]
        gone = (inner != NO_PAGE) & (pool.references[inner] == 0)
        self.doomed[group].append(inner[gone])
        inner[gone] = NO_PAGE
        node.rows[group] = row
        return int(np.count_nonzero(gone)) * self._sizes[group]

    def _flush(self) -> None:
        for group, doomed in zip(self.groups, self.doomed, strict=True):
            if doomed:
                pages = np.concatenate(doomed)
                group.pool.uncache(pages if group.kind == "full" else pages[pages != NO_PAGE])
                doomed.clear()

    # -- shape

    def _end(self, node: Node) -> int:
        return node.start + len(node.tokens) // self._edge_bytes

    def _inner(self, node: Node, group: int) -> int:
        """Pages at the front of a node that the token behind it does not see."""
        window = self.groups[group].window
        return max(0, len(node.tokens) // TOKEN_BYTES - window + 1) // self._page_tokens

    def has_inner(self, node: Node) -> bool:
        """Whether windows left something behind in a node."""
        return any((node.rows[n][: self._inner(node, n)] != NO_PAGE).any() for n in self._windows)
