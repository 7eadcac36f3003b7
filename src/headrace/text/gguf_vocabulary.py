"""A tokenizer rebuilt from the ``tokenizer.*`` metadata of a GGUF file.

Key names and their meaning: the GGUF specification and llama.cpp, which defines what the file leaves open.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headrace.errors import CheckpointError
from headrace.text.vocabulary import Vocabulary

SPACE = "\u2581"
"""SentencePiece's visible space."""


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# How text is cut before the merges apply, by the vocabulary that first used it.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3_SPLIT = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = ("default", "gpt-2", "gpt2", "phi-2", "olmo", "jais", "mpt", "roberta-bpe")
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "dbrx", "smaug-bpe")
_QWEN2 = ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez")
KNOWN_PRE_TOKENIZERS = (*_GPT2, *_DIGITS_APART, *_LLAMA3, *_QWEN2)

# In these vocabularies a word that is a token is that token, whatever the merges say; they begin with BOS.
_WHOLE_WORDS_FIRST = _LLAMA3


def read_gguf_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary:
    """Rebuild the tokenizer that a GGUF file describes.

    Args:
        metadata: The file's ``tokenizer.*`` keys; arrays as lists or NumPy arrays.
        source: The file, for error messages.

    Raises:
        CheckpointError: A key is missing or malformed, or the tokenizer is of a kind not known here.
    """
    tokens = _strings(metadata, "tokenizer.ggml.tokens", source)
    types = _types(metadata, len(tokens), source)
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level_bpe(metadata, tokens, source)
    elif kind == "llama":
        backend = _sentencepiece_bpe(metadata, tokens, types, source)
    else:
        raise CheckpointError(f"unknown tokenizer.ggml.model {kind!r}; known are gpt2 and llama", file=source)
    _add_special_tokens(backend, tokens, types)
    bos, eos = (_token_id(metadata, name, tokens, source) for name in ("bos", "eos"))
    processor = _post_processor(metadata, tokens, bos, eos)
    if processor is not None:
        backend.post_processor = processor
    return Vocabulary(
        backend=backend,
        source=source,
        bos_token_id=bos,
        eos_token_ids=_eos_token_ids(metadata, tokens, source),
        template_tokens=_template_tokens(metadata, tokens, source),
        chat_template=_chat_template(metadata, source),
    )


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: list[str], source: str) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in KNOWN_PRE_TOKENIZERS:
        known = ", ".join(sorted(KNOWN_PRE_TOKENIZERS))
        raise CheckpointError(f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); known: {known}", file=source)
    merges = [_pair(merge, source) for merge in _strings(metadata, "tokenizer.ggml.merges", source)]
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        # No unknown token: a byte that the vocabulary cannot spell is dropped, as in the model's own tokenizer.
        model = models.BPE(vocab, merges, ignore_merges=name in _WHOLE_WORDS_FIRST)
    except Exception as error:
        raise CheckpointError(f"vocabulary and merges do not fit: {error}", file=source) from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = _pre_tokenizer(name)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    if name in _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    split = _LLAMA3_SPLIT if name in _LLAMA3 else _QWEN2_SPLIT
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int], source: str) -> Tokenizer:
    scores = _list(metadata, "tokenizer.ggml.scores", source)
    if len(scores) != len(tokens):
        raise CheckpointError(f"{len(scores)} scores for {len(tokens)} tokens", file=source)
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.UNKNOWN), None)
    mergeable = [
        kind in (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED) and len(token) > 1
        for token, kind in zip(tokens, types, strict=True)
    ]
    merges = merges_from_scores(tokens, scores, mergeable)
    backend = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    decoding: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if bool(metadata.get("tokenizer.ggml.add_space_prefix", True)):
        # Every stretch of text gets the prefix, after a special token too: that is what llama.cpp does.
        steps.insert(0, normalizers.Prepend(SPACE))
        decoding.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(decoding)
    return backend


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Sequence[bool]
) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins the neighbours whose union is the token of the highest score; as ranked merges these
    are all the ways to cut a token into two tokens, by descending score of the whole. Cuts of one token tie;
    they are ordered by the ids of the parts, which is the order that trained the vocabularies in use.

    Args:
        tokens: The vocabulary by id.
        scores: Log probability or negative rank of each token.
        mergeable: Whether a token may be the result of a merge (bytes and control tokens may not).
    """
    index = {token: i for i, token in enumerate(tokens)}
    ranked = []
    for token, score, allowed in zip(tokens, scores, mergeable, strict=True):
        if not allowed:
            continue
        cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        ranked += [
            (-float(score), index[token], index[left], index[right], left, right)
            for left, right in cuts
            if left in index and right in index
        ]
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_special_tokens(backend: Tokenizer, tokens: list[str], types: Sequence[int]) -> None:
    special, plain = [], []
    for token, kind in zip(tokens, types, strict=True):
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == TokenType.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _post_processor(
    metadata: Mapping[str, Any], tokens: list[str], bos: int | None, eos: int | None
) -> processors.PostProcessor | None:
    # Where the file does not say: SentencePiece and Llama 3 vocabularies begin with BOS.
    begins = metadata.get("tokenizer.ggml.model") == "llama" or metadata.get("tokenizer.ggml.pre") in _LLAMA3
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", begins)) and bos is not None
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and eos is not None
    return _affix_processor(
        (tokens[bos], bos) if add_bos and bos is not None else None,
        (tokens[eos], eos) if add_eos and eos is not None else None,
    )


def _affix_processor(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> processors.PostProcessor | None:
    """The post-processor that adds these (text, id) tokens at the ends, or None if there is none to add."""
    added = [token for token in (bos, eos) if token is not None]
    if not added:
        return None
    # As a list, so that token texts with spaces or colons mean themselves.
    single = [*([bos[0]] if bos else []), "$A", *([eos[0]] if eos else [])]
    return processors.TemplateProcessing(single=single, special_tokens=list(dict.fromkeys(added)))


def _eos_token_ids(metadata: Mapping[str, Any], tokens: list[str], source: str) -> tuple[int, ...]:
    found = (_token_id(metadata, name, tokens, source) for name in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(token for token in found if token is not None))


def _template_tokens(metadata: Mapping[str, Any], tokens: list[str], source: str) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: _token_id(metadata, key, tokens, source) for key, name in names.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None}


def _chat_template(metadata: Mapping[str, Any], source: str) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise CheckpointError("tokenizer.chat_template is not a string", file=source)
    return template


def _token_id(metadata: Mapping[str, Any], name: str, tokens: list[str], source: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if metadata.get(key) is None:
        return None
    try:
        value = operator.index(metadata[key])
    except TypeError:
        raise CheckpointError(f"{key} is not an integer", file=source) from None
    if value == 2**32 - 1:  # how some writers say "none"
        return None
    if not 0 <= value < len(tokens):
        raise CheckpointError(f"{key} is {value}, but there are {len(tokens)} tokens", file=source)
    return value


def _list(metadata: Mapping[str, Any], key: str, source: str) -> list[Any]:
    value = metadata.get(key)
    if value is None or isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise CheckpointError(f"{key} is missing or not an array", file=source)
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _strings(metadata: Mapping[str, Any], key: str, source: str) -> list[str]:
    values = _list(metadata, key, source)
    if not all(isinstance(value, str) for value in values):
        raise CheckpointError(f"{key} holds something that is not text", file=source)
    return values


def _types(metadata: Mapping[str, Any], count: int, source: str) -> list[int]:
    if metadata.get("tokenizer.ggml.token_type") is None:
        return [TokenType.NORMAL] * count
    types = _list(metadata, "tokenizer.ggml.token_type", source)
    if len(types) != count:
        raise CheckpointError(f"{len(types)} token types for {count} tokens", file=source)
    return types


def _pair(merge: str, source: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CheckpointError(f"malformed merge {merge!r}", file=source)
    return left, right
