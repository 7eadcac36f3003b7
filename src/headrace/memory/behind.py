"""``Tiers``: what lies behind the arena, as the scheduler sees it. Here that is nothing; see ``TieredMemory``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.memory.commands import IntArray
from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.state_memory import Holding, StateMemory

RecomputeSeconds = Callable[[int, int], float]  # to compute from one number of tokens to another


@dataclass(slots=True, eq=False)
class Fetch:
    """A prefix that is being loaded.

    Attributes:
        key: Root of the prefix tree.
        tokens: int32, of the prefix.
        digests: Of the pages that come.
        deadline: When it is given up.
        state: How it stands. Once ``done``, an ordinary match finds the prefix.
    """

    key: PrefixKey
    tokens: IntArray
    digests: list[bytes]
    deadline: float
    state: Literal["loading", "done", "failed"] = "loading"


NOTHING = Fetch(PrefixKey(""), np.empty(0, np.int32), [], 0.0, "failed")  # of who asked, and there was nothing to load


class Tiers:
    """No tiers: the arena is all there is.

    Args:
        memory: The arena, its pools and the prefix tree.

    Attributes:
        loaded_tokens: Tokens whose state came from tiers so far.
    """

    present = False

    def __init__(self, memory: StateMemory) -> None:
        self.memory = memory
        self.loaded_tokens = 0

    def fetch(self, key: PrefixKey, tokens: IntArray, recompute_seconds: RecomputeSeconds) -> Fetch | None:
        """Start loading what a sequence's prefix has in tiers; None if there is nothing, or computing is faster."""
        return None

    def after_share(self, key: PrefixKey, tokens: IntArray, held: Holding) -> None:
        """Store a prefix that was offered to the tree."""

    def planned(self, step: int) -> None:
        """A batch has taken the memory's commands."""

    def collected(self, step: int) -> list[Fetch]:
        """A batch is done; gives the fetches that are over."""
        return []

    def forget(self, key: PrefixKey, tokens: IntArray, pages: Sequence[IntArray]) -> list[Fetch]:
        """A prefix is not to be trusted, nor these pages that the arena had of it; gives the fetches that failed."""
        return []

    def reset(self) -> list[Fetch]:
        """The memory is about to be emptied; gives the fetches that failed of it."""
        return []

    @property
    def needs_batch(self) -> bool:
        """Whether a transfer waits for commands that no batch has taken."""
        return False

    @property
    def waiting(self) -> int:
        """Transfers that have not ended."""
        return 0

    def wait(self, seconds: float) -> None:
        """Wait until a transfer has ended, or so long."""

    def close(self, seconds: float) -> bool:
        """Write what is to be kept, in so many seconds; whether all was."""
        return True

    def describe(self) -> dict[str, dict[str, int]]:
        """How full each tier is, what it has lost and how often it has failed."""
        return {}

    def check(self, holdings: Iterable[Holding]) -> None:
        """Assert the invariants of the memory and what is behind it, given what all sequences hold."""
        self.memory.check(holdings)
