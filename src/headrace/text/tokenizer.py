"""``Tokenizer``: text to tokens and back, on the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import tokenizers

from headrace.errors import CheckpointError, InvalidInput
from headrace.models.checkpoint import TokenizerSource
from headrace.text.chat_template import ChatTemplate
from headrace.text.folder_vocabulary import read_folder_vocabulary
from headrace.text.gguf_vocabulary import read_gguf_vocabulary
from headrace.text.vocabulary import Vocabulary, token_bytes_of

Tokens = Sequence[int] | np.ndarray[tuple[int], np.dtype[np.integer]]
"""Token ids: any sequence of ints, or a one-dimensional integer array."""

# Some tokenizers load, and fail at the first character that they cannot spell.
PROBE = "a 1\n\0é字\U0001f600"

# The library holds the interpreter's lock while it encodes one text, but not for a batch: from this many characters
# (some 10 ms) on, other threads are let run.
LONG_TEXT = 10_000


class Tokenizer:
    """Text to tokens and back, for one model. Immutable, and safe to use from several threads.

    Attributes:
        vocab_size: The largest token id plus one.
        bos_token_id: The beginning-of-sequence token, if the model has one.
        eos_token_ids: The tokens that end a sequence, the main one first.
        special_ids: Control tokens, which ``skip_special_tokens`` leaves out of the text.
        missing_bytes: Byte values that no token spells. Encoding drops them, as the model's own tokenizer
            does (SmolLM2's vocabulary lacks 21); a round trip is exact only for text without them.
        chat_template: The model's chat template, or None if it ships none.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._backend = vocabulary.backend
        decoding = token_bytes_of(vocabulary.backend, vocabulary.source)
        added = vocabulary.backend.get_added_tokens_decoder()
        self._table = decoding.table
        self._strip_left = decoding.strip_left
        self.vocab_size = len(decoding.table)
        self.missing_bytes = frozenset(range(256)) - decoding.present
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        # Skipped tokens are tokens without bytes, so both ways of decoding are the same lookup.
        self._table_without_special = [
            b"" if index in self.special_ids else token for index, token in enumerate(self._table)
        ]
        self.chat_template = (
            None
            if vocabulary.chat_template is None
            else ChatTemplate(vocabulary.chat_template, vocabulary.template_tokens)
        )

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The tokens of ``text``.

        Args:
            text: Any text without lone surrogates; null bytes are text like any other.
            add_special_tokens: Add what the model wants around a text, such as its BOS token.
            parse_special: Read the spelling of a control token, such as ``<|im_end|>``, as that token; else
                it is text like any other.

        Raises:
            InvalidInput: The text holds a lone surrogate, so it has no UTF-8 form.
        """
        check_text(text)
        backend = self._backend if parse_special else self._plain_backend
        if len(text) > LONG_TEXT:
            return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        """``encode`` of each text, on all cores.

        Raises:
            InvalidInput: A text holds a lone surrogate; ``field`` is its index, such as ``[2]``.
        """
        for i, text in enumerate(texts):
            check_text(text, field=f"[{i}]")
        backend = self._backend if parse_special else self._plain_backend
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Tokens, *, skip_special_tokens: bool = True, continues: bool = False) -> str:
        """The text of ``tokens``: their bytes, joined, read as UTF-8.

        Bytes that are not UTF-8 become U+FFFD, one for each maximal ill-formed part (Unicode 15, section 3.9).
        Ids that name no token, such as the padding rows of an output layer, have no text.

        Args:
            tokens: Token ids.
            skip_special_tokens: Leave control tokens out.
            continues: The tokens continue a text, so keep the space that SentencePiece vocabularies put
                before the first word of one. Without meaning for byte-level vocabularies.
        """
        table = self.byte_table(skip_special_tokens)
        text = b"".join(bytes_of(table, tokens)).decode("utf-8", "replace")
        return text if continues else strip_spaces(text, self._strip_left)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes that ``token`` stands for; empty for an id that names no token."""
        return self._table[token] if 0 <= token < len(self._table) else b""

    def token_text(self, token: int) -> str:
        """``token`` alone as text, control tokens spelled out; bytes that are not UTF-8 become U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of the vocabulary entry written ``text`` (in the vocabulary's own spelling), or None."""
        return self._backend.token_to_id(text)

    def byte_table(self, skip_special_tokens: bool) -> Sequence[bytes]:
        """The bytes of each token by id; those of control tokens are empty if they are to be skipped."""
        return self._table_without_special if skip_special_tokens else self._table

    def byte_table_showing(self, texts: Iterable[str]) -> Sequence[bytes]:
        """The bytes of each token by id, those of control tokens empty but for the ones that occur in these texts."""
        joined = "\0".join(texts)
        shown = [index for index in self.special_ids if (text := self.token_text(index)) and text in joined]
        table = list(self._table_without_special)
        for index in shown:
            table[index] = self._table[index]
        return table

    @property
    def strip_left(self) -> int:
        """Spaces that ``decode`` removes from the beginning of a text."""
        return self._strip_left

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """The same encoder (its parts are shared), but blind to control tokens in the text."""
        own = self._backend
        plain = tokenizers.Tokenizer(own.model)
        if own.normalizer is not None:
            plain.normalizer = own.normalizer
        if own.pre_tokenizer is not None:
            plain.pre_tokenizer = own.pre_tokenizer
        if own.post_processor is not None:
            plain.post_processor = own.post_processor
        if own.decoder is not None:
            plain.decoder = own.decoder
        # In the order of their ids, so that those outside the model's vocabulary get the same ids again.
        plain.add_tokens([token for _, token in sorted(own.get_added_tokens_decoder().items())])
        plain.encode_special_tokens = True
        return plain


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Build the tokenizer that a checkpoint describes.

    Args:
        source: Either ``folder``, with ``tokenizer.json`` and its companions, or ``gguf``, the
            ``tokenizer.*`` metadata of a GGUF file.

    Raises:
        CheckpointError: The tokenizer is missing, malformed, or of a kind not known here.
    """
    file = "GGUF metadata" if source.folder is None else str(source.folder / "tokenizer.json")
    try:
        if source.folder is not None:
            tokenizer = Tokenizer(read_folder_vocabulary(source.folder))
        elif source.gguf is not None:
            tokenizer = Tokenizer(read_gguf_vocabulary(source.gguf, file))
        else:
            raise CheckpointError("the checkpoint describes no tokenizer", file="checkpoint")
        tokenizer.encode(PROBE)
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of a damaged file the library makes bare Exceptions, and panics, which are none
        raise CheckpointError(f"the tokenizer cannot be used: {error}", file=file) from error
    return tokenizer


def check_text(text: str, *, field: str | None = None) -> None:
    """Raise ``InvalidInput`` unless ``text`` has a UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = f"U+{ord(text[error.start]):04X}"
        message = f"the text holds a lone surrogate ({lone} at character {error.start}), so it is not Unicode text"
        raise InvalidInput(message, field=field, code="invalid_unicode") from None


def bytes_of(table: Sequence[bytes], tokens: Tokens) -> Iterable[bytes]:
    """The entry of each token; empty for ids outside the table."""
    ids = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    size = len(table)
    return [table[token] if 0 <= token < size else b"" for token in ids]


def strip_spaces(text: str, limit: int) -> str:
    """``text`` without up to ``limit`` leading spaces."""
    count = 0
    while count < limit and text[count : count + 1] == " ":
        count += 1
    return text[count:]
