"""Looking at a place of a text of which more may come."""

from __future__ import annotations

import re

_SPACE = re.compile(r"\s*")


def begins(word: str, text: str, at: int, *, final: bool) -> bool | None:
    """Whether a text has a word at a place; None if that depends on what is to come."""
    if text.startswith(word, at):
        return True
    return None if not final and len(text) - at < len(word) and word.startswith(text[at:]) else False


def end_of_space(text: str, at: int) -> int:
    """Where the white space that begins at ``at`` ends."""
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
