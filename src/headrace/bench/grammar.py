"""What constrained generation costs: a schema to a grammar, a grammar to a matcher, a mask for each token.

CPU time of this process, so that what else the machine does is not counted.

Texts to follow are made by the grammar itself: of the tokens that a mask allows, a seeded choice, with a leaning to
those that close what is open, so that texts end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.errors import InvalidInput
from headrace.text.grammar import GrammarEngine, GrammarMatcher, json_schema_source
from headrace.text.tokenizer import Tokenizer

ENDINGS = frozenset(b'"]},0:')
LEANING = 0.7  # how often a token of nothing but these is preferred


class Spread(msgspec.Struct, frozen=True):
    """CPU times of one kind, in seconds."""

    count: int
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The spread of at least one time."""
        p50, p99, most = np.percentile(seconds, [50, 99, 100])
        return cls(len(seconds), float(p50), float(p99), float(most))


class GrammarCosts(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        schemas: Schemas that became grammars.
        refused: Schemas that were refused.
        ended: Texts that came to their end within the tokens given.
        source: From a schema to the source of a grammar: checks and rewriting.
        compile: From a source to a compiled grammar.
        both: The two together.
        first_mask: The first mask of a grammar.
        mask: Any later mask.
        accept: Taking a token.
    """

    vocab_size: int
    schemas: int
    refused: int
    ended: int
    source: Spread
    compile: Spread
    both: Spread
    first_mask: Spread
    mask: Spread
    accept: Spread


def read_schemas(folder: Path) -> Iterator[Any]:
    """The schemas of a folder: each ``*.json`` file, and each line of the ``*.jsonl`` files.

    Raises:
        InvalidInput: There is no such file, or one is no JSON.
    """
    files = sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")])
    if not files:
        raise InvalidInput(f"{str(folder)!r} holds no *.json or *.jsonl file", field="FOLDER")
    for file in files:
        text = file.read_text()
        for part in text.split("\n") if file.suffix == ".jsonl" else [text]:
            if part.strip():
                try:
                    yield json.loads(part)
                except ValueError as error:
                    raise InvalidInput(f"{str(file)!r} is no JSON: {error}", field="FOLDER") from None


def measure_grammars(schemas: Sequence[Any], tokenizer: Tokenizer, *, tokens: int = 256, seed: int = 0) -> GrammarCosts:
    """Compile the grammar of each schema anew and follow one text in it.

    Args:
        schemas: JSON Schemas; those that are refused are counted.
        tokenizer: The model's.
        tokens: The most tokens of a text.
        seed: Of the choice of tokens.

    Raises:
        InvalidInput: All are refused.
    """
    engine = GrammarEngine(tokenizer, kept=1)
    rng = np.random.default_rng(seed)
    closing = {
        token
        for token in range(tokenizer.vocab_size)
        if (text := tokenizer.token_bytes(token)) and set(text) <= ENDINGS
    }
    sources: list[float] = []
    compiles: list[float] = []
    first: list[float] = []
    masks: list[float] = []
    accepts: list[float] = []
    refused = ended = 0
    for schema in schemas:
        begin = time.process_time()
        try:
            source = json_schema_source(schema, field="schema")
        except InvalidInput:
            refused += 1
            continue
        middle = time.process_time()
        matcher = engine.compile(source + f"// {len(sources)}\n").matcher()
        compiles.append(time.process_time() - middle)
        sources.append(middle - begin)
        times = _follow(matcher, closing, tokens, rng)
        first.append(times[0][0])
        masks += times[0][1:]
        accepts += times[1]
        ended += matcher.may_end
    if not sources:
        raise InvalidInput("every schema is refused, so there is nothing to measure", field="FOLDER")
    both = [a + b for a, b in zip(sources, compiles, strict=True)]
    spreads = (Spread.of(times or [0.0]) for times in (sources, compiles, both, first, masks, accepts))
    return GrammarCosts(tokenizer.vocab_size, len(sources), refused, ended, *spreads)


def _follow(
    matcher: GrammarMatcher, closing: set[int], tokens: int, rng: np.random.Generator
) -> tuple[list[float], list[float]]:
    """Seconds of each mask and of each token taken, until the text may end or has its tokens."""
    masks: list[float] = []
    accepts: list[float] = []
    for _ in range(tokens):
        begin = time.process_time()
        mask = matcher.mask()
        masks.append(time.process_time() - begin)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if matcher.may_end:
            break
        preferred = [int(token) for token in allowed if int(token) in closing]
        choices = preferred if preferred and rng.random() < LEANING else allowed
        token = int(rng.choice(choices))
        begin = time.process_time()
        matcher.accept(token)
        accepts.append(time.process_time() - begin)
    return masks, accepts
