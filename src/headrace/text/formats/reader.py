"""``FormatReader``: a message of a model, taken apart as it arrives.

What comes out, joined, depends on the text alone and not on how it was cut. For that, nothing is shown before it is
certain what it is: a text that may be the beginning of a marker waits, white space waits for what follows it (next to
a marker it is layout), and a call waits until it is complete, for what is not complete is no call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from headrace.text.formats.call_reader import CallReader, Tools
from headrace.text.formats.notation import Calls, Format
from headrace.text.formats.parts import end_of_space
from headrace.text.formats.pieces import MessagePiece, Text, Thought, joined
from headrace.text.formats.values import Verdict

MarkerKind = Literal["open", "close", "drop", "begin", "call"]
_QUOTES = "`'\""


class Markers:
    """Texts to look for.

    Args:
        kinds: What each means.
    """

    def __init__(self, kinds: dict[str, MarkerKind]) -> None:
        self.kinds = kinds
        self.longest = max(map(len, kinds), default=0)
        by_length = sorted(kinds, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, by_length)) or r"(?!)").search
        self._begins = {marker[:i] for marker in kinds for i in range(1, len(marker))}

    def find(self, text: str, before: str, final: bool) -> tuple[int, str] | int:
        """The first marker in a text.

        Args:
            text: The text.
            before: The character before it, if any.
            final: No more text will come.

        Returns:
            Where it stands, and which one it is; or how much of the text is certain to hold none.
        """
        at = 0
        while (found := self._search(text, at)) is not None:
            begin, end = found.span()
            if not final and text[begin:] in self._begins:
                return begin  # a longer one, perhaps
            # Between quotes it is spoken of, not used.
            quote = text[begin - 1] if begin else before
            if quote and quote in _QUOTES:
                if end == len(text) and not final:
                    return begin
                if text[end : end + 1] == quote:
                    at = end
                    continue
            return begin, found[0]
        if final:
            return len(text)
        for length in range(min(self.longest - 1, len(text) - at), 0, -1):
            if text[len(text) - length :] in self._begins:
                return len(text) - length
        return len(text)


class _Flow:
    """Text with the white space next to markers left out."""

    def __init__(self) -> None:
        self._held = ""
        self._after_marker = False

    def push(self, text: str) -> str:
        """Take text; returns what is certain to be shown."""
        text = self._held + text
        if self._after_marker:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        if shown:
            self._after_marker = False
        return shown

    @property
    def is_new(self) -> bool:
        """Whether nothing was shown since the last marker."""
        return self._after_marker

    def marker(self) -> None:
        """A marker comes next."""
        self._held, self._after_marker = "", True

    def finish(self) -> str:
        """The message ends."""
        held, self._held = self._held, ""
        return held


@lru_cache(maxsize=64)
def text_markers(found: Format, calls: bool) -> Markers:
    """What to look for in an answer."""
    kinds: dict[str, MarkerKind] = dict.fromkeys(found.answer.markers, "drop")
    if calls and found.calls is not None:
        kinds |= call_markers(found.calls)
    if found.reasoning is not None:
        kinds |= {found.reasoning.open.rstrip(): "open", found.reasoning.close.strip(): "close"}
    return Markers(kinds)


@lru_cache(maxsize=64)
def thought_markers(found: Format, calls: bool) -> Markers:
    """What to look for in reasoning."""
    if found.reasoning is None:
        return Markers({})
    kinds: dict[str, MarkerKind] = {found.reasoning.close.strip(): "close", found.reasoning.open.rstrip(): "open"}
    if calls and found.calls is not None:
        kinds = call_markers(found.calls) | kinds
    return Markers(kinds)


def call_markers(calls: Calls) -> dict[str, MarkerKind]:
    """Texts with which calls begin. A call may be marked though what stands before the first one is missing."""
    kinds: dict[str, MarkerKind] = {}
    if calls.at_start:
        return kinds
    if calls.begin:
        kinds[calls.begin.strip().split("\n")[0]] = "begin"
    for pattern in calls.patterns:
        opening = "" if pattern[0].is_field else pattern[0].text.strip().split("\n")[0]
        if len(opening) > 2:
            kinds.setdefault(opening, "call")
    return kinds


class FormatReader:
    """Reads one message.

    Args:
        found: How it is written.
        tools: The tools that may be called; empty: none, and what looks like a call is text.
        primed: What stood of the message in the prompt already, such as an opened reasoning; see ``primed_by``.
        any_tool: Any tool may be called, whatever ``tools`` says.
    """

    def __init__(self, found: Format, tools: Tools | None = None, primed: str = "", *, any_tool: bool = False) -> None:
        self._format = found
        self._tools = None if any_tool else (tools or {})
        self._calls = found.calls if any_tool or tools else None
        self._buffer = ""
        self._before = ""  # the character that the buffer follows
        self._mode: Literal["text", "thought"] = "text"
        self._text, self._thought = _Flow(), _Flow()
        self._call: CallReader | None = None
        self._marker = ""  # with what the call that is being read was found to begin
        self._begun = False  # something stood there already
        self._said = False  # an answer has begun
        self._in_section = False
        self._held_thought = False  # a call may stand in unclosed reasoning
        self._ended = False
        self._out: list[MessagePiece] = []
        if primed:
            self.push(primed)

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as can be said."""
        return self._mode == "thought"

    def push(self, text: str) -> list[MessagePiece]:
        """Take the next text; returns the pieces that are certain now."""
        if self._ended:
            return []
        self._buffer += text
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
        if self._mode == "text":
            self._say(self._text.finish())
        self._ended = True
        return self._take()

    def _take(self) -> list[MessagePiece]:
        out, self._out = self._out, []
        return joined(out)

    def _advance(self, *, final: bool, cut: bool = False) -> None:
        while True:
            if self._call is not None:
                if not self._read_call(final, cut):
                    return
            elif self._in_section and self._calls is not None:
                if not self._between(self._calls, final):
                    return
            elif not (self._start(final) or self._scan(final, cut)):
                return

    # --- between markers ----------------------------------------------------------------------------------------

    def _start(self, final: bool) -> bool:
        """Where calls are not marked, they are the whole message: try one at its start."""
        if self._begun or self._mode != "text" or self._calls is None or not self._calls.at_start:
            return False
        begin = end_of_space(self._buffer, 0)
        if begin == len(self._buffer):
            return False
        self._begun = True
        self._drop(begin)
        self._open_call(self._calls.begin, "")
        return True

    @property
    def _waits_for_start(self) -> bool:
        """Whether a call may still begin here for being the start of the message: white space decides nothing."""
        return self._mode == "text" and self._calls is not None and self._calls.at_start and not self._buffer.strip()

    def _scan(self, final: bool, cut: bool) -> bool:
        """Go on to the next marker; False if there is none yet."""
        if not self._buffer:
            return False
        if self._held_thought:
            return self._scan_held(final, cut)
        calls = self._calls is not None
        markers = text_markers(self._format, calls) if self._mode == "text" else thought_markers(self._format, calls)
        found = markers.find(self._buffer, self._before, final)
        if isinstance(found, int):
            if found and (final or self._begun or not self._waits_for_start):
                self._show(self._buffer[:found])
                self._drop(found)
            return False
        at, marker = found
        self._show(self._buffer[:at])
        self._drop(at)
        self._meet(markers.kinds[marker], marker)
        return True

    def _meet(self, kind: MarkerKind, marker: str) -> None:
        """A marker stands at the beginning of the buffer."""
        if kind in ("begin", "call"):
            if self._mode == "thought":
                self._held_thought = True
            else:
                self._open_call(self._calls.begin if self._calls is not None and kind == "begin" else "", marker)
        elif kind == "drop":
            self._text.marker()
            self._drop(len(marker))
        elif kind == "open" and (self._mode == "text" or self._thought.is_new):
            self._text.marker()
            self._thought.marker()
            self._mode = "thought"
            self._drop(len(marker))
        elif kind == "close" and (self._mode == "thought" or not self._said):
            self._text.marker()
            self._thought.marker()
            self._mode = "text"
            self._drop(len(marker))
        else:  # one too many, in the middle of a text: the model speaks of it
            self._show(marker)
            self._drop(len(marker))

    def _scan_held(self, final: bool, cut: bool) -> bool:
        """In reasoning a call was begun: if the reasoning is closed later, it was a part of it, else it is a call."""
        close = "" if self._format.reasoning is None else self._format.reasoning.close.strip()
        at = self._buffer.find(close)
        if at >= 0:
            self._held_thought = False
            self._show(self._buffer[:at])
            self._drop(at)
            self._meet("close", close)
            return True
        if not final:
            return False
        self._held_thought = False
        if cut:
            self._show(self._buffer)
            self._drop(len(self._buffer))
            return False
        self._text.marker()
        self._mode = "text"
        return True

    # --- calls --------------------------------------------------------------------------------------------------

    def _open_call(self, opening: str, marker: str) -> None:
        """Begin to read a call.

        Args:
            opening: What stands before it.
            marker: With what it was found to begin; if it is no call, this much is text.
        """
        if self._calls is not None:
            self._marker = marker
            self._call = CallReader(self._calls, opening, self._tools)

    def _read_call(self, final: bool, cut: bool) -> bool:
        """Go on with a call; False if more text is needed."""
        reader, calls = self._call, self._calls
        if reader is None or calls is None:
            return True
        verdict, at = reader.read(self._buffer, final=final and not cut)
        if verdict is Verdict.MORE:
            if not final:
                return False
            self._fail(len(self._buffer), "cut" if cut else "malformed")
        elif verdict is Verdict.DONE and reader.call is not None:
            self._text.marker()
            self._out.append(reader.call)
            self._drop(at)
            self._in_section = bool(calls.end or calls.separator.strip() or calls.begin)
        else:
            self._fail(self._resume_at(at), "malformed")
        self._call = None
        self._said = True
        return True

    def _resume_at(self, failed: int) -> int:
        """Where to look for the next call after one that failed: a marker may have begun shortly before."""
        longest = text_markers(self._format, True).longest
        return min(len(self._buffer), max(1, len(self._marker), failed - longest + 1))

    def _fail(self, end: int, fault: str) -> None:
        """What began as a call is text. Where nothing marks calls, it never was one."""
        marked = self._calls is not None and not self._calls.at_start
        if self._in_section or marked or fault == "cut":
            held = self._text.finish()
            self._out.append(Text(held + self._buffer[:end], fault))
            self._said = True
            self._drop(end)
        self._in_section = False

    def _between(self, calls: Calls, final: bool) -> bool:
        """After a call: another one, or the end of them; False if more text is needed."""
        at = end_of_space(self._buffer, 0)
        rest = self._buffer[at:]
        separator, end = calls.separator.strip(), calls.end.strip()
        for text in (end, separator):
            if text and not final and len(rest) < len(text) and text.startswith(rest):
                return False
        if end and rest.startswith(end):
            self._drop(at + len(end))
            self._in_section = False
        elif separator and rest.startswith(separator):
            self._open_call(f" {separator} ", separator)
        elif rest and not separator and calls.begin and self._opens(calls, rest):
            self._open_call(" ", "")
        elif rest and not final and self._may_open(calls, rest):
            return False
        else:
            self._in_section = False
            self._text.marker()
        return True

    def _opens(self, calls: Calls, rest: str) -> bool:
        return any(rest.startswith(opening) for opening in _openings(calls))

    def _may_open(self, calls: Calls, rest: str) -> bool:
        return not calls.separator.strip() and any(opening.startswith(rest) for opening in _openings(calls))

    # --- what comes out -----------------------------------------------------------------------------------------

    def _drop(self, count: int) -> None:
        if count:
            self._before = self._buffer[count - 1]
            self._buffer = self._buffer[count:]

    def _show(self, text: str) -> None:
        if self._mode == "text":
            self._say(self._text.push(text))
        elif shown := self._thought.push(text):
            self._out.append(Thought(shown))

    def _say(self, text: str) -> None:
        if text:
            self._begun = self._begun or bool(text.strip())
            self._said = self._said or bool(text.strip())
            self._out.append(Text(text))


def _openings(calls: Calls) -> Iterable[str]:
    return (p[0].text.strip().split("\n")[0] for p in calls.patterns if not p[0].is_field)


def primed_by(found: Format, prompt: str) -> str:
    """What a prompt already holds of the message to come: the marker that it ends with, if it does."""
    tail = prompt.rstrip()
    candidates = list(found.answer.markers)
    if found.reasoning is not None:
        candidates.append(found.reasoning.open.rstrip())
    return max((marker for marker in candidates if tail.endswith(marker)), key=len, default="")
