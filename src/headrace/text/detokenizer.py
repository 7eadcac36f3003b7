"""``Detokenizer``: the text of a growing sequence of tokens, a piece at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from headrace.text.tokenizer import Tokenizer, Tokens, bytes_of

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of a growing sequence of tokens.

    What ``push`` and ``finish`` return, joined, is ``tokenizer.decode`` of all tokens pushed. A character comes
    out with the token that completes it: at most three bytes wait, so the work a token costs does not depend on
    how many came before it.

    Args:
        tokenizer: Whose tokens they are.
        skip_special_tokens: Leave control tokens out.
        continues: As in ``Tokenizer.decode``.
        table: The bytes of each token, instead of the tokenizer's own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        continues: bool = False,
        table: Sequence[bytes] | None = None,
    ) -> None:
        self._table = tokenizer.byte_table(skip_special_tokens) if table is None else table
        self._utf8 = _utf8("replace")
        self._strip = 0 if continues else tokenizer.strip_left

    def push(self, tokens: Tokens) -> str:
        """Take the next tokens; returns the text that they complete."""
        return self._stripped(self._utf8.decode(b"".join(bytes_of(self._table, tokens))))

    def finish(self) -> str:
        """The sequence ends: returns U+FFFD for a character left incomplete, else nothing."""
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text
