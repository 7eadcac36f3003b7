"""The white space between the tokens of JSON: bounded, so that a model cannot go on with it for ever."""

from __future__ import annotations

from enum import Enum

# A newline and the indentation of 32 levels of two spaces, or a space, or nothing.
_GAP = r"([ ]|\n[ \t]{0,64})?"


class Spacing(Enum):
    """How JSON is laid out.

    Attributes:
        COMPACT: ``{"a": 1, "b": [2, 3]}``, what Python's ``json.dumps`` writes and chat templates with it.
        TIGHT: ``{"a":1,"b":[2,3]}``, what JavaScript's ``JSON.stringify`` writes.
        FLEXIBLE: Besides, no space or a newline with indentation after ``{``, ``[`` and ``,`` and before ``}`` and
            ``]``; one space or none after ``:``.
    """

    COMPACT = "compact"
    TIGHT = "tight"
    FLEXIBLE = "flexible"

    @property
    def colon(self) -> str:
        """What follows a key, as a Lark terminal; so the others."""
        return {Spacing.COMPACT: '": "', Spacing.TIGHT: '":"'}.get(self, "/:[ ]?/")

    @property
    def comma(self) -> str:
        """What parts two members or items."""
        return {Spacing.COMPACT: '", "', Spacing.TIGHT: '","'}.get(self, f"/,{_GAP}/")

    def opening(self, bracket: str) -> str:
        """What begins an object or array."""
        return f"/\\{bracket}{_GAP}/" if self is Spacing.FLEXIBLE else f'"{bracket}"'

    def closing(self, bracket: str) -> str:
        """What ends an object or array."""
        return f"/{_GAP}\\{bracket}/" if self is Spacing.FLEXIBLE else f'"{bracket}"'
