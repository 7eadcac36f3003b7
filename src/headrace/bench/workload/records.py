"""What a load asks for, before any token is drawn: sessions of turns, whose prompts are made of named segments.

Two segments with the same key hold the same tokens, in every prompt of a round; that is how prefixes are shared. A
workload says nothing of when a session begins, unless a trace does, and nothing of the server.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Segment(NamedTuple):
    """A piece of a prompt.

    Attributes:
        key: Its identity: one key names one sequence of tokens. A segment may be cut short: with the same key and fewer
            tokens it holds the first of them.
        tokens: How many tokens, at least 1.
    """

    key: str
    tokens: int


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session.

    Attributes:
        segments: The prompt, or with ``continues`` what comes after the turn before and its answer.
        output_tokens: How many tokens to ask for, at least 1.
        continues: The prompt begins with the prompt and the answer of the turn before.
        think: Seconds between the end of the turn before and this one's due moment.
    """

    segments: tuple[Segment, ...]
    output_tokens: int
    continues: bool = False
    think: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of the segments."""
        return sum(segment.tokens for segment in self.segments)


class Session(msgspec.Struct, frozen=True):
    """Turns that one user asks in order, each after the answer to the one before.

    Attributes:
        turns: At least one.
        start: Seconds from the start of the trace that it comes from to its first turn; None leaves that to the
            arrival process.
    """

    turns: tuple[Turn, ...]
    start: float | None = None


class Workload(msgspec.Struct, frozen=True):
    """Sessions in the order in which they begin.

    Attributes:
        name: Such as ``shared-prefix`` or ``mooncake``.
        parameters: What it was made from, for the report: name to value as given.
        sessions: The sessions.
        skipped: Requests of a trace that were left out, reason to count, such as longer than the context.
    """

    name: str
    parameters: dict[str, str | int | float | None]
    sessions: tuple[Session, ...]
    skipped: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def requests(self) -> int:
        """Turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)
