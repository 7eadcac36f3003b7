"""A tokenizer as llguidance wants it: the bytes of each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from headrace.text.grammar.errors import GrammarError
from headrace.text.tokenizer import Tokenizer


class _Wrapper:
    """What ``LLTokenizer`` reads of a tokenizer; the names are the library's."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_ids: Sequence[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: str) -> NoReturn:
        """The library calls this to tokenize what a grammar forces, which we never ask for."""
        raise NotImplementedError("grammars force no tokens")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A model's tokens.

    Attributes:
        library: The library's tokenizer.
        words: Words of a mask, ceil(vocab_size / 32).
        plain: The tokens that stand for text, as a mask.
        ends: The tokens that end a text, as a mask.
    """

    library: LLTokenizer
    words: int
    plain: NDArray[np.uint32]
    ends: NDArray[np.uint32]

    def with_controls(self, tokens: Sequence[int]) -> TokenTable:
        """The same, with some control tokens counted among those that stand for text."""
        if not tokens:
            return self
        plain = self.plain.copy()
        for token in tokens:
            plain[token >> 5] |= np.uint32(1 << (token & 31))
        return dataclasses.replace(self, plain=plain)


def build_token_table(tokenizer: Tokenizer, vocab_size: int) -> TokenTable:
    """What grammars need to know of a tokenizer.

    Control tokens spell no text, and rows that name no token are never allowed.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of the model's output, which may be more or fewer than the tokenizer's ids.

    Raises:
        GrammarError: The model has no token that ends a text.
    """
    spelled, special, ends = spelled_tokens(tokenizer, vocab_size)
    silent = set(special)
    plain = [token for token in range(vocab_size) if spelled[token] and token not in silent]
    library = LLTokenizer(_Wrapper(spelled, special, ends[0]), eos_token=ends)  # type: ignore[arg-type]
    return TokenTable(library, -(-vocab_size // 32), _mask_of(plain, vocab_size), _mask_of(ends, vocab_size))


def spelled_tokens(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[bytes], list[int], list[int]]:
    """The bytes of each row, the rows that spell no text, and those that end one.

    Raises:
        GrammarError: The model has no token that ends a text.
    """
    ends = [token for token in tokenizer.eos_token_ids if 0 <= token < vocab_size]
    if not ends:
        raise GrammarError("the model has no end-of-sequence token, so no grammar could end its text")
    special = tokenizer.special_ids.union(ends)
    spelled = [tokenizer.token_bytes(token) for token in range(vocab_size)]
    return spelled, [token for token in range(vocab_size) if token in special], ends


def _mask_of(tokens: Sequence[int], vocab_size: int) -> NDArray[np.uint32]:
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
