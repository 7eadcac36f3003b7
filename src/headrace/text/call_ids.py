"""``CallIds``: an id for each call of a message."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from headrace.text.formats.notation import Calls
from headrace.text.formats.pieces import MessagePiece, ToolCall
from headrace.text.formats.writer import new_id
from headrace.text.stream import MessageForm


class CallIds:
    """Gives each call of a message an id of its own: the model's, unless it wrote none or one that was used.

    Args:
        calls: Says what ids look like.
        used: The ids of calls in earlier messages.
    """

    def __init__(self, calls: Calls, used: Iterable[str] = ()) -> None:
        self._calls = calls
        self._used = set(used)

    @classmethod
    def of(cls, form: MessageForm | None) -> CallIds | None:
        """For a message of this form; None: there are no calls in it."""
        calls = None if form is None else form.format.calls
        return None if form is None or calls is None else cls(calls, form.call_ids)

    def given(self, pieces: Iterable[MessagePiece]) -> list[MessagePiece]:
        """The next pieces of the message, with ids."""
        return [
            dataclasses.replace(piece, id=self._free(piece)) if isinstance(piece, ToolCall) else piece
            for piece in pieces
        ]

    def _free(self, call: ToolCall) -> str:
        found, known = call.id or "", len(self._used)
        for number in range(known, 2 * known + 1):  # of so many, one is free
            if found and found not in self._used:
                break
            found = new_id(self._calls, call.name, number)
        self._used.add(found)
        return found
