"""``GrammarEngine``: grammars for one vocabulary, compiled, kept, and followed token by token.

llguidance does the work: an Earley parser over a lexer whose automaton is built while it is used and shared by all
matchers of a grammar. It never raises: after an error it allows nothing but an end. So every call is followed by a
look for an error here, and a grammar that had one is compiled anew for the next request.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from headrace.text.grammar.errors import GrammarError
from headrace.text.grammar.vocabulary import TokenTable, build_token_table
from headrace.text.tokenizer import Tokenizer

Mask = NDArray[np.uint32]
"""Allowed tokens: token t is bit t % 32, counted from the lowest, of word t // 32."""

# The bounds that every grammar is compiled and followed under, as the library names them.
LIMITS = {
    # Each costs some 2 kB and stays as long as the grammar; a string of bounded length takes one a character.
    "max_lexer_states": 50_000,
    # Of one mask. An ambiguous grammar makes items without end, and their time grows faster than their number: a mask
    # of 50,000, which the library allows, takes half a second, in which no other sample goes on; one of 20,000, 45 ms.
    "step_max_items": 20_000,
    # An object whose properties may all be left out has up to three for each where it begins.
    "max_items_in_row": 5000,
    # Of one mask; a password's pattern with four lookaheads needs some 600,000, which take 20 ms.
    "step_lexer_fuel": 1_000_000,
}
# A mask takes some 10 us, and all that a step needs are made one after the other. Of a grammar whose masks lately took
# longer than this in the mean, no step should wait for one.
SLOW_SECONDS = 0.001
RECENT = 1 / 8  # what the latest mask counts in that mean
CONTROLS = "// control tokens: "
# The library descends some stack frames for each rule or group within another. A source of no more than so many rules
# and groups compiles on any stack of 8 MiB (measured: 1500 rules of two groups overflow it); a deeper one gets its own.
MOST_NESTED = 1000
COMPILE_STACK = 256 << 20  # touched only as far as needed


def parser_limits() -> LLParserLimits:
    """``LIMITS`` for the library."""
    return LLParserLimits(**LIMITS, verbose_errors=False)  # type: ignore[arg-type]


class GrammarEngine:
    """Grammars for one model. Safe to use from several threads.

    Args:
        tokenizer: The model's tokenizer.
        vocab_size: Rows of the model's output layer; None: as many as the tokenizer has ids. Rows beyond the
            tokenizer's ids are never allowed.
        kept: How many compiled grammars to keep, the latest used ones.

    Raises:
        GrammarError: The model has no token that ends a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None, *, kept: int = 64) -> None:
        self.vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._table = build_token_table(tokenizer, self.vocab_size)
        self._kept = kept
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, source: str) -> Grammar:
        """The grammar of a source text; at once if it is kept.

        Args:
            source: What the functions of ``sources.py`` return.

        Raises:
            GrammarError: It does not compile.
        """
        kept = self.kept(source)
        if kept is not None:
            return kept
        table = self._table.with_controls(named_controls(source))
        grammar = Grammar(_compiled(table.library, source), table)
        with self._lock:
            self._grammars[source] = grammar
            while len(self._grammars) > self._kept:
                self._grammars.popitem(last=False)
        return grammar

    def kept(self, source: str) -> Grammar | None:
        """The grammar of a source text, if it was compiled lately."""
        with self._lock:
            grammar = self._grammars.get(source)
            if grammar is None or grammar.is_broken:
                return None
            self._grammars.move_to_end(source)
            return grammar


class Grammar:
    """A compiled grammar; many samples may follow it at once.

    Attributes:
        is_broken: A matcher met an error, which the lexer that all of them share may not have survived.
        mask_seconds: What a mask has lately taken of a core.
        first_mask: What may come first, once a matcher has found it out: the others need not.
    """

    def __init__(self, matcher: LLMatcher, table: TokenTable) -> None:
        self._matcher = matcher
        self._table = table
        self.is_broken = False
        self.mask_seconds = 0.0
        self.first_mask: Mask | None = None

    @property
    def is_slow(self) -> bool:
        """Whether its masks take long. All matchers share a lexer, so that whoever calls one waits for the others."""
        return self.mask_seconds > SLOW_SECONDS

    def note_mask(self, seconds: float) -> None:
        """A mask took so long."""
        self.mask_seconds += RECENT * (seconds - self.mask_seconds)

    def matcher(self) -> GrammarMatcher:
        """A matcher at the beginning of a text."""
        return GrammarMatcher(self, self._matcher.deep_copy(), self._table)


class GrammarMatcher:
    """The place of one sample in its grammar. Not for several threads at once.

    Attributes:
        grammar: The grammar.
        may_end: Whether the text may end here.
        is_complete: Whether nothing but an end can follow.
    """

    def __init__(self, grammar: Grammar, matcher: LLMatcher, table: TokenTable) -> None:
        self.grammar = grammar
        self._matcher = matcher
        self._table = table
        self._mask = grammar.first_mask  # made, and not of a token before
        self._is_new = True

    def accept(self, token: int) -> None:
        """Take the next token.

        Raises:
            GrammarError: It does not fit, or the grammar has become too complex; the matcher is of no use then.
        """
        self._mask, self._is_new = None, False
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarError(f"token {token} does not fit the grammar")

    def mask(self) -> Mask:
        """The tokens that may come next, [ceil(vocab_size / 32)] uint32; an end token exactly where the text may end.

        Raises:
            GrammarError: The grammar has become too complex, or leads nowhere; the matcher is of no use then.
        """
        if self._mask is None:
            began = time.thread_time()  # neither who else has the core counts, nor who else has the lexer
            self._mask = self._made()
            self.grammar.note_mask(time.thread_time() - began)
            if self._is_new:
                self.grammar.first_mask = self._mask
        return self._mask

    def _made(self) -> Mask:
        mask = np.empty(self._table.words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        # The library lets a complement match control tokens. No source is written that does; this is the second lock.
        mask &= self._table.plain
        if self._matcher.is_accepting():
            mask |= self._table.ends
        elif not mask.any():
            raise GrammarError("the grammar leads to a place from which no token goes on")
        return mask

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end can follow."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            self.grammar.is_broken = True
            raise GrammarError(f"the grammar cannot be followed further: {_first_line(self._matcher.get_error())}")


def named_controls(source: str) -> list[int]:
    """The control tokens that a grammar may ask for, by its second line; see ``control_line``."""
    line = source.split("\n", 2)[1:2]
    return [int(token) for token in line[0][len(CONTROLS) :].split()] if line and line[0].startswith(CONTROLS) else []


def control_line(tokens: Iterable[int]) -> str:
    """The second line of a source that asks for control tokens, which no user's grammar has."""
    return CONTROLS + " ".join(map(str, sorted(tokens)))


def _compiled(tokens: LLTokenizer, source: str) -> LLMatcher:
    """A matcher at the beginning of a source."""
    deep = source.count("\n") + source.count("(") > MOST_NESTED
    matcher = _on_large_stack(tokens, source) if deep else _matcher(tokens, source)
    if matcher.is_error():
        raise GrammarError(f"the grammar does not compile: {_first_line(matcher.get_error())}")
    return matcher


def _matcher(tokens: LLTokenizer, source: str) -> LLMatcher:
    return LLMatcher(tokens, source, log_level=0, limits=parser_limits())


def _on_large_stack(tokens: LLTokenizer, source: str) -> LLMatcher:
    """Compile on a thread of its own; where the cores are busy, changing to it takes longer than most grammars."""
    made: list[LLMatcher] = []
    with _STACK_SIZE_LOCK:
        before = threading.stack_size(COMPILE_STACK)
        try:
            thread = threading.Thread(target=lambda: made.append(_matcher(tokens, source)), name="compile-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return made[0]


_STACK_SIZE_LOCK = threading.Lock()  # the size is a setting of the whole process


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:300]
