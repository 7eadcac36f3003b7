"""Tokens to text with stop strings: ``MessageStream`` for whoever shows the text, ``StopStringConstraint`` for
the engine. Both run the same detokenizer and matcher over the same tokens, so they agree on where a text ends.

``min_tokens``: a stop string counts only if it is completed by output token k with k > ``min_tokens`` (counted
from 1); one completed earlier is text like any other. Output continues its prompt, so the space before a first
word is kept (see ``Tokenizer.decode``, ``continues``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.text.detokenizer import Detokenizer
from headrace.text.stop import StopMatcher, StopText
from headrace.text.tokenizer import Tokenizer, Tokens


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What new tokens add to a message.

    Attributes:
        text: The text to append.
        stop: The stop string that ended the message, or None.
    """

    text: str
    stop: str | None = None


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


class _TextEnd:
    """Detokenizer and stop matcher in step, a token at a time."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int, skip_special_tokens: bool, include: bool
    ) -> None:
        self.detokenizer = Detokenizer(tokenizer, skip_special_tokens, continues=True)
        self.matcher = StopMatcher(stop, include)
        self._min_tokens = min_tokens
        self._count = 0

    def push(self, token: int) -> StopText:
        self._count += 1
        return self.matcher.push(self.detokenizer.push((token,)), counts=self._count > self._min_tokens)


class MessageStream:
    """The text of one sample, as its tokens arrive.

    Args:
        tokenizer: Whose tokens they are.
        skip_special_tokens: Leave control tokens out.
        stop: Strings that end the text.
        min_tokens: Output tokens before which no stop string counts.
        include_stop_str_in_output: Show the stop string too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop_str_in_output: bool = False,
    ) -> None:
        self._end = _TextEnd(tokenizer, stop, min_tokens, skip_special_tokens, include_stop_str_in_output)
        self._watches = any(stop)
        self._stopped = False

    @classmethod
    def following(cls, tokenizer: Tokenizer, settings: StopSettings) -> MessageStream:
        """The stream of a sample with a request's settings."""
        return cls(
            tokenizer,
            skip_special_tokens=settings.skip_special_tokens,
            stop=settings.stop,
            min_tokens=settings.min_tokens,
            include_stop_str_in_output=settings.include_stop_str_in_output,
        )

    def take(self, tokens: Tokens, *, hidden: int = 0, last: bool = False) -> str:
        """The text that a step adds.

        Args:
            tokens: The step's tokens.
            hidden: How many of them, at the end, are no part of the text.
            last: The sample ended: what was held back comes too.
        """
        text = self.push(tokens[: len(tokens) - hidden]).text
        return text + self.finish().text if last else text

    def push(self, tokens: Tokens) -> MessageDelta:
        """Take the next tokens (ids); tokens after the one that completed a stop string add nothing."""
        if self._stopped:
            return MessageDelta("")
        if not self._watches:
            return MessageDelta(self._end.detokenizer.push(tokens))
        shown = []
        for token in tokens:
            part = self._end.push(int(token))
            shown.append(part.text)
            if part.stop is not None:
                self._stopped = True
                return MessageDelta("".join(shown), part.stop)
        return MessageDelta("".join(shown))

    def finish(self) -> MessageDelta:
        """The sample ended: returns the text held back.

        No stop string is sought in it: the engine, which decides where a sample ends, did not see it complete.
        """
        if self._stopped:
            return MessageDelta("")
        self._stopped = True
        return MessageDelta(self._end.matcher.finish() + self._end.detokenizer.finish())


class StopStringConstraint:
    """Ends a sample at a stop string, for the engine.

    Args:
        tokenizer: Whose tokens they are.
        stop: Strings that end the text.
        min_tokens: Output tokens before which no stop string counts.
        skip_special_tokens: Whether control tokens are part of the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int = 0, skip_special_tokens: bool = True
    ) -> None:
        self._end = _TextEnd(tokenizer, stop, min_tokens, skip_special_tokens, include=False)

    ready = True
    complete = False

    def allowed(self) -> None:
        """Any token may come next."""

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        return self._end.push(token).stop


def stop_constraint_factory(tokenizer: Tokenizer) -> Callable[[StopSettings], StopStringConstraint | None]:
    """What the engine calls for each sample: a constraint if the request has stop strings, else None."""

    def make(params: StopSettings) -> StopStringConstraint | None:
        if not any(params.stop):
            return None
        return StopStringConstraint(tokenizer, params.stop, params.min_tokens, params.skip_special_tokens)

    return make
