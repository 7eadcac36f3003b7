"""What the engine watches a sample with: its grammar, its stop strings, or both."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
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
        grammar: What the output must follow, or will once it is compiled; None: anything.
        watch: Looks for stop strings; None: there are none.
    """

    def __init__(self, grammar: Future[Grammar] | None, watch: StopWatch | None) -> None:
        self._grammar, self._watch = grammar, watch
        self._matcher: GrammarMatcher | None = None

    @property
    def ready(self) -> bool:
        """Whether its grammar is compiled."""
        return self._grammar is None or self._grammar.done()

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        matcher = self._following()
        return matcher is not None and matcher.is_complete

    def allowed(self) -> Mask | None:
        """uint32 [ceil(vocab / 32)], bits of the tokens that may come next; None: any."""
        matcher = self._following()
        return None if matcher is None else matcher.mask()

    def accept(self, token: int) -> str | None:
        """Take the next output token; returns the stop string that it completed, or None to go on."""
        matcher = self._following()
        if matcher is not None:
            matcher.accept(token)
        return None if self._watch is None else self._watch.accept(token)

    def _following(self) -> GrammarMatcher | None:
        if self._matcher is None and self._grammar is not None:
            try:
                self._matcher = self._grammar.result().matcher()
            except ConstraintError:
                raise
            except Exception as error:  # of the thread that compiles: it is this sample's, not the loop's
                raise ConstraintError(f"the grammar cannot be compiled: {error}") from error
        return self._matcher


class ConstraintMaker:
    """Makes a constraint for each sample, where its request has one.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of the model's output.
        found: How the model writes messages.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, found: Format) -> None:
        self._tokenizer, self._vocab_size, self._format = tokenizer, vocab_size, found
        # One thread: it shares the cores with the model, whose steps must not wait for it.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="compile-grammar")

    def __call__(self, params: OutputSettings) -> OutputConstraint | None:
        """The constraint of one sample, or None."""
        watch = StopWatch(self._stream(params)) if any(params.stop) else None
        if watch is None and params.grammar is None:
            return None
        return OutputConstraint(None if params.grammar is None else self._compiled(params.grammar), watch)

    def try_grammar(self, source: str) -> None:
        """Compile a grammar, which is then at hand.

        Raises:
            ConstraintError: It cannot be compiled.
        """
        OutputConstraint(self._compiled(source), None).allowed()

    @cached_property
    def _grammars(self) -> GrammarEngine:
        return GrammarEngine(self._tokenizer, self._vocab_size)

    def _compiled(self, source: str) -> Future[Grammar]:
        if "_grammars" in self.__dict__ and (kept := self._grammars.kept(source)) is not None:
            done: Future[Grammar] = Future()
            done.set_result(kept)
            return done
        return self._compiler.submit(lambda: self._grammars.compile(source))

    def _stream(self, params: OutputSettings) -> MessageStream:
        form = None if params.reading is None else MessageForm(self._format, Reading.unpacked(params.reading))
        return MessageStream.following(self._tokenizer, params, form)
