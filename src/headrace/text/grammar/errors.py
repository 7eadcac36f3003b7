"""What goes wrong with a grammar after its source has passed the gate."""

from __future__ import annotations

from headrace.errors import ConstraintError


class GrammarError(ConstraintError):
    """A grammar cannot be compiled or followed: it is too complex, or a token does not fit it."""
