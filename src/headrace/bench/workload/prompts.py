"""From segments to tokens: sequences of words each of which is one token, so that lengths are exact.

The same prompt can be sent as token ids and as text, to servers that take only one of them, and means the same tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headrace.bench.workload.records import Segment
from headrace.bench.workload.seeds import generator
from headrace.errors import InvalidInput

Ints = npt.NDArray[np.int64]
Tokenize = Callable[[str], Sequence[int]]
T = TypeVar("T")

LEAST_WORDS = 64
WORDS_A_CALL = 256  # a text that any context holds
# Words are tried behind this one: some tokenizers treat what begins a text unlike the rest.
ANCHOR = " the"
WORD_BYTES = 4  # of a hash, for each word drawn


@dataclass(frozen=True, slots=True, eq=False)
class Lexicon:
    """Words of one tokenizer that are one token each, in any order and number.

    Attributes:
        ids: Token of each word, int64, all different.
        texts: Each word with the space before it.
        bare_start: The first word of a text goes without its space, as tokenizers want it that add one themselves.
    """

    ids: Ints
    texts: tuple[str, ...]
    bare_start: bool = False

    def __len__(self) -> int:
        return len(self.texts)


def common_words() -> tuple[str, ...]:
    """Some 1,800 common English words in lower case, each once."""
    return tuple(Path(__file__).with_name("words.txt").read_text("utf-8").split())


def build_lexicon(tokenize: Tokenize, words: Iterable[str] | None = None) -> Lexicon:
    """The words that are one token when a space is before them.

    Takes some ten calls if nearly all are, and about 2 log2(256) more for each one that is not.

    Args:
        tokenize: Token ids of a text, without special tokens such as one for the beginning.
        words: Candidates, without spaces; ``common_words()`` by default.

    Raises:
        InvalidInput: Fewer than 64 remain, or the tokenizer joins words, so that lengths could not be told.
    """
    anchor = list(tokenize(ANCHOR))
    candidates = list(dict.fromkeys(common_words() if words is None else words))
    found: list[tuple[str, int]] = []
    for chunk in _chunks(candidates):
        found += _single_tokens(chunk, anchor, tokenize)
    times: dict[int, int] = {}
    for _, token in found:
        times[token] = times.get(token, 0) + 1
    # Several words of the same token are its way to say that it knows none of them.
    kept = [(f" {word}", token) for word, token in found if times[token] == 1]
    if len(kept) < LEAST_WORDS:
        raise InvalidInput(
            f"only {len(kept)} of {len(candidates)} common words are one token of this tokenizer, and {LEAST_WORDS} "
            "are needed to write prompts of exact lengths; check that it is the served model's, and that it adds no "
            "special tokens",
            field="tokenizer",
        )
    lexicon = Lexicon(np.array([token for _, token in kept], np.int64), tuple(text for text, _ in kept))
    return _checked(lexicon, tokenize)


def draw(lexicon: Lexicon, seed: int, salt: str, segment: Segment) -> Ints:
    """The words of a segment: a function of seed, salt, key and size of the lexicon.

    With fewer tokens it is the beginning of what it is with more. Two keys share a first word by chance only, one time
    in ``len(lexicon)``.

    Args:
        lexicon: What is drawn from, all words equally often (but for one part in 10^6).
        seed: Of the run.
        salt: Of the round: another one gives other words, so that no round finds the one before it in a cache.
        segment: Its key names the words, its tokens say how many.

    Returns:
        int64[segment.tokens], indices of words.
    """
    # An extendable hash is a stream that depends on nothing but its name, and stays the same in all versions of NumPy.
    name = f"{seed} {len(salt)} {salt} {segment.key}".encode()
    stream = hashlib.shake_128(name).digest(WORD_BYTES * segment.tokens)
    numbers = np.frombuffer(stream, "<u4").astype(np.int64)
    return numbers * len(lexicon) >> 8 * WORD_BYTES


def draw_prompt(lexicon: Lexicon, seed: int, salt: str, segments: Sequence[Segment]) -> Ints:
    """The words of several segments, one after the other: int64, as ``draw``."""
    if not segments:
        return np.zeros(0, np.int64)
    return np.concatenate([draw(lexicon, seed, salt, segment) for segment in segments])


def ids(lexicon: Lexicon, indices: Ints) -> Ints:
    """Token ids of words: int64[len(indices)]."""
    return lexicon.ids[indices]


def text(lexicon: Lexicon, indices: Ints, *, begins: bool = True) -> str:
    """Text of words, which the tokenizer turns into exactly ``ids(lexicon, indices)``.

    Args:
        lexicon: The words.
        indices: Which, int64.
        begins: Whether a text begins with them, or they stand behind another text.
    """
    joined = "".join(map(lexicon.texts.__getitem__, indices.tolist()))
    return joined[1:] if begins and lexicon.bare_start else joined


def _single_tokens(words: Sequence[str], anchor: Sequence[int], tokenize: Tokenize) -> list[tuple[str, int]]:
    """Those of the words that are one token, each with it, found by halving."""
    tokens = list(tokenize(ANCHOR + "".join(f" {word}" for word in words)))
    behind = tokens[len(anchor) :]
    if len(behind) == len(words) and tokens[: len(anchor)] == anchor:
        return list(zip(words, behind, strict=True))
    if len(words) == 1:
        return []
    half = len(words) // 2
    return _single_tokens(words[:half], anchor, tokenize) + _single_tokens(words[half:], anchor, tokenize)


def _checked(lexicon: Lexicon, tokenize: Tokenize) -> Lexicon:
    """The lexicon, if its words are what they should be in another order and at the beginning of a text too."""
    order = generator(0, "lexicon").permutation(len(lexicon))
    for bare in (False, True):
        tried = Lexicon(lexicon.ids, lexicon.texts, bare)
        if all(
            list(tokenize(text(tried, np.array(chunk)))) == ids(tried, np.array(chunk)).tolist()
            for chunk in _chunks(order.tolist())
        ):
            return tried
    raise InvalidInput(
        "this tokenizer adds special tokens, or cuts words in another way when their order changes, so prompts of "
        "exact lengths cannot be written with it",
        field="tokenizer",
    )


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + WORDS_A_CALL] for start in range(0, len(items), WORDS_A_CALL))
