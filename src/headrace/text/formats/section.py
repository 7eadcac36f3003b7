"""``CallSection``: the calls of a message that follow each other, from where the first begins."""

from __future__ import annotations

from typing import NamedTuple

from headrace.text.formats.call_reader import CallReader, Tools
from headrace.text.formats.notation import Calls
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.scanning import begins, end_of_space
from headrace.text.formats.values import Verdict


class Step(NamedTuple):
    """What comes next.

    Attributes:
        end: Where it ends.
        call: A call; None: the section is over.
        malformed: What comes next is no call, though it begins as one; so the section is over.
    """

    end: int
    call: ToolCall | None = None
    malformed: bool = False


class CallSection:
    """Reads calls one after the other, with what stands between and behind them.

    Args:
        calls: How calls are written.
        tools: The tools that may be called; None: any.
        marker: With what the first one was found to begin: if it is no call, this much is text.
        at: Where it begins.

    Attributes:
        has_calls: A call was read.
    """

    def __init__(self, calls: Calls, tools: Tools | None, marker: str, at: int) -> None:
        self._calls, self._tools = calls, tools
        self.has_calls = False
        self._behind = self._place = at  # behind the last call; and how far there is only white space
        self._reader: CallReader | None = None
        begins_all = marker == calls.begin_marker or calls.at_start
        # White space may stand between a marker and the bracket behind it.
        rest = calls.begin.strip().removeprefix(calls.begin_marker)
        self._open(f"{calls.begin_marker} {rest} " if begins_all else "", marker, at)

    def step(self, text: str, *, final: bool, cut: bool) -> Step | None:
        """Go on from where the last step ended.

        Args:
            text: All text; it only grows.
            final: No more text will come.
            cut: The message was cut short, so that what is not complete is no call.

        Returns:
            The next call or the end; None if more text is needed or, where none will come, a call was cut short.
        """
        if self._reader is None:
            over = self._between(text, final)
            if over is not None or self._reader is None:
                return over
        verdict, end = self._reader.read(text, final=final and not cut)
        if verdict is Verdict.MORE:
            return None
        if verdict is Verdict.FAIL or self._reader.call is None:
            return Step(max(end, self._least), malformed=True)
        call, self._reader = self._reader.call, None
        self.has_calls = True
        self._behind = self._place = end
        return Step(end, call)

    def _open(self, opening: str, marker: str, at: int) -> None:
        self._least = at + len(marker)
        self._reader = CallReader(self._calls, opening, self._tools, at)

    def _between(self, text: str, final: bool) -> Step | None:
        """The end of the section, or None: another call begins, or more text is needed."""
        self._place = end_of_space(text, self._place)
        separator, end = self._calls.separator.strip(), self._calls.end.strip()
        ends = begins(end, text, self._place, final=final) if end else False
        if ends:
            return Step(self._place + len(end))
        if separator:
            goes_on = begins(separator, text, self._place, final=final)
        elif self._calls.begin.strip():
            found = [begins(opening, text, self._place, final=final) for opening in self._calls.openings]
            goes_on = True if True in found else None if None in found else False
        else:
            goes_on = False
        if goes_on:
            self._open(f" {separator} " if separator else " ", separator, self._behind)
        elif goes_on is False and ends is False:
            return Step(self._behind)
        return None
