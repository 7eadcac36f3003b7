"""``CompiledExecutor``: runs batches with the model's compiled program. No PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.models.spec import ModelSpec
from headrace.runtime.batch import Batch, StepOutput, Ticket, TokenLogprobs
from headrace.runtime.native_program import SLACK, NativeProgram, Tiles, aligned
from headrace.runtime.sampler import token_logprobs
from headrace.runtime.slots import SlotTable
from headrace.runtime.state_layout import StateLayout

BLOCK_TOKENS = 256  # of attention: positions whose share is computed alone
TILE_ROWS = 8  # tokens of one sequence that a task of attention takes

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch as the program wants it."""

    sizes: dict[str, int]
    arguments: dict[str, Ints]
    tiles: Tiles


class CompiledExecutor:
    """Runs batches on a native program, in ``collect``, on the caller's thread and the pool's.

    Args:
        program: The compiled model.
        spec: The model's dimensions.
        layout: What a page holds.
        page_table: int64 [handles], byte offset of each page in the arena.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
        batch_tokens: Most tokens of a step.
        select_rows: Rows whose logits are computed at once.
    """

    def __init__(
        self,
        program: NativeProgram,
        spec: ModelSpec,
        layout: StateLayout,
        *,
        page_table: npt.NDArray[np.int64],
        pages: int,
        slots: int,
        context_length: int,
        row_pages: int,
        batch_tokens: int,
        select_rows: int,
    ) -> None:
        self.program, self.layout, self.page_table, self.pages = program, layout, page_table, pages
        self.forwards = 0  # counted, so that a test can hold us to one a step
        self.slots = SlotTable(slots, -(-context_length // layout.page_tokens), spec.vocab_size)
        self.vocab = spec.vocab_size
        self._arrays = {
            "tokens": _array(batch_tokens),
            "positions": _array(batch_tokens),
            "row": _array(batch_tokens),
            "page_rows": _array(max(slots, 1) * row_pages),
            "select": _array(select_rows),
        }
        self._page_rows = self._arrays["page_rows"].reshape(-1, row_pages)
        self._pending: list[Batch] = []

    def submit(self, batch: Batch) -> Ticket:
        """Queue a batch; it runs when it is collected."""
        self._pending.append(batch)
        return Ticket(batch.step)

    def collect(self, ticket: Ticket) -> StepOutput:
        """Run the oldest batch and return what it produced.

        Raises:
            RuntimeError: The ticket is not the oldest batch's.
        """
        batch = self._pending.pop(0)
        if batch.step != ticket.step:
            raise RuntimeError(f"batch {batch.step} is to be collected before batch {ticket.step}")
        begin = time.perf_counter()
        self.slots.apply(batch)
        drawn = np.flatnonzero(batch.sample)
        step = self._prepare(batch)
        last = batch.offsets[drawn + 1] - 1
        first = min(len(last), len(self._arrays["select"]))
        logits = self._run(step, last[:first], (0, len(self.program.source.parts)))
        self.forwards += 1
        prompt = tuple(self._prompt_logprobs(batch, i, step) for i in range(batch.rows))
        tokens = np.full(batch.rows, -1, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * batch.rows
        errors: dict[int, str] = {}
        if any(prompt) and first:
            logits = self._logits(step, last[:first])
        for at, i in enumerate(drawn.tolist()):
            if at and at % first == 0:
                logits = self._logits(step, last[at : at + first])
            position = int(batch.starts[i] + batch.offsets[i + 1] - batch.offsets[i])
            try:
                tokens[i], logprobs[i] = self.slots.draw(int(batch.slots[i]), logits[at % first], position)
            except Exception as error:
                errors[i] = str(error)
        seconds = time.perf_counter() - begin
        return StepOutput(batch.step, tokens, (tokens >= 0).astype(np.int32), tuple(logprobs), prompt, errors, seconds)

    def _prepare(self, batch: Batch) -> _Step:
        lengths = np.diff(batch.offsets)
        total, rows = int(batch.offsets[-1]), batch.rows
        arrays = self._arrays
        arrays["tokens"][:total] = self.slots.resolve(batch)
        arrays["positions"][:total] = np.arange(total) + np.repeat(batch.starts - batch.offsets[:-1], lengths)
        arrays["row"][:total] = np.repeat(np.arange(rows), lengths)
        longest = int((batch.starts + lengths).max())
        used = -(-longest // self.layout.page_tokens)
        handles = self.slots.page_rows[batch.slots, :used]
        self._page_rows[:rows, :used] = self.page_table[handles] // self.layout.page_bytes
        sizes = {
            "T": total,
            "B": rows,
            "N": self.pages,
            "P": used,
            "S": used * self.layout.page_tokens,
            "NB": -(-longest // BLOCK_TOKENS),
            "R": 0,
        }
        return _Step(sizes, arrays, _tiles(batch.offsets))

    def _run(self, step: _Step, select: Ints, parts: tuple[int, int]) -> npt.NDArray[np.float32]:
        """float32 [selected, vocab]: the logits of rows of the batch, valid until the next call."""
        self._arrays["select"][: len(select)] = select
        self.program.run(step.sizes | {"R": len(select)}, step.arguments, step.tiles, parts)
        return self.program.output("logits")[: len(select) * self.vocab].reshape(len(select), self.vocab)

    def _logits(self, step: _Step, select: Ints) -> npt.NDArray[np.float32]:
        """Logits of other rows of the batch that ran last."""
        parts = len(self.program.source.parts)
        return self._run(step, select, (parts - 1, parts))

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
            logits = self._logits(step, np.arange(begin + at, begin + at + many, dtype=np.int32))
            follows = slot.tokens[first + at + 1 : first + at + many + 1].tolist()
            reports += [token_logprobs(x, token, top) for x, token in zip(logits, follows, strict=True)]
        return tuple(reports)


def _tiles(offsets: Ints) -> Tiles:
    """Each row of the batch in shares of at most ``TILE_ROWS`` tokens."""
    lengths = np.diff(offsets)
    counts = -(-lengths // TILE_ROWS)
    segment = np.repeat(np.arange(len(lengths), dtype=np.int32), counts)
    first = np.cumsum(counts) - counts
    begin = offsets[:-1][segment] + (np.arange(len(segment)) - first[segment]) * TILE_ROWS
    end = np.minimum(begin + TILE_ROWS, offsets[1:][segment])
    return Tiles(segment, begin.astype(np.int32), end.astype(np.int32))


def _array(size: int) -> Ints:
    """Zeros, with room behind them for the last vector."""
    return aligned(size * 4 + SLACK).view(np.int32)[:size]
