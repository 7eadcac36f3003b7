"""What the engine watches a sample with: its grammar, its stop strings, or both."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import cached_property
from typing import Protocol

from headrace.errors import ConstraintError
from headrace.text.formats.notation import Format
from headrace.text.grammar.engine import Grammar, GrammarEngine, GrammarMatcher, Mask
from headrace.text.reading import Reading
from headrace.text.stream import MessageForm, MessageStream, StopSettings, StopWatch
from headrace.text.tokenizer import Tokenizer


class OutputSettings(StopSettings, Protocol):
    """The part of a request's sampling parameters that a constraint needs."""

    @property
    def grammar(self) -> str | None:
        """What the output must follow."""

    @property
    def reading(self) -> str | None:
        """How the message is taken apart, packed."""


class OutputConstraint:
    """Follows one sample; the engine's ``TokenConstraint``.

    Args:
        matcher: Follows its grammar, or will once that is compiled; None: anything goes.
        watch: Looks for stop strings; None: there are none.
        aside: Where it prepares.
    """

    def __init__(self, matcher: Future[GrammarMatcher] | None, watch: StopWatch | None, aside: Executor) -> None:
        self._begun, self._watch, self._aside = matcher, watch, aside
        self._prepared: Future[str | None] | None = None

    @property
    def ready(self) -> bool:
        """Whether its grammar is compiled, and what it was to prepare is known."""
        return all(future is None or future.done() for future in (self._begun, self._prepared))

    @property
    def slow(self) -> bool:
        """Whether masks of its grammar take long."""
        matcher = self._matcher()
        return matcher is not None and matcher.grammar.is_slow

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        matcher = self._matcher()
        return matcher is not None and matcher.is_complete

    def allowed(self) -> Mask | None:
        """uint32 [ceil(vocab / 32)], bits of the tokens that may come next; None: any."""
        matcher = self._matcher()
        return None if matcher is None else matcher.mask()

    def prepare(self, token: int) -> None:
        """Take the next token, and see what is allowed behind it, on another thread."""
        self._prepared = self._aside.submit(self._look, token)

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        prepared, self._prepared = self._prepared, None
        return self._take(token) if prepared is None else prepared.result()

    def close(self) -> None:
        """Take back what no thread has begun."""
        for future in (self._begun, self._prepared):
            if future is not None:
                future.cancel()

    def _look(self, token: int) -> str | None:
        matched = self._take(token)
        if matched is None and not self.complete:
            self.allowed()
        return matched

    def _take(self, token: int) -> str | None:
        matcher = self._matcher()
        if matcher is not None:
            matcher.accept(token)
        return None if self._watch is None else self._watch.accept(token)

    def _matcher(self) -> GrammarMatcher | None:
        if self._begun is None:
            return None
        try:
            return self._begun.result()
        except ConstraintError:
            raise
        except Exception as error:  # of the thread that compiles: it is this sample's, not the loop's
            raise ConstraintError(f"the grammar cannot be compiled: {error}") from error


class ConstraintMaker:
    """Makes a constraint for each sample, where its request has one.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of the model's output.
        found: How the model writes messages.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, found: Format) -> None:
        self._tokenizer, self._vocab_size, self._format = tokenizer, vocab_size, found
        # One thread each: they share the cores with the model, whose steps must not wait for them.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile-grammar")
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="slow-masks")

    def __call__(self, params: OutputSettings) -> OutputConstraint | None:
        """The constraint of one sample, or None."""
        watch = StopWatch(self._stream(params)) if any(params.stop) else None
        if watch is None and params.grammar is None:
            return None
        return OutputConstraint(None if params.grammar is None else self._matcher(params.grammar), watch, self._aside)

    def try_grammar(self, source: str) -> None:
        """Compile a grammar, which is then at hand.

        Raises:
            ConstraintError: It cannot be compiled.
        """
        OutputConstraint(self._matcher(source), None, self._aside).allowed()

    @cached_property
    def _grammars(self) -> GrammarEngine:
        return GrammarEngine(self._tokenizer, self._vocab_size)

    def _matcher(self, source: str) -> Future[GrammarMatcher]:
        kept = self._grammars.kept(source) if "_grammars" in self.__dict__ else None
        if kept is None:
            return self._compiler.submit(lambda: _begun(self._grammars.compile(source)))
        if kept.is_slow:
            return self._aside.submit(_begun, kept)
        at_once: Future[GrammarMatcher] = Future()
        at_once.set_result(kept.matcher())
        return at_once

    def _stream(self, params: OutputSettings) -> MessageStream:
        form = None if params.reading is None else MessageForm(self._format, Reading.unpacked(params.reading))
        return MessageStream.following(self._tokenizer, params, form)


def _begun(grammar: Grammar) -> GrammarMatcher:
    """A matcher that knows what may come first."""
    matcher = grammar.matcher()
    if not matcher.is_complete:
        matcher.mask()
    return matcher
