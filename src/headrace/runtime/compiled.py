"""``CompiledExecutor``: runs batches with the model's compiled program. No PyTorch."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.compiler.build import load_program
from headrace.compiler.native.pool import ThreadPool
from headrace.models.checkpoint import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.runtime.artifacts import open_model, open_weights
from headrace.runtime.batch import Batch, BatchQueue, StepOutput, Ticket, TokenLogprobs, whole_prompt
from headrace.runtime.compile import BLOCK_TOKENS, CompiledModel
from headrace.runtime.native_program import SLACK, NativeProgram, Tiles, aligned
from headrace.runtime.native_sampler import NativeSampler
from headrace.runtime.packed_weights import Directory, Progress, addresses
from headrace.runtime.sampler import NotFinite
from headrace.runtime.slots import SlotTable
from headrace.runtime.state_layout import PAGE_TOKENS

LOGIT_ROWS = 64  # rows whose logits are computed at once, at least

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Step:
    """A batch as the program wants it."""

    sizes: dict[str, int]
    arguments: dict[str, Ints]
    tiles: Tiles


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled model in memory, before there is memory for sequences.

    Attributes:
        model: The program and what is known of it.
        library: Its native code.
        pool: Who computes.
        weights: Where each weight lies.
        block: The weights' memory, uint8.
    """

    model: CompiledModel
    library: ctypes.CDLL
    pool: ThreadPool
    weights: Directory
    block: npt.NDArray[np.uint8]


def load_compiled(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    recipe: Recipe,
    threads: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Compile a model, or find it compiled, and load it.

    Args:
        checkpoint: The model.
        spec: Its dimensions.
        recipe: The numbers to compute with.
        threads: Threads that compute; one a core by default.
        progress: Called with (bytes of weights done, bytes in all) if they have to be packed.

    Raises:
        ToolchainError: There is no C compiler, or it fails.
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
    """
    model, key = open_model(checkpoint, spec, recipe, threads)
    library = load_program(library_name(spec, recipe), model.source)
    where, block = open_weights(model, key, checkpoint, progress)
    return LoadedModel(model, library, ThreadPool(threads), where, block)


def library_name(spec: ModelSpec, recipe: Recipe) -> str:
    """What a model's library is called; part of its key in the cache."""
    return f"{spec.family}-{recipe.name}"


class CompiledExecutor:
    """Runs batches on a native program, in ``collect``, on the caller's thread and the pool's.

    Args:
        loaded: The compiled model.
        spec: The model's dimensions.
        state: uint8 [bytes], the arena.
        page_table: int64 [handles], byte offset of each page in the arena.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
        batch_tokens: Most tokens of a step.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ModelSpec,
        *,
        state: npt.NDArray[np.uint8],
        page_table: npt.NDArray[np.int64],
        slots: int,
        context_length: int,
        batch_tokens: int,
    ) -> None:
        self.page_table, self.page_bytes = page_table, loaded.model.page_bytes
        self.pages = len(state) // self.page_bytes
        self.forwards = 0  # counted, so that a test can hold us to one a step
        self.slots = SlotTable(slots, -(-context_length // PAGE_TOKENS), spec.vocab_size)
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
        self._queue = BatchQueue()

    def submit(self, batch: Batch) -> Ticket:
        """Queue a batch; it runs when it is collected."""
        return self._queue.put(batch)

    def collect(self, ticket: Ticket) -> StepOutput:
        """Run the oldest batch and return what it produced.

        Raises:
            RuntimeError: The ticket is not the oldest batch's.
        """
        batch = self._queue.take(ticket)
        begin = time.perf_counter()
        self.slots.apply(batch)
        drawn = np.flatnonzero(batch.sample)
        step = self._prepare(batch)
        # As many as there are slots at most, and so many logits there is room for.
        last = batch.offsets[drawn + 1] - 1
        logits = self._run(step, last, (0, len(self.program.source.parts)))
        self.forwards += 1
        # Before a token is drawn: drawing changes slots, so what fails after it could not be run again.
        prompt = tuple(self._prompt_logprobs(batch, i, step) for i in range(batch.rows))
        if any(prompt) and len(drawn):
            logits = self._logits(step, last)
        tokens = np.full(batch.rows, -1, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * batch.rows
        errors: dict[int, str] = {}
        if len(drawn):
            got = self.sampler.draw(
                batch.slots[drawn].tolist(), logits, batch.starts[drawn] + last - batch.offsets[drawn] + 1
            )
            tokens[drawn] = got.tokens
            for at, i in enumerate(drawn.tolist()):
                logprobs[i] = got.logprobs[at]
                if got.tokens[at] < 0:
                    errors[i] = str(NotFinite())
        seconds = time.perf_counter() - begin
        return StepOutput(batch.step, tokens, (tokens >= 0).astype(np.int32), tuple(logprobs), prompt, errors, seconds)

    def prompt_logits(self, tokens: Ints, rows: range) -> Iterator[npt.NDArray[np.float32]]:
        """The logits after some positions of one sequence, computed alone in slot 0 and the first pages.

        Args:
            tokens: int32 [n], the sequence, no longer than a step may be.
            rows: The positions.

        Yields:
            float32 [some, vocab], valid until the next.
        """
        batch = whole_prompt(tokens, PAGE_TOKENS)
        self.slots.apply(batch)
        step = self._prepare(batch)
        self._run(step, np.empty(0, np.int32), (0, len(self.program.source.parts) - 1))
        for at in range(rows.start, rows.stop, len(self._arrays["select"])):
            most = min(rows.stop, at + len(self._arrays["select"]))
            yield self._logits(step, np.arange(at, most, dtype=np.int32))

    def _prepare(self, batch: Batch) -> _Step:
        lengths = np.diff(batch.offsets)
        total, rows = int(batch.offsets[-1]), batch.rows
        arrays = self._arrays
        arrays["tokens"][:total] = self.slots.resolve(batch)
        arrays["positions"][:total] = np.arange(total) + np.repeat(batch.starts - batch.offsets[:-1], lengths)
        arrays["row"][:total] = np.repeat(np.arange(rows), lengths)
        longest = int((batch.starts + lengths).max())
        used = -(-longest // PAGE_TOKENS)
        handles = self.slots.page_rows[batch.slots, :used]
        self._page_rows[:rows, :used] = self.page_table[handles] // self.page_bytes
        sizes = {
            "T": total,
            "B": rows,
            "N": self.pages,
            "P": used,
            "S": used * PAGE_TOKENS,
            "NB": -(-longest // BLOCK_TOKENS),
            "R": 0,
        }
        return _Step(sizes, arrays, tiles_of(batch.offsets, self._loaded.model.ragged_tile))

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
            reports += self.sampler.report(logits, slot.tokens[first + at + 1 : first + at + many + 1], top)
        return tuple(reports)


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
