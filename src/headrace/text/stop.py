"""``StopMatcher``: where a text that arrives in pieces is ended by a stop string.

An Aho-Corasick automaton (Aho and Corasick, 1975) over the stop strings: its state after each character is the
longest suffix of the text that begins a stop string, which is exactly what must not be shown yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(slots=True)
class _Node:
    """A prefix of some stop string.

    Attributes:
        next: The node of the prefix with one more character.
        depth: Characters of the prefix.
        fail: The node of its longest proper suffix that is a prefix too.
        stop: The longest stop string that is a suffix of the prefix.
        hold: Characters at the end of the text that a longer stop string may still claim.
    """

    depth: int
    next: dict[str, _Node] = field(default_factory=dict)
    fail: _Node | None = None
    stop: str | None = None
    hold: int = 0


class StopAutomaton:
    """The stop strings of one request, compiled. Building takes time linear in their length."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.root = _Node(depth=0)
        for stop in stops:
            node = self.root
            for char in stop:
                node = node.next.setdefault(char, _Node(depth=node.depth + 1))
            if stop:
                node.stop = stop
        # Breadth first, so that a node's suffixes are complete before it.
        queue = deque([self.root])
        while queue:
            node = queue.popleft()
            for char, child in node.next.items():
                child.fail = self.root if node is self.root else self.step(node.fail or self.root, char)
                child.stop = child.stop or child.fail.stop
                child.hold = child.depth if child.next else child.fail.hold
                queue.append(child)

    def step(self, node: _Node, char: str) -> _Node:
        """The state after ``char``."""
        while char not in node.next:
            if node.fail is None:
                return node
            node = node.fail
        return node.next[char]


# Shared, since it never changes once built: the n samples of a request come one after the other.
_compiled = lru_cache(maxsize=8)(StopAutomaton)


@dataclass(frozen=True, slots=True)
class StopText:
    """What a piece of text becomes.

    Attributes:
        text: What can be shown now.
        stop: The stop string that ended the text, or None.
    """

    text: str
    stop: str | None = None


class StopMatcher:
    """Finds the first stop string in a text that arrives in pieces.

    The first is the one that ends first; of several that end together, the one that begins first. Text that
    may still become part of a stop string is held back; ``finish`` releases it. What comes after a stop string
    is dropped, what comes before it never is.

    Args:
        stops: The stop strings; empty ones are ignored.
        include_stop: Show the stop string too.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._automaton = _compiled(tuple(stops))
        self._node = self._automaton.root
        self._held = ""
        self._include = include_stop
        self._ended = False

    def push(self, text: str, *, counts: bool = True) -> StopText:
        """Take the next piece.

        Args:
            text: The piece.
            counts: Whether a stop string that this piece completes ends the text; if not, it is text.
        """
        if self._ended:
            return StopText("")
        node, step = self._node, self._automaton.step
        for i, char in enumerate(text):
            node = step(node, char)
            if counts and node.stop is not None:
                return self._end(self._held + text[: i + 1], node.stop)
        self._node = node
        seen = self._held + text
        shown = len(seen) - node.hold
        self._held = seen[shown:]
        return StopText(seen[:shown])

    def release(self) -> str:
        """Something other than text comes next, across which no stop string reaches: returns what was held back."""
        held, self._held, self._node = self._held, "", self._automaton.root
        return held

    def finish(self) -> str:
        """The text ends for another reason: returns what was held back."""
        held, self._held, self._ended = self._held, "", True
        return held

    def _end(self, seen: str, stop: str) -> StopText:
        self._held, self._ended = "", True
        return StopText(seen if self._include else seen[: len(seen) - len(stop)], stop)
