"""Scheduling policy: pure functions over numbers, no state, no side effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def prefill_budget(
    *,
    max_tokens: int,
    decode_rows: int,
    decode_pairs: int,
    context: int,
    max_seconds: float | None,
    estimate: Callable[[int, int], float],
    granule: int,
) -> int:
    """How many prompt tokens may join a step beside its decode rows.

    At least ``granule`` tokens are let in, so that prompts always progress. For whom the bound on time counts, see
    ``Budget``.

    Args:
        max_tokens: Most tokens of a step.
        decode_rows: Sequences that decode in it, one token each.
        decode_pairs: Their (query, key) pairs.
        context: Tokens already computed of the prompt that comes first.
        max_seconds: Longest step wanted, or None.
        estimate: Seconds of a step, from its tokens and pairs.
        granule: Smallest piece of a prompt worth a step.
    """
    room = max(max_tokens - decode_rows, 0)
    if max_seconds is None:
        return room

    def fits(tokens: int) -> bool:
        pairs = decode_pairs + tokens * context + tokens * tokens // 2
        return estimate(decode_rows + tokens, pairs) <= max_seconds

    low, high = min(granule, room), room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(slots=True)
class Budget:
    """Prompt tokens that may still join a step.

    The bound on a step's time is for those that decode in it, and for a prompt that waits for its first token. A
    prompt that is more urgent than all of the former, and as urgent as the latter, need not heed it.

    Attributes:
        room: As many fit into a step.
        bounded: As many as the time allows.
        decoding: Lowest priority of those that decode; None: nobody does.
        prompt: Lowest priority of prompts that have taken a part; None: none yet.
    """

    room: int
    bounded: int
    decoding: int | None
    prompt: int | None = None

    def left(self, priority: int) -> int:
        """Tokens for a sequence of this priority."""
        someone_decodes = self.decoding is not None and priority >= self.decoding
        someone_is_first = self.prompt is not None and priority > self.prompt
        return min(self.room, self.bounded) if someone_decodes or someone_is_first else self.room

    def take(self, priority: int, tokens: int) -> None:
        """A prompt of this priority takes so many."""
        self.room -= tokens
        self.bounded -= tokens
        if tokens:
            self.prompt = priority if self.prompt is None else min(self.prompt, priority)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the state of a prompt is kept. It is of fixed size and there only where a chunk ends.

    Attributes:
        granule: States are found again only at its multiples.
        spacing: A multiple of it; one is kept at each multiple of that.
        branch: And one here, where the prompt leaves what is cached.
    """

    granule: int
    spacing: int
    branch: int

    def next(self, computed: int) -> int:
        """The first place behind so many tokens."""
        place = (computed // self.spacing + 1) * self.spacing
        return self.branch if computed < self.branch < place else place

    def has(self, computed: int, known: int) -> bool:
        """Whether the state after ``computed`` of ``known`` tokens is kept: also that at the last multiple."""
        return computed in (self.branch, known // self.granule * self.granule) or computed % self.spacing == 0


def chunk(computed: int, pending: int, budget: int, places: Places | None = None) -> int:
    """How many of a prompt's tokens join a step.

    With states a chunk ends at the last multiple of the granule that it reaches, but not behind the next place where
    one is kept; what is left of the prompt comes in the next step.

    Args:
        computed: Tokens of the sequence computed before.
        pending: Those that are not.
        budget: Most tokens.
        places: Of its states; None: it has none, and chunks may end anywhere.
    """
    count = min(pending, budget)
    if places is None:
        return count
    end = min(computed + count, places.next(computed))
    rounded = end // places.granule * places.granule - computed
    return rounded if rounded > 0 else count


def may_admit(*, running: int, fits: Callable[[int], bool]) -> bool:
    """Whether a waiting sequence should start.

    Beyond its own prompt it leaves a page for each running sequence, which may need one at the next step: starting a
    sequence only to preempt it at once would waste its prefill. With nothing running there is nothing to wait for.

    Args:
        running: Sequences that run.
        fits: Whether its prompt fits if so many pages are left for others.
    """
    return running == 0 or fits(running)
