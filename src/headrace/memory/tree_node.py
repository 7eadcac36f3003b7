"""What the prefix tree is made of: groups, keys, nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.memory.commands import IntArray
from headrace.memory.pool import NO_PAGE, Pool

NOWHERE = -1  # no place in a queue, no number in a sample
TOKEN_BYTES = 4


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
class PrefixKey:
    """Prefixes are shared only under the same key.

    Attributes:
        salt: Of the tenant.
        adapter: Name of the adapter; empty: none.
        numerics: The numerics id of the program that computed the pages.
    """

    salt: str
    adapter: str = ""
    numerics: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """A cached prefix.

    Attributes:
        pages: Pages of tokens.
        rows: int32 of each group: [pages], ``NO_PAGE`` where none is needed; [1] or [0] of a state.
        branch: Pages whose tokens are in the tree, though not all that is needed to go on behind them.
    """

    pages: int
    rows: tuple[IntArray, ...]
    branch: int


class Node:
    """Pages of tokens behind a common prefix.

    Attributes:
        start: Pages before them.
        tokens: int32 [pages x page_tokens], as bytes: they are compared and looked up as a whole.
        rows: int32 [pages] of each group by token, ``NO_PAGE`` where there is none; [1] of a state, after the last.
        children: First page's tokens to node.
        last_used: When it was last found or offered.
        uses: How often it was found.
        record: Number of its last use in the sample of uses, or ``NOWHERE``.
        lost: Those of descendants that were evicted.
        place: In the queue of what may go, as a leaf; ``NOWHERE`` if it is none.
        state_place: In the same queue, for its states alone.
        state_used, state_uses, state_record: As the above, of its states.
        in_windows: Whether it is in the queue of what windows left behind.
    """

    __slots__ = (
        "children",
        "in_windows",
        "last_used",
        "lost",
        "parent",
        "place",
        "record",
        "rows",
        "start",
        "state_place",
        "state_record",
        "state_used",
        "state_uses",
        "tokens",
        "uses",
    )

    def __init__(self, parent: Node | None, start: int, tokens: bytes, rows: list[IntArray], last_used: float) -> None:
        self.parent, self.start, self.tokens, self.rows = parent, start, tokens, rows
        self.children: dict[bytes, Node] = {}
        self.last_used = self.state_used = last_used
        self.uses = self.state_uses = 0
        self.record = self.state_record = NOWHERE
        self.place = self.state_place = NOWHERE
        self.lost: tuple[int, ...] = ()
        self.in_windows = False

    def below(self) -> Iterator[Node]:
        """This node and all behind it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def as_bytes(tokens: IntArray) -> bytes:
    """Tokens as nodes hold them."""
    return np.ascontiguousarray(tokens, np.int32).tobytes()


def find(root: Node, tokens: bytes, page_bytes: int) -> tuple[list[Node], int]:
    """The nodes along a prefix.

    Args:
        root: Where to begin.
        tokens: The prefix.
        page_bytes: Bytes of a page's tokens.

    Returns:
        The nodes, and how many pages of the last one match, fewer than it has; 0 if all of them.
    """
    path: list[Node] = []
    children, position = root.children, 0
    while (child := children.get(tokens[position : position + page_bytes])) is not None:
        path.append(child)
        if not tokens.startswith(child.tokens, position):
            return path, _common(child.tokens, tokens, position) // page_bytes
        position += len(child.tokens)
        children = child.children
    return path, 0


def _common(edge: bytes, tokens: bytes, position: int) -> int:
    """Bytes that an edge has in common with what stands at ``position``."""
    count = min(len(edge), len(tokens) - position) // TOKEN_BYTES
    mine = np.frombuffer(edge, np.int32, count)
    differ = np.flatnonzero(mine != np.frombuffer(tokens, np.int32, count, position))
    return (int(differ[0]) if len(differ) else count) * TOKEN_BYTES


def row_of(path: list[Node], group: int) -> IntArray:
    """Pages of a group along a path of nodes."""
    return np.concatenate([node.rows[group] for node in path]) if path else np.empty(0, np.int32)


def row_between(path: list[Node], group: int, first: int, end: int) -> IntArray:
    """Pages ``first`` to ``end - 1`` of a group along a path of nodes."""
    parts = []
    for node in reversed(path):
        row = node.rows[group]
        if node.start < end:
            parts.append(row[max(0, first - node.start) : end - node.start])
        if node.start <= first:
            break
    return np.concatenate(parts[::-1]) if parts else np.empty(0, np.int32)


def no_state() -> IntArray:
    """The row of a state that is not there."""
    return np.full(1, NO_PAGE, np.int32)
