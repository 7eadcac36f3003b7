"""``Markers``: finding the fixed texts of a format in a message that arrives in pieces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from headrace.text.formats.notation import SHORTEST, Calls, Format

MarkerKind = Literal["open", "close", "drop", "call"]
"""``open`` and ``close`` reasoning; ``drop``: to be left out; ``call``: a call begins, or what stands before it."""

CONTEXT = 4
"""How many characters before a place must be kept to judge whether a marker there is quoted."""

_LONGEST_RUN = 3
# A backtick, or a quote with a direction, is sure to quote; others look the same at both ends of a quotation.
_SURE_QUOTES = {"`": "`", "“": "”", "‘": "’", "«": "»", "„": "“"}
_STRAIGHT_QUOTES = "\"'"
# Letters of scripts that put spaces between words, digits, closing brackets and quotes.
_WORDS = ("Ll", "Lu", "Nd")
_CLOSING = (*_WORDS, "Pe", "Pf")
_SENTENCE_ENDS = ".!?,;…。！？"


class Found(NamedTuple):
    """What a search found.

    Attributes:
        at: Where the marker stands; or how far it is certain that there is none.
        marker: It; empty for none.
    """

    at: int
    marker: str = ""


class Markers:
    """Texts to look for.

    Args:
        kinds: What each means.
    """

    def __init__(self, kinds: Mapping[str, MarkerKind]) -> None:
        self.kinds = kinds
        self._longest = max(map(len, kinds), default=0)
        by_length = sorted(kinds, key=len, reverse=True)
        self._search = re.compile("|".join(map(re.escape, by_length)) or r"(?!)").search
        self._begins = {marker[:i] for marker in kinds for i in range(1, len(marker))}
        first = "".join(re.escape(char) for char in sorted({marker[0] for marker in kinds}))
        self._first = re.compile(f"[{first}]" if first else r"(?!)")

    def find(self, text: str, at: int, *, final: bool) -> Found:
        """The first marker that is not quoted.

        Args:
            text: All text; of what stands before ``at``, ``CONTEXT`` characters matter.
            at: Where to begin.
            final: No more text will come.
        """
        unsure = len(text) if final else self._unfinished(text, at)
        while (found := self._search(text, at)) is not None:
            begin, end = found.span()
            if begin >= unsure:
                break
            quoted = is_quoted(text, begin, end, final=final)
            if quoted is None:
                return Found(begin)
            if not quoted:
                return Found(begin, found[0])
            at = end
        return Found(max(at, unsure))

    def _unfinished(self, text: str, at: int) -> int:
        """Where at the end of the text a marker may begin of which more is to come."""
        for found in self._first.finditer(text, max(at, len(text) - self._longest + 1)):
            if text[found.start() :] in self._begins:
                return found.start()
        return len(text)


def is_quoted(text: str, begin: int, end: int, *, final: bool) -> bool | None:
    """Whether a marker is spoken of, not used; None if that depends on text that is to come.

    It is if quotes stand directly around it. Straight ones must be able to open and to close a quotation:
    ``"Yes."</think>"No."`` quotes no marker.
    """
    quote = text[begin - 1 : begin]
    if not quote or (quote not in _SURE_QUOTES and quote not in _STRAIGHT_QUOTES):
        return False
    first = begin - 1
    while first and text[first - 1] == quote and begin - first <= _LONGEST_RUN:
        first -= 1
    run = begin - first
    if run > _LONGEST_RUN or (quote in _STRAIGHT_QUOTES and _closes(text[first - 1 : first])):
        return False
    closing = _SURE_QUOTES.get(quote, quote) * run
    after = text[end : end + run]
    if after != closing:
        return None if not final and end + len(after) == len(text) and closing.startswith(after) else False
    if quote in _SURE_QUOTES:
        return True
    following = text[end + run : end + run + 1]
    if not following and not final:
        return None
    return not following or unicodedata.category(following) not in _WORDS


def _closes(char: str) -> bool:
    """Whether a quote behind this character closes a quotation and opens none."""
    return bool(char) and (char in _SENTENCE_ENDS or unicodedata.category(char) in _CLOSING)


@lru_cache(maxsize=64)
def text_markers(found: Format, *, calls: bool) -> Markers:
    """What to look for in an answer.

    Args:
        found: The format.
        calls: Tools may be called.
    """
    kinds: dict[str, MarkerKind] = {}
    if found.reasoning is not None:
        kinds |= {found.reasoning.open.strip(): "open", found.reasoning.close.strip(): "close"}
    kinds |= dict.fromkeys((marker.strip() for marker in found.answer.markers), "drop")
    if calls and found.calls is not None:
        kinds |= call_markers(found.calls)
    return Markers(kinds)


@lru_cache(maxsize=64)
def thought_markers(found: Format, *, calls: bool) -> Markers:
    """What to look for in reasoning; see ``text_markers``."""
    if found.reasoning is None:
        return Markers({})
    kinds = call_markers(found.calls) if calls and found.calls is not None else {}
    return Markers(kinds | {found.reasoning.open.strip(): "open", found.reasoning.close.strip(): "close"})


@lru_cache(maxsize=64)
def close_markers(found: Format) -> Markers:
    """What ends reasoning."""
    return Markers({} if found.reasoning is None else {found.reasoning.close.strip(): "close"})


def call_markers(calls: Calls) -> dict[str, MarkerKind]:
    """Texts with which calls begin. A call may be marked though what stands before the first one is missing."""
    if calls.at_start:
        return {}
    # Within a section a call may begin with so little that it marks nothing in a text.
    openings = [opening for opening in calls.openings if len(opening) >= SHORTEST]
    return dict.fromkeys([*openings, *filter(None, [calls.begin_marker])], "call")
