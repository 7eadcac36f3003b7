"""Tokenizers that spell: a token for every byte, and one for each control token."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headrace.text.tokenizer import Tokenizer
from headrace.text.vocabulary import Vocabulary, byte_alphabet

END = "<|END|>"


def spelling_tokenizer(control: Sequence[str] = (), template: str | None = None) -> Tokenizer:
    """A tokenizer whose tokens are bytes, the control tokens and ``END``."""
    letters = dict(byte_alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*control, END)])
    end = backend.token_to_id(END)
    return Tokenizer(Vocabulary(backend, "spelled", None, (end,), {"eos_token": END}, template))
