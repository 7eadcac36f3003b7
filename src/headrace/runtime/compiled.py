"""``CompiledExecutor``: runs batches with the model's compiled program. No PyTorch."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.memory.commands import carry_out
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import (
    NO_MASKS,
    Batch,
    BatchQueue,
    Mask,
    StepOutput,
    Ticket,
    TokenLogprobs,
    empty_output,
    whole_prompt,
)
from headrace.runtime.loaded_model import LoadedModel
from headrace.runtime.native_program import SLACK, Bound, NativeProgram, Tiles, aligned
from headrace.runtime.native_sampler import Drawn, NativeSampler
from headrace.runtime.packed_weights import addresses
from headrace.runtime.pooling import NOTHING_POOLED, pool
from headrace.runtime.sampler import NotFinite
from headrace.runtime.slots import SlotTable
from headrace.runtime.state_layout import PAGE_TOKENS

LOGIT_ROWS = 64  # rows whose logits are computed at once, at least

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch as the program wants it: symbols, arguments, and how many tiles there are."""

    sizes: dict[str, int]
    bound: Bound
    tiles: int


class _Draws(NamedTuple):
    """Where tokens are drawn in a batch.

    Attributes:
        rows: int32 [draws], rows of the batch.
        last: int32 [draws], index of each one's last token in the batch.
        slots: [draws].
        positions: int32 [draws], of the tokens drawn, in their sequences.
    """

    rows: Ints
    last: Ints
    slots: list[int]
    positions: Ints


class _Running(NamedTuple):
    """The batch that the program computes.

    Attributes:
        step: As the program has it.
        draws: Where tokens are to be drawn.
        begun: When it began.
    """

    step: _Step
    draws: _Draws
    begun: float


class CompiledExecutor:
    """Runs batches on a native program: the pool's threads begin when a batch is next, the caller joins in ``collect``.

    A batch that was submitted early begins at the end of ``collect`` of the one before, so that the pool computes it
    while the caller looks at what that one produced and plans what comes after.

    Args:
        loaded: The compiled model.
        spec: The model's dimensions.
        state: uint8 [bytes], the arena.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
        batch_tokens: Most tokens of a step.
    """

    ahead = 1

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ModelSpec,
        *,
        state: npt.NDArray[np.uint8],
        slots: int,
        context_length: int,
        batch_tokens: int,
    ) -> None:
        self._form = loaded.model.pages
        self.pages = len(state) // self._form.page_bytes
        self._table = np.full(self.pages, -1, np.int64)
        self.forwards = 0  # counted, so that a test can hold us to one a step
        self.slots = SlotTable(slots, [-(-context_length // PAGE_TOKENS)], spec.vocab_size)
        self.vocab = spec.vocab_size
        self.sampler = NativeSampler(loaded.pool, self.slots, slots, spec.vocab_size)
        select_rows = max(slots, LOGIT_ROWS)
        self.program = NativeProgram(
            loaded.model.source,
            loaded.library,
            loaded.pool,
            weights=addresses(loaded.weights, loaded.block),
            states=[state.ctypes.data + offset for offset in loaded.model.state_offsets],
            capacity={"T": batch_tokens, "R": select_rows},
        )
        self._loaded, self._state = loaded, state  # kept alive: native code has their addresses
        row_pages = -(-spec.context_length // PAGE_TOKENS)
        self._arrays = {
            "tokens": _array(batch_tokens),
            "positions": _array(batch_tokens),
            "row": _array(batch_tokens),
            "page_rows": _array(slots * row_pages),
            "select": _array(select_rows),
        }
        self._page_rows = self._arrays["page_rows"].reshape(-1, row_pages)
        # When every row is one token, rows, their tokens and their tiles are all counted alike.
        self._count = _array(max(slots, select_rows) + 1)
        self._count[:] = np.arange(len(self._count))
        self._decode = self.program.bind(
            self._arrays | {"row": self._count}, Tiles(self._count, self._count, self._count[1:])
        )
        self._logits = self.program.output("logits")[: select_rows * self.vocab].reshape(select_rows, self.vocab)
        self._selected = self._logits[:0]
        size = select_rows * spec.hidden_size
        self._hidden = self.program.output("hidden")[:size].reshape(select_rows, spec.hidden_size)
        # The parts of a step; the one behind them gives hidden vectors.
        self._parts = len(loaded.model.prepared.program.parts)
        self._ones = np.ones(slots, np.int32)
        self._queue = BatchQueue()
        # Of the oldest batch: how it runs, why it could not begin, or nothing because it has no rows.
        self._running: _Running | Exception | None = None

    def submit(self, batch: Batch) -> Ticket:
        """Take a batch; it begins at once if no other is there."""
        idle = self._queue.oldest is None
        ticket = self._queue.put(batch)
        if idle:
            self._begin(batch)
        return ticket

    def collect(self, ticket: Ticket, masks: Mapping[int, Mask] = NO_MASKS) -> StepOutput:
        """Help with the oldest batch, draw its tokens, and begin the next one.

        Args:
            ticket: The batch's.
            masks: Tokens that may be drawn from a row; all, where it has no mask.

        Raises:
            RuntimeError: The ticket is not the oldest batch's.
        """
        batch = self._queue.take(ticket)
        running, self._running = self._running, None
        try:
            if isinstance(running, Exception):
                raise running
            output = empty_output(batch.step) if running is None else self._finish(batch, running, masks)
        except Exception:
            self._queue.clear()
            raise
        following = self._queue.oldest
        if following is not None:
            self._begin(following)
        return output

    def _begin(self, batch: Batch) -> None:
        begun = time.perf_counter()
        try:
            self._apply(batch)
            if batch.rows:
                step, draws = self._prepare(batch), self._draws(batch)
                self._select(step, draws.last)
                self.program.start(step.sizes, step.bound, step.tiles, (0, self._parts))
                self._running = _Running(step, draws, begun)
        except Exception as error:  # it is the batch's, not of whoever happens to call
            self._running = error

    def _finish(self, batch: Batch, running: _Running, masks: Mapping[int, Mask]) -> StepOutput:
        step, draws = running.step, running.draws
        self.program.join()
        self.forwards += 1
        logits = self._selected_logits(len(draws.last))
        # Before a token is drawn: drawing changes slots, so what fails after it could not be run again.
        prompt: tuple[tuple[TokenLogprobs, ...], ...] = ((),) * batch.rows
        pooled = NOTHING_POOLED
        if not batch.decode:
            pooled = pool(batch, self.slots, functools.partial(self._hidden_of, step))
            prompt = tuple(self._prompt_logprobs(batch, i, step) for i in range(batch.rows))
            if any(prompt):
                logits = self._logits_of(step, draws.last)
        if masks and not batch.decode:
            masks = {i: masks[row] for i, row in enumerate(draws.rows.tolist()) if row in masks}
        got = self.sampler.draw(draws.slots, logits, draws.positions, masks) if draws.slots else Drawn(draws.rows, [])
        errors = pooled.errors | {
            i: str(NotFinite()) for i, token in zip(draws.rows.tolist(), got.tokens.tolist(), strict=True) if token < 0
        }
        if errors or len(draws.slots) < batch.rows:
            got = _spread(got, draws.rows, batch.rows)
            accepted = (got.tokens >= 0).astype(np.int32)
        else:
            accepted = self._ones[: batch.rows]
        seconds = time.perf_counter() - running.begun
        return StepOutput(
            batch.step, got.tokens, accepted, tuple(got.logprobs), prompt, errors, seconds, pooled.embeddings
        )

    def prompt_logits(self, tokens: Ints, rows: range) -> Iterator[npt.NDArray[np.float32]]:
        """The logits after some positions of one sequence, computed alone in slot 0 and the first pages.

        Args:
            tokens: int32 [n], the sequence, no longer than a step may be.
            rows: The positions.

        Yields:
            float32 [some, vocab], valid until the next.
        """
        batch = whole_prompt(tokens, PAGE_TOKENS, self._form)
        self._apply(batch)
        step = self._prepare(batch)
        self._run(step, np.empty(0, np.int32), (0, self._parts - 1))
        for at in range(rows.start, rows.stop, len(self._arrays["select"])):
            most = min(rows.stop, at + len(self._arrays["select"]))
            yield self._logits_of(step, np.arange(at, most, dtype=np.int32))

    def _apply(self, batch: Batch) -> None:
        carry_out(batch.commands, (self._form,), (self._table,), self._state)
        self.slots.apply(batch)

    def _prepare(self, batch: Batch) -> _Step:
        total, rows = len(batch.tokens), batch.rows
        arrays = self._arrays
        arrays["tokens"][:total] = self.slots.resolve(batch)
        if batch.decode:
            arrays["positions"][:total] = batch.starts
            longest = max(batch.starts.tolist()) + 1
            bound, tiles = self._decode, rows
        else:
            lengths = np.diff(batch.offsets)
            arrays["positions"][:total] = np.arange(total) + np.repeat(batch.starts - batch.offsets[:-1], lengths)
            arrays["row"][:total] = np.repeat(np.arange(rows), lengths)
            longest = int((batch.starts + lengths).max())
            cut = tiles_of(batch.offsets, self._loaded.model.ragged_tile)
            bound, tiles = self.program.bind(arrays, cut), len(cut.segment)
        used = -(-longest // PAGE_TOKENS)
        handles = self.slots.page_rows[0][batch.slots, :used]
        self._page_rows[:rows, :used] = self._table[handles] // self._form.page_bytes
        sizes = {
            "T": total,
            "B": rows,
            "N": self.pages,
            "P": used,
            "S": used * PAGE_TOKENS,
            "NB": -(-longest // self._loaded.model.prepared.positions),
            "R": 0,
        }
        return _Step(sizes, bound, tiles)

    def _draws(self, batch: Batch) -> _Draws:
        if batch.decode:
            every = self._count[: batch.rows]
            return _Draws(every, every, batch.slots.tolist(), batch.starts + 1)
        rows = self.slots.drawing(batch)
        last = batch.offsets[rows + 1] - 1
        positions = batch.starts[rows] + last - batch.offsets[rows] + 1
        return _Draws(rows, last, batch.slots[rows].tolist(), positions)

    def _select(self, step: _Step, rows: Ints) -> None:
        """Which rows of the batch logits are wanted of; as many as there are slots at most, or ``LOGIT_ROWS``."""
        self._arrays["select"][: len(rows)] = rows
        step.sizes["R"] = len(rows)

    def _run(self, step: _Step, select: Ints, parts: tuple[int, int]) -> None:
        """Run some parts of the program, for these rows of the batch."""
        self._select(step, select)
        self.program.run_bound(step.sizes, step.bound, step.tiles, parts)

    def _selected_logits(self, count: int) -> npt.NDArray[np.float32]:
        if len(self._selected) != count:  # else the same object, whose address the sampler knows
            self._selected = self._logits[:count]
        return self._selected

    def _logits_of(self, step: _Step, select: Ints) -> npt.NDArray[np.float32]:
        """Logits of other rows of the batch that ran last; float32 [selected, vocab], valid until the next call."""
        self._run(step, select, (self._parts - 1, self._parts))
        return self._selected_logits(len(select))

    def _hidden_of(self, step: _Step, begin: int, end: int) -> Iterator[npt.NDArray[np.float32]]:
        """Hidden vectors of rows of the batch that ran last, in order; float32 [some, hidden], valid until the next."""
        most = len(self._arrays["select"])
        for at in range(begin, end, most):
            rows = np.arange(at, min(end, at + most), dtype=np.int32)
            self._run(step, rows, (self._parts, self._parts + 1))
            yield self._hidden[: len(rows)]

    def _prompt_logprobs(self, batch: Batch, i: int, step: _Step) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of the prompt tokens that follow this row's positions."""
        slot = self.slots[int(batch.slots[i])]
        top = slot.sampling.prompt_logprobs
        first, begin, end = int(batch.starts[i]), int(batch.offsets[i]), int(batch.offsets[i + 1])
        count = min(first + end - begin, slot.prompt_length - 1) - first
        if top is None or count <= 0:
            return ()
        reports: list[TokenLogprobs] = []
        most = len(self._arrays["select"])
        for at in range(0, count, most):
            many = min(most, count - at)
            logits = self._logits_of(step, np.arange(begin + at, begin + at + many, dtype=np.int32))
            reports += self.sampler.report(logits, slot.tokens[first + at + 1 : first + at + many + 1], top)
        return tuple(reports)


def _spread(got: Drawn, at: Ints, rows: int) -> Drawn:
    """What was drawn from some rows as what was drawn from all: -1 and None where nothing was."""
    tokens = np.full(rows, -1, np.int32)
    tokens[at] = got.tokens
    logprobs: list[TokenLogprobs | None] = [None] * rows
    for i, entry in zip(at.tolist(), got.logprobs, strict=True):
        logprobs[i] = entry
    return Drawn(tokens, logprobs)


def tiles_of(offsets: Ints, most: int) -> Tiles:
    """Each row of a batch in shares of at most so many tokens."""
    lengths = np.diff(offsets)
    counts = -(-lengths // most)
    segment = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    first = np.cumsum(counts) - counts
    begin = offsets[:-1][segment] + (np.arange(len(segment)) - first[segment]) * most
    end = np.minimum(begin + most, offsets[1:][segment])
    return Tiles(segment, begin.astype(np.int32), end.astype(np.int32))


def _array(size: int) -> Ints:
    """Zeros, with room behind them for the last vector."""
    return aligned(size * 4 + SLACK).view(np.int32)[:size]
