"""Tokens to the pieces of a message, with stop strings: ``MessageStream`` for whoever shows them, ``StopWatch`` for the
engine. Both run the same detokenizer, reader and matcher over the same tokens, so they agree on where a message ends.

Where a message is taken apart (``Reading``), stop strings are looked for in the answer itself: not in reasoning, nor in
calls, nor across them.

``min_tokens``: a stop string counts only if it is completed by output token k with k > ``min_tokens`` (counted
from 1); one completed earlier is text like any other. Output continues its prompt, so the space before a first
word is kept (see ``Tokenizer.decode``, ``continues``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from headrace.text.detokenizer import Detokenizer
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import MessagePiece, Text, joined, text_of
from headrace.text.reading import Reading
from headrace.text.stop import StopMatcher
from headrace.text.tokenizer import Tokenizer, Tokens


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What new tokens add to a message.

    Attributes:
        pieces: What to append.
        stop: The stop string that ended the message, or None.
    """

    pieces: list[MessagePiece]
    stop: str | None = None

    @property
    def text(self) -> str:
        """The part of the answer itself."""
        return text_of(self.pieces)


class StopSettings(Protocol):
    """The part of a request's sampling parameters that stop strings need."""

    @property
    def stop(self) -> Sequence[str]:
        """The stop strings."""

    @property
    def min_tokens(self) -> int:
        """Output tokens before which no stop string counts."""

    @property
    def skip_special_tokens(self) -> bool:
        """Leave control tokens out of the text."""

    @property
    def include_stop_str_in_output(self) -> bool:
        """Show the stop string too."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How messages of a request are written.

    Attributes:
        format: The model's.
        reading: What of it the request uses.
        call_ids: Of the conversation's calls: no other call may have one of them.
    """

    format: Format
    reading: Reading
    call_ids: frozenset[str] = frozenset()


class MessageStream:
    """One sample's message, as its tokens arrive.

    Args:
        tokenizer: Whose tokens they are.
        skip_special_tokens: Leave control tokens out, but for those that belong to the message's form.
        stop: Strings that end the message.
        min_tokens: Output tokens before which no stop string counts.
        include_stop_str_in_output: Show the stop string too.
        form: How the message is taken apart; None: it is plain text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop_str_in_output: bool = False,
        form: MessageForm | None = None,
    ) -> None:
        table = None if form is None or not skip_special_tokens else _table_of(tokenizer, form.format)
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens, continues=True, table=table)
        self._reader = None if form is None else form.reading.reader(form.format)
        self._matcher = StopMatcher(stop, include_stop_str_in_output) if any(stop) else None
        self._min_tokens = min_tokens
        self._count = 0
        self._stopped = False
        self.reasoning_tokens = 0

    @classmethod
    def following(cls, tokenizer: Tokenizer, settings: StopSettings, form: MessageForm | None = None) -> MessageStream:
        """The stream of a sample with a request's settings."""
        return cls(
            tokenizer,
            skip_special_tokens=settings.skip_special_tokens,
            stop=settings.stop,
            min_tokens=settings.min_tokens,
            include_stop_str_in_output=settings.include_stop_str_in_output,
            form=form,
        )

    def take(self, tokens: Tokens, *, hidden: int = 0, last: bool = False, cut: bool = False) -> list[MessagePiece]:
        """What a step adds.

        Args:
            tokens: The step's tokens.
            hidden: How many of them, at the end, are no part of the message.
            last: The sample ended: what was held back comes too.
            cut: It was cut short.
        """
        pieces = self.push(tokens[: len(tokens) - hidden]).pieces
        return joined([*pieces, *self.finish(cut=cut).pieces]) if last else pieces

    def push(self, tokens: Tokens) -> MessageDelta:
        """Take the next tokens (ids); tokens after the one that completed a stop string add nothing."""
        if self._stopped:
            return MessageDelta([])
        if self._reader is None and self._matcher is None:
            return MessageDelta(_texts(self._detokenizer.push(tokens)))
        shown: list[MessagePiece] = []
        for token in tokens:
            self._count += 1
            text = self._detokenizer.push((int(token),))
            thinking = self._reader is not None and self._reader.in_reasoning
            pieces, stop = self._watched(_texts(text) if self._reader is None else self._reader.push(text))
            self.reasoning_tokens += thinking and self._reader is not None and self._reader.in_reasoning
            shown += pieces
            if stop is not None:
                self._stopped = True
                return MessageDelta(joined(shown), stop)
        return MessageDelta(joined(shown))

    def finish(self, *, cut: bool = False) -> MessageDelta:
        """The sample ended: returns what was held back.

        No stop string is sought in it: the engine, which decides where a sample ends, did not see it complete.

        Args:
            cut: It was cut short: a call that is not complete is none.
        """
        if self._stopped:
            return MessageDelta([])
        self._stopped = True
        text = self._detokenizer.finish()
        pieces = _texts(text) if self._reader is None else [*self._reader.push(text), *self._reader.finish(cut=cut)]
        if self._matcher is None:
            return MessageDelta(joined(pieces))
        return MessageDelta(joined([*_texts(self._matcher.finish()), *pieces]))

    def _watched(self, pieces: list[MessagePiece]) -> tuple[list[MessagePiece], str | None]:
        """The pieces up to a stop string, and that one."""
        matcher = self._matcher
        if matcher is None:
            return pieces, None
        shown: list[MessagePiece] = []
        for piece in pieces:
            if not isinstance(piece, Text):
                shown += [*_texts(matcher.release()), piece]
                continue
            found = matcher.push(piece.text, counts=self._count > self._min_tokens)
            if found.text:
                shown.append(Text(found.text, piece.fault))
            if found.stop is not None:
                return shown, found.stop
        return shown, None


class StopWatch:
    """Ends a sample at a stop string, for the engine: a stream of whose pieces nobody takes note.

    Args:
        stream: The sample's.
    """

    def __init__(self, stream: MessageStream) -> None:
        self._stream = stream

    ready = True
    complete = False

    def allowed(self) -> None:
        """Any token may come next."""

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        return self._stream.push((token,)).stop


@lru_cache(maxsize=8)
def _table_of(tokenizer: Tokenizer, found: Format) -> Sequence[bytes]:
    """The bytes of each token, control tokens left out but for those that the format's markers hold."""
    return tokenizer.byte_table_showing(found.markers)


def _texts(text: str) -> list[MessagePiece]:
    return [Text(text)] if text else []
