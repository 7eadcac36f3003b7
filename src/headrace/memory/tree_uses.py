"""``TreeUses``: when the nodes of a prefix tree were used, and what is learned of that."""

from __future__ import annotations

from headrace.memory.reuse import MOST_USES, STATE, Floats, ReuseLog
from headrace.memory.tree_node import NOWHERE, Node

MOST_GHOSTS = 32768
MOST_LOST = 8


Ghosts = dict[tuple[int, bytes], tuple[int, tuple[int, ...]]]


class TreeUses:
    """A sample of uses, followed also after the leaf was evicted: of what goes a trace is left.

    Args:
        edge_bytes: Bytes of a page's tokens.
    """

    def __init__(self, edge_bytes: int) -> None:
        self.log = ReuseLog()
        self._edge_bytes = edge_bytes
        # First page of a leaf that went, and its place -> uses, and the numbers of the last of them. When this is
        # full, those that went before these are dropped at once.
        self._ghosts: Ghosts = {}
        self._older: Ghosts = {}

    def density(self, now: float) -> Floats:
        """See ``ReuseLog.density``."""
        return self.log.density(now)

    def touch(self, path: list[Node], now: float, *, use: bool) -> None:
        """Whoever finds a prefix uses it; whoever offers it is still at it."""
        log = self.log
        if not use:
            for node in path:
                node.last_used = now
                if node.record >= 0:
                    log.renew(node.record, now)
            return
        for node in path:
            node.last_used = now
            node.uses += 1
            if node.record >= 0:
                log.use(node.record, now)
                node.record = NOWHERE
        for node in path[-2:]:  # the end of a path is what may go first
            node.record = log.see(min(node.uses, MOST_USES), now)

    def touch_states(self, node: Node, now: float) -> None:
        """Somebody goes on from the states behind a node."""
        if node.state_record != NOWHERE:
            self.log.use(node.state_record, now)
        node.state_uses += 1
        node.state_used = now
        node.state_record = self.log.see(STATE + min(node.state_uses, MOST_USES), now)

    def keep_states(self, node: Node, now: float) -> None:
        """A node has states that it had not."""
        node.state_used, node.state_uses = now, 0
        node.state_record = self.log.see(STATE, now)

    def begin(self, leaf: Node) -> None:
        """A leaf is new, or back."""
        name = leaf.start, leaf.tokens[: self._edge_bytes]
        nothing: tuple[int, tuple[int, ...]] = (NOWHERE, ())
        uses, records = self._ghosts.pop(name) if name in self._ghosts else self._older.pop(name, nothing)
        for record in records:
            self.log.use(record, leaf.last_used)
        leaf.uses = uses + 1
        leaf.record = self.log.see(min(leaf.uses, MOST_USES), leaf.last_used)

    def end(self, leaf: Node, parent: Node, edge: bytes) -> None:
        """A leaf goes. Whoever comes back to it uses it again, however much of what was behind went with it."""
        records = leaf.lost if leaf.record == NOWHERE else (*leaf.lost, leaf.record)
        if records and parent.parent is not None:
            parent.lost = (*parent.lost, *records)[-MOST_LOST:]
        self._ghosts[leaf.start, edge] = leaf.uses, records
        if len(self._ghosts) >= MOST_GHOSTS:
            self._ghosts, self._older = {}, self._ghosts

    def divide(self, node: Node, rest: Node) -> None:
        """What is known of a node goes to its end, which is split off; the front was used as often."""
        rest.uses, rest.record, rest.lost = node.uses, node.record, node.lost
        rest.state_used, rest.state_uses, rest.state_record = node.state_used, node.state_uses, node.state_record
        node.record = node.state_record = NOWHERE
        node.lost = ()
