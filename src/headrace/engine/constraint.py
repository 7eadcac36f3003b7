"""``TokenConstraint``: what may come next in a sequence, and when it is complete.

The engine knows no text. Whatever depends on text (stop strings, later grammars) implements this protocol in
``text/``, and the replica's entry point injects it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.engine.sampling_params import SamplingParams


class TokenConstraint(Protocol):
    """Follows the output of one sample."""

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        ...


ConstraintFactory = Callable[[SamplingParams], TokenConstraint | None]
