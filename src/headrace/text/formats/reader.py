"""``FormatReader``: a message of a model, taken apart as it arrives.

What comes out, joined, depends on the text alone and not on how it was cut. For that, nothing is shown before it is
certain what it is: a text that may be the beginning of a marker waits, white space waits for what follows it (next to
a marker it is layout), and a call waits until it is complete, for what is not complete is no call.

The time that it takes grows with the text and not faster: no place is looked at more than a few times.
"""

from __future__ import annotations

from headrace.text.formats.call_reader import Tools
from headrace.text.formats.flow import Flow
from headrace.text.formats.markers import CONTEXT, MarkerKind, close_markers, text_markers, thought_markers
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import MessagePiece, Text, Thought, joined
from headrace.text.formats.scanning import end_of_space
from headrace.text.formats.section import CallSection

_COMPACT = 4096  # how much text that was read is kept at most, beside as much as is not read yet


class FormatReader:
    """Reads one message.

    Args:
        found: How it is written.
        tools: The tools that may be called; empty: none, and what looks like a call is text.
        primed: What stood of the message in the prompt already, such as an opened reasoning; see ``primed_by``.
        any_tool: Any tool may be called, whatever ``tools`` says.
    """

    def __init__(self, found: Format, tools: Tools | None = None, primed: str = "", *, any_tool: bool = False) -> None:
        self._tools = None if any_tool else (tools or {})
        self._calls = found.calls if any_tool or tools else None
        has_calls = self._calls is not None
        self._text_markers = text_markers(found, calls=has_calls)
        self._thought_markers = thought_markers(found, calls=has_calls)
        self._close_markers = close_markers(found)
        self._buffer, self._at = "", 0  # what stands before ``_at`` is read
        self._text, self._thought = Flow(), Flow()
        self._in_thought = False
        self._holds = False  # within reasoning a call may have begun
        self._no_close = 0  # up to here nothing ends the reasoning that is held
        self._section: CallSection | None = None
        self._may_start = self._calls is not None and self._calls.at_start
        self._has_answer = False
        self._ended = False
        self._out: list[MessagePiece] = []
        if primed:
            self.push(primed)

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as can be said."""
        return self._in_thought

    def push(self, text: str) -> list[MessagePiece]:
        """Take the next text; returns the pieces that are certain now."""
        if self._ended:
            return []
        if self._at > _COMPACT and 2 * self._at > len(self._buffer) and self._section is None and not self._holds:
            self._buffer = self._buffer[self._at - CONTEXT :]
            self._at = self._no_close = CONTEXT
        buffer, self._buffer = self._buffer, ""  # CPython grows a string in place if nothing else refers to it
        buffer += text
        self._buffer = buffer
        self._advance(final=False)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[MessagePiece]:
        """The message has ended.

        Args:
            cut: It was cut short: what is not complete is no call.
        """
        if self._ended:
            return []
        self._advance(final=True, cut=cut)
        self._emit((self._thought if self._in_thought else self._text).release())
        self._ended = True
        return self._take()

    def _take(self) -> list[MessagePiece]:
        out, self._out = self._out, []
        return joined(out)

    def _advance(self, *, final: bool, cut: bool = False) -> None:
        while True:
            if self._section is not None:
                goes_on = self._read_calls(self._section, final, cut)
            elif self._at == len(self._buffer):
                return
            elif self._holds:
                goes_on = self._leave_hold(final, cut)
            else:
                goes_on = self._scan(final)
            if not goes_on:
                return

    # --- markers ------------------------------------------------------------------------------------------------

    def _scan(self, final: bool) -> bool:
        """Go on to the next marker; False if there is none yet."""
        markers = self._thought_markers if self._in_thought else self._text_markers
        found = markers.find(self._buffer, self._at, final=final)
        if self._may_start and not self._in_thought:
            begin = end_of_space(self._buffer, self._at)
            self._show(begin)
            if begin < found.at:
                self._may_start = False
                self._open_section("")
                return True
        self._show(found.at)
        if found.marker:
            self._meet(markers.kinds[found.marker], found.marker)
        return bool(found.marker)

    def _meet(self, kind: MarkerKind, marker: str) -> None:
        """A marker comes next."""
        end = self._at + len(marker)
        if kind == "call":
            if self._in_thought:
                self._holds = True
            else:
                self._open_section(marker)
        elif kind == "drop":
            self._pass_marker(end, in_thought=False)
        elif kind == "open" and (not self._in_thought or self._thought.is_new):
            self._pass_marker(end, in_thought=True)
        elif kind == "close" and (self._in_thought or not self._has_answer):
            self._pass_marker(end, in_thought=False)
        else:  # one too many, in the middle of a text: the model speaks of it
            self._show(end)

    def _leave_hold(self, final: bool, cut: bool) -> bool:
        """In reasoning a call was begun: if the reasoning is closed later, it was a part of it, else it is a call."""
        found = self._close_markers.find(self._buffer, max(self._at, self._no_close), final=final)
        self._no_close = found.at
        if not found.marker and not final:
            return False
        self._holds = False
        if found.marker:
            self._show(found.at)
            self._meet("close", found.marker)
        elif cut:
            self._show(len(self._buffer))
        else:
            self._pass_marker(self._at, in_thought=False)
        return True

    # --- calls --------------------------------------------------------------------------------------------------

    def _open_section(self, marker: str) -> None:
        if self._calls is not None:
            self._section = CallSection(self._calls, self._tools, marker, self._at)

    def _read_calls(self, section: CallSection, final: bool, cut: bool) -> bool:
        """Go on with calls; False if more text is needed."""
        step = section.step(self._buffer, final=final, cut=cut)
        if step is None:
            if final:
                self._fail(len(self._buffer), "cut")
            return final
        if step.call is not None:
            self._pass_marker(step.end, in_thought=False)
            self._out.append(step.call)
            self._has_answer = True
        elif not step.malformed:
            self._pass_marker(step.end, in_thought=False)
            self._section = None
        elif section.has_calls or not (self._calls and self._calls.at_start):
            self._fail(step.end, "malformed")
        else:  # nothing marked it, so it never was a call
            self._section = None
        return True

    def _fail(self, end: int, fault: str) -> None:
        """What began as a call is text."""
        self._out.append(Text(self._text.release() + self._buffer[self._at : end], fault))
        self._section, self._at, self._has_answer = None, end, True

    # --- what comes out -----------------------------------------------------------------------------------------

    def _pass_marker(self, end: int, *, in_thought: bool) -> None:
        """Leave out a marker; what follows it is reasoning, or not."""
        self._text.marker()
        self._thought.marker()
        self._at, self._in_thought = end, in_thought

    def _show(self, end: int) -> None:
        """What comes next is text, up to there."""
        if end > self._at:
            self._emit((self._thought if self._in_thought else self._text).push(self._buffer[self._at : end]))
            self._at = end

    def _emit(self, text: str) -> None:
        if not text:
            return
        self._has_answer = self._has_answer or not (self._in_thought or text.isspace())
        self._out.append(Thought(text) if self._in_thought else Text(text))


def primed_by(found: Format, prompt: str) -> str:
    """What a prompt already holds of the message to come: the marker that it ends with, if it does."""
    tail = prompt.rstrip()
    candidates = list(found.answer.markers)
    if found.reasoning is not None:
        candidates.append(found.reasoning.open)
    return max((marker.strip() for marker in candidates if tail.endswith(marker.strip())), key=len, default="")
