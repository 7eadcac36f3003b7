"""What every tokenizer source is reduced to, and the bytes that each of its tokens stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from headrace.errors import CheckpointError

# Far above any real vocabulary; a table has an entry for every id up to the largest.
MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as its source describes it, before anything is derived from it.

    Attributes:
        backend: The encoder: normalizer, pre-tokenizer, model, post-processor, added tokens, decoder.
        source: Where it came from, for error messages.
        bos_token_id: The beginning-of-sequence token, if the model has one.
        eos_token_ids: The tokens that end a sequence, the main one first.
        template_tokens: What chat templates see as ``bos_token``, ``eos_token`` and so on.
        chat_template: The Jinja source that the model ships, if any.
    """

    backend: tokenizers.Tokenizer
    source: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    template_tokens: Mapping[str, str]
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The decoder of a tokenizer as a table.

    Attributes:
        table: The bytes of each token, by id; empty for an id that names no token.
        strip_left: Spaces that decoding removes from the very beginning of a text (SentencePiece's dummy
            prefix).
        present: The byte values that the vocabulary can spell.
    """

    table: list[bytes]
    strip_left: int
    present: frozenset[int]


def byte_alphabet() -> dict[str, int]:
    """The characters in which byte-level BPE spells bytes (GPT-2): printable Latin-1 stands for itself, the
    remaining 68 bytes in ascending order for U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def token_bytes_of(backend: tokenizers.Tokenizer, source: str) -> TokenBytes:
    """Tabulate the decoder of ``backend``.

    Decoding is then joining bytes and reading them as UTF-8, which can be done a token at a time.

    Raises:
        CheckpointError: The decoder is not one whose tokens stand for bytes independently of their neighbours.
    """
    decoder = _decoder_steps(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    if _size(vocab) > MAX_SIZE:
        raise CheckpointError(f"a token has the id {_size(vocab) - 1}; ids must be below {MAX_SIZE}", file=source)
    kinds = [step["type"] for step in decoder]
    if kinds == ["ByteLevel"]:
        return _byte_level(vocab)
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return _sentencepiece(vocab, decoder)
    raise CheckpointError(
        f"unsupported tokenizer decoder {' + '.join(kinds) or 'none'}; known are ByteLevel and "
        "Replace + ByteFallback + Fuse (+ Strip)",
        file=source,
    )


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _byte_level(vocab: Mapping[str, int]) -> TokenBytes:
    alphabet = byte_alphabet()
    # Latin-1 characters outside the alphabet (space, controls) must not pass for bytes: send them out of range.
    to_latin1 = dict.fromkeys(range(256), 65535) | {ord(c): byte for c, byte in alphabet.items()}
    table = [b""] * _size(vocab)
    for token, index in vocab.items():
        try:
            table[index] = token.translate(to_latin1).encode("latin-1")
        except UnicodeEncodeError:
            table[index] = token.encode("utf-8")
    return TokenBytes(table, 0, frozenset(byte for c, byte in alphabet.items() if c in vocab))


def _sentencepiece(vocab: Mapping[str, int], decoder: list[dict[str, Any]]) -> TokenBytes:
    old, new = decoder[0]["pattern"].get("String", ""), decoder[0]["content"]
    strip_left = 0
    if decoder[-1]["type"] == "Strip" and decoder[-1]["content"] == " ":
        strip_left = int(decoder[-1]["start"])
    table = [b""] * _size(vocab)
    present = set()
    for token, index in vocab.items():
        byte = byte_token(token)
        if byte is None:
            table[index] = (token.replace(old, new) if old else token).encode("utf-8")
        else:
            table[index] = bytes([byte])
            present.add(byte)
    return TokenBytes(table, strip_left, frozenset(present))


def byte_token(token: str) -> int | None:
    """The byte that a token such as ``<0x0A>`` stands for in a vocabulary with byte fallback, else None."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


def _size(vocab: Mapping[str, int]) -> int:
    return max(vocab.values(), default=-1) + 1
