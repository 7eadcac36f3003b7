"""``TokenConstraint``: what may come next in a sequence, and when it is complete.

The engine knows no text. Whatever depends on text (stop strings, grammars) implements this protocol in ``text/``, and
the replica's entry point injects it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.engine.sampling_params import SamplingParams
from headrace.runtime.batch import Mask


class TokenConstraint(Protocol):
    """Follows the output of one sample. One thread calls it; each call may raise ``ConstraintError``."""

    @property
    def ready(self) -> bool:
        """Whether it can be used: not while another thread compiles its grammar or prepares. Asked again and again."""
        ...

    @property
    def slow(self) -> bool:
        """Whether what follows a token takes long to find out. Then ``prepare`` comes before ``accept``, if it can."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow: then the sample ends, and no token is drawn to say so."""
        ...

    def allowed(self) -> Mask | None:
        """The tokens that may come next, at least one unless it is complete; None: any.

        The bits of the model's end-of-sequence tokens are set where the sample may end but need not. The array is not
        changed before the next call of ``accept`` or ``prepare``.
        """
        ...

    def prepare(self, token: int) -> None:
        """Find out on another thread what ``accept``, with the same token, and the calls after it are to say."""
        ...

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        ...

    def close(self) -> None:
        """The sample has ended: what is being prepared is wanted no more."""
        ...


ConstraintFactory = Callable[[SamplingParams], TokenConstraint | None]
