"""Log probabilities of tokens, in the two forms that OpenAI's answers have."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LEAST_LOGPROB = -9999.0


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token of a position. ``bytes`` are the token's own, also where they are no whole character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True):
    """The token of a position, and the likeliest ones there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of an answer's tokens."""

    content: list[TokenLogprob] | None
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities in the form of ``/v1/completions``: parallel lists, null for the first prompt token.

    Attributes:
        tokens: Text of each token.
        token_logprobs: Its log probability.
        top_logprobs: Token text to log probability, of the likeliest tokens at each position.
        text_offset: Where each token's text begins, in characters from the start of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def top_logprob(token: str, logprob: float, raw: bytes | None) -> TopLogprob:
    """A likely token of a position; ``raw`` are its bytes, None for a special token."""
    return TopLogprob(token, writable(logprob), None if raw is None else list(raw))


def token_logprob(token: str, logprob: float, raw: bytes | None, top: Sequence[TopLogprob] = ()) -> TokenLogprob:
    """The token of a position, with the likeliest ones there, likeliest first."""
    return TokenLogprob(token, writable(logprob), None if raw is None else list(raw), list(top))


def writable(logprob: float) -> float:
    """A log probability as JSON can hold it: JSON has no minus infinity; OpenAI writes -9999 for "very unlikely"."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def completion_logprobs(
    tokens: Sequence[str],
    logprobs: Sequence[float | None],
    tops: Sequence[Sequence[tuple[str, float]] | None],
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """Completion-style log probabilities of consecutive tokens.

    Args:
        tokens: Text of each token.
        logprobs: Log probability of each; None for a prompt's first token.
        tops: The likeliest tokens at each position, likeliest first; where two have the same text the likelier counts.
        offsets: Where each token begins, in characters of the choice's text.
    """
    return CompletionLogprobs(
        tokens=list(tokens),
        token_logprobs=[None if value is None else writable(value) for value in logprobs],
        top_logprobs=[None if top is None else _first_by_text(top) for top in tops],
        text_offset=list(offsets),
    )


def _first_by_text(top: Sequence[tuple[str, float]]) -> dict[str, float]:
    likeliest: dict[str, float] = {}
    for token, logprob in top:
        likeliest.setdefault(token, writable(logprob))
    return likeliest
