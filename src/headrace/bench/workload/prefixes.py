"""How much of a workload an unlimited prefix cache would save."""

from __future__ import annotations

from headrace.bench.workload.records import Segment, Turn, Workload

ROOT = 0


def ideal_cached_share(workload: Workload) -> float:
    """The share of prompt tokens that a cache which forgets nothing would have found.

    Sessions are asked one after the other, in the order of their starts, each to its end. A prompt's segment is found
    if an earlier prompt began with the same segments up to and including it; where it was cut shorter then, so much of
    it is found. A turn that continues finds the prompt and the answer of the turn before; both count as tokens of its
    prompt. Takes time linear in the number of segments.

    Returns:
        From 0 to 1; 0 if there are no prompts.
    """
    tree = _Tree()
    found = total = 0
    for session in sorted(workload.sessions, key=lambda session: session.start or 0.0):
        history = 0
        for turn in session.turns:
            if turn.continues:
                # What comes after an answer is new: the answer is nobody else's.
                prompt = history + turn.tokens
                found += history
            else:
                prompt = turn.tokens
                found += tree.find_and_add(turn)
            total += prompt
            history = prompt + turn.output_tokens
    return found / total if total else 0.0


class _Tree:
    """Prompts seen, as a tree whose edges are whole segments."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, Segment], int] = {}
        self._longest: dict[tuple[int, str], int] = {}  # of a key, below a node

    def find_and_add(self, turn: Turn) -> int:
        """Tokens at the prompt's beginning that were seen; it counts as seen from now on."""
        node, found = ROOT, 0
        for segment in turn.segments:
            child = self._children.get((node, segment))
            if child is None:
                place = node, segment.key
                longest = self._longest.get(place, 0)
                found += min(longest, segment.tokens)  # below a node that is new itself this is 0
                self._longest[place] = max(longest, segment.tokens)
                child = self._children[node, segment] = len(self._children) + 1
            else:
                found += segment.tokens
            node = child
        return found
