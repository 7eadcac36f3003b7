"""What goes wrong with a grammar after its source has passed the gate."""

from __future__ import annotations

from headrace.errors import HeadraceError


class GrammarError(HeadraceError):
    """A grammar cannot be compiled or followed: it is too complex, or a token does not fit it.

    Args:
        message: What is wrong, in one sentence.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
