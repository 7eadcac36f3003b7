"""What a message consists of, in the order in which the model wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A part of the answer.

    Attributes:
        text: It.
        fault: Why it is no tool call, though it began as one: ``malformed`` or ``cut``; empty for plain text.
    """

    text: str
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """A part of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call.

    Attributes:
        name: Of the tool.
        arguments: JSON, an object.
        id: The model's own; None: it wrote none.
    """

    name: str
    arguments: str
    id: str | None = None


MessagePiece = Text | Thought | ToolCall


def text_of(pieces: Iterable[MessagePiece]) -> str:
    """The answer itself: all texts, joined."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def reasoning_of(pieces: Iterable[MessagePiece]) -> str:
    """The reasoning, joined."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Thought))


def calls_in(pieces: Iterable[MessagePiece]) -> list[ToolCall]:
    """The calls, in order."""
    return [piece for piece in pieces if isinstance(piece, ToolCall)]


def joined(pieces: Iterable[MessagePiece]) -> list[MessagePiece]:
    """The pieces with texts of the same kind that follow each other made one, and empty ones left out."""
    out: list[MessagePiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, Text) and isinstance(last, Text) and piece.fault == last.fault == "":
            out[-1] = Text(last.text + piece.text)
        elif isinstance(piece, Thought) and isinstance(last, Thought):
            out[-1] = Thought(last.text + piece.text)
        elif isinstance(piece, ToolCall) or piece.text:
            out.append(piece)
    return out
