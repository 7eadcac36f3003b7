"""The white space between the tokens of JSON: bounded, so that a model cannot go on with it for ever."""

from __future__ import annotations

from enum import Enum

# A newline and the indentation of 32 levels of two spaces, or a space, or nothing.
_GAP = r"([ ]|\n[ \t]{0,64})?"


class Spacing(Enum):
    """How JSON is laid out.

    Attributes:
        COMPACT: ``{"a": 1, "b": [2, 3]}``, what Python's ``json.dumps`` writes and chat templates with it.
        FLEXIBLE: Besides, no space or a newline with indentation after ``{``, ``[`` and ``,`` and before ``}`` and
            ``]``; one space or none after ``:``.
    """

    COMPACT = "compact"
    FLEXIBLE = "flexible"

    @property
    def colon(self) -> str:
        """What follows a key, as a Lark terminal; so the others."""
        return '": "' if self is Spacing.COMPACT else "/:[ ]?/"

    @property
    def comma(self) -> str:
        """What parts two members or items."""
        return '", "' if self is Spacing.COMPACT else f"/,{_GAP}/"

    def opening(self, bracket: str) -> str:
        """What begins an object or array."""
        return f'"{bracket}"' if self is Spacing.COMPACT else f"/\\{bracket}{_GAP}/"

    def closing(self, bracket: str) -> str:
        """What ends an object or array."""
        return f'"{bracket}"' if self is Spacing.COMPACT else f"/{_GAP}\\{bracket}/"
