"""A tokenizer as llguidance wants it: the bytes of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from llguidance import LLTokenizer

from headrace.text.grammar.errors import GrammarError
from headrace.text.tokenizer import Tokenizer


class _TokenTable:
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


def build_token_table(tokenizer: Tokenizer, vocab_size: int) -> tuple[LLTokenizer, tuple[int, ...]]:
    """The library's tokenizer, and the ids that end a text.

    Control tokens spell no text, and rows that name no token are never allowed.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of the model's output, which may be more or fewer than the tokenizer's ids.

    Raises:
        GrammarError: The model has no token that ends a text.
    """
    eos_ids = tuple(token for token in tokenizer.eos_token_ids if 0 <= token < vocab_size)
    if not eos_ids:
        raise GrammarError("the model has no end-of-sequence token, so no grammar could end its text")
    table = [tokenizer.token_bytes(token) for token in range(vocab_size)]
    special = sorted({*tokenizer.special_ids, *eos_ids} & set(range(vocab_size)))
    wrapper = _TokenTable(table, special, eos_ids[0])
    return LLTokenizer(wrapper, eos_token=list(eos_ids)), eos_ids  # type: ignore[arg-type]
