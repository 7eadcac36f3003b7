"""``Flow``: text without the white space next to markers."""

from __future__ import annotations


class Flow:
    """Takes text in pieces. White space waits for what follows it: next to a marker it is layout.

    Attributes:
        is_new: Nothing was shown since the last marker.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self.is_new = False

    def push(self, text: str) -> str:
        """Take text; returns what is certain to be shown."""
        if self.is_new:
            text = text.lstrip()
        shown = text.rstrip()
        held = [text[len(shown) :]]
        if not shown:
            self._held += held
            return ""
        shown = "".join(self._held) + shown
        self._held, self.is_new = held, False
        return shown

    def marker(self) -> None:
        """A marker comes next."""
        self._held, self.is_new = [], True

    def release(self) -> str:
        """What waits, if no marker comes next."""
        held, self._held = "".join(self._held), []
        self.is_new = False
        return held
