"""Log probabilities of tokens in the two forms that OpenAI's answers have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.api.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    completion_logprobs,
    token_logprob,
    top_logprob,
)
from headrace.engine.messages import PositionLogprobs
from headrace.text.detokenizer import Detokenizer
from headrace.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt in front of a completion.

    Attributes:
        text: As it is shown.
        tokens: Its tokens.
    """

    text: str
    tokens: Sequence[int]


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[PositionLogprobs]) -> ChatLogprobs:
    """In the form of chat completions: each token with its bytes and the likeliest ones there."""
    return ChatLogprobs([_entry(tokenizer, entry) for entry in entries])


def _entry(tokenizer: Tokenizer, entry: PositionLogprobs) -> TokenLogprob:
    top = [top_logprob(tokenizer.token_text(t), p, _bytes(tokenizer, t)) for t, p in entry.top]
    return token_logprob(tokenizer.token_text(entry.token), entry.logprob, _bytes(tokenizer, entry.token), top)


def _bytes(tokenizer: Tokenizer, token: int) -> bytes | None:
    return None if token in tokenizer.special_ids else tokenizer.token_bytes(token)


class CompletionLogprobsWriter:
    """In the form of completions: parallel lists, with the offset of each token in the choice's text.

    A token that ends inside a character has no text of its own, so offsets come from detokenizing, not from adding
    up the tokens' texts.

    Args:
        tokenizer: Whose tokens they are.
        skip_special_tokens: Whether the output's text leaves special tokens out.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer, skip_special_tokens, continues=True)
        self._offset = 0

    def write(
        self, echo: Echo | None, tokens: Sequence[int], entries: Sequence[PositionLogprobs | None]
    ) -> CompletionLogprobs:
        """The next tokens, each with its entry; with the first ones the prompt's, if it is echoed."""
        offsets = [] if echo is None else self._prompt_offsets(echo)
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._text.push([token]))
        text = self._tokenizer.token_text
        return completion_logprobs(
            [text(token) for token in (*(echo.tokens if echo else ()), *tokens)],
            [None if entry is None else entry.logprob for entry in entries],
            [None if entry is None else [(text(t), p) for t, p in entry.top] for entry in entries],
            offsets,
        )

    def _prompt_offsets(self, echo: Echo) -> list[int]:
        """Special tokens count where the text shows them: one that the tokenizer added by itself is not in it."""
        offsets, offset, text = [], 0, Detokenizer(self._tokenizer)
        for token in echo.tokens:
            offsets.append(offset)
            if token not in self._tokenizer.special_ids:
                offset += len(text.push([token]))
            elif echo.text.startswith(name := self._tokenizer.token_text(token), offset):
                offset += len(name)
        self._offset = len(echo.text)
        return offsets
