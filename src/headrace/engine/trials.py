"""``Trials``: which sequences may have made a batch fail, and are to be tried alone."""

from __future__ import annotations

from headrace.engine.sequence import Sequence


class Trials:
    """Suspects, one after the other. A trial ends when a sequence draws a token, fails, or is taken back."""

    def __init__(self) -> None:
        self.suspects: list[Sequence] = []

    @property
    def suspect(self) -> Sequence | None:
        """Who is to run alone now; None: nobody is suspected."""
        return self.suspects[0] if self.suspects else None

    def add(self, suspects: list[Sequence]) -> None:
        """These come before those that are suspected already."""
        self.suspects = [*suspects, *(s for s in self.suspects if s not in suspects)]

    def end(self, sequence: Sequence) -> bool:
        """Suspect a sequence no more; whether it was."""
        suspected = sequence in self.suspects
        if suspected:
            self.suspects.remove(sequence)
        return suspected
