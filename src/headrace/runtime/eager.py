"""``EagerExecutor``: the reference. PyTorch, plain and exact; one forward a step for the whole ragged batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.memory.commands import carry_out
from headrace.memory.page_form import PageForm
from headrace.models.families.model import FamilyModel
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import (
    NO_MASKS,
    Batch,
    BatchQueue,
    FloatArray,
    IntArray,
    Mask,
    StepOutput,
    Ticket,
    TokenLogprobs,
    empty_output,
    whole_prompt,
)
from headrace.runtime.eager_state import STATE_ROW, GroupPages, PagedState, Row
from headrace.runtime.pooling import pool
from headrace.runtime.sampler import token_logprobs
from headrace.runtime.slots import SlotTable
from headrace.runtime.state_layout import PAGE_TOKENS, StateLayout, state_layouts

# Prompt positions whose logits are held at once: 64 x 49,152 float32 are 12 MB.
LOGIT_ROWS = 64


def set_threads(threads: int) -> int:
    """Let PyTorch compute with so many threads; returns the number that it took."""
    torch.set_num_threads(threads)
    return torch.get_num_threads()


def torch_version() -> str:
    """PyTorch's version, which decides how it adds."""
    return str(torch.__version__)


def torch_dtype(name: str) -> torch.dtype:
    """``float32`` or ``bfloat16`` as PyTorch's own."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


class EagerExecutor:
    """Runs batches with PyTorch on the CPU, in ``collect``, on the caller's thread.

    Args:
        model: The family module.
        spec: The model's dimensions.
        layouts: What the pages of each group hold, from ``layouts_for``.
        state: uint8 [bytes], the arena.
        forms: How the pages of each group lie there.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
    """

    ahead = 0

    def __init__(
        self,
        model: FamilyModel,
        spec: ModelSpec,
        layouts: Sequence[StateLayout],
        *,
        state: npt.NDArray[np.uint8],
        forms: Sequence[PageForm],
        slots: int,
        context_length: int,
    ) -> None:
        self.model = model
        self._state, self._forms = state, tuple(forms)
        self._tables = [np.full(len(state) // form.slab_bytes * form.slab_pages, -1, np.int64) for form in forms]
        self.forwards = 0  # counted, so that a test can hold us to one a step
        row_pages = [-(-context_length // PAGE_TOKENS) if x.group.by_token else STATE_ROW for x in layouts]
        self.slots = SlotTable(slots, row_pages, spec.vocab_size)
        dtype = next(model.parameters()).dtype
        self._groups = [
            GroupPages(layout, state, form.slab_bytes, dtype) for layout, form in zip(layouts, forms, strict=True)
        ]
        self._queue = BatchQueue()

    @staticmethod
    def layouts_for(spec: ModelSpec, dtype: torch.dtype) -> tuple[StateLayout, ...]:
        """The layouts of the pages that an executor of this element type reads and writes."""
        return state_layouts(spec, dtype.itemsize)

    def submit(self, batch: Batch) -> Ticket:
        """Queue a batch; it runs when it is collected."""
        return self._queue.put(batch)

    def collect(self, ticket: Ticket, masks: Mapping[int, Mask] = NO_MASKS) -> StepOutput:
        """Run the oldest batch and return what it produced.

        Args:
            ticket: The batch's.
            masks: Tokens that may be drawn from a row; all, where it has no mask.

        Raises:
            RuntimeError: The ticket is not the oldest batch's.
        """
        batch = self._queue.take(ticket)
        begin = time.perf_counter()
        try:
            with torch.inference_mode():
                self._apply(batch)
                rows = self._rows(batch)
                if not rows:
                    return empty_output(batch.step)
                hidden = self._forward(batch, rows)
                return self._output(batch, rows, hidden, masks, begin)
        except Exception:
            self._queue.clear()
            raise

    def prompt_logits(self, tokens: IntArray, rows: range) -> Iterator[FloatArray]:
        """The logits after some positions of one sequence, computed alone in slot 0 and the first pages.

        Args:
            tokens: int32 [n], the sequence.
            rows: The positions.

        Yields:
            float32 [some, vocab].
        """
        batch = whole_prompt(tokens, PAGE_TOKENS, self._forms[0])
        with torch.inference_mode():
            self._apply(batch)
            hidden = self._forward(batch, self._rows(batch))
            for at in range(rows.start, rows.stop, LOGIT_ROWS):
                yield self.model.logits(hidden[at : min(rows.stop, at + LOGIT_ROWS)]).numpy()

    def _apply(self, batch: Batch) -> None:
        carry_out(batch.commands, self._forms, self._tables, self._state)
        self.slots.apply(batch)

    def _rows(self, batch: Batch) -> list[Row]:
        ends = batch.starts + np.diff(batch.offsets)
        parts = (batch.slots, batch.offsets[:-1], batch.offsets[1:], ends)
        return [Row(*numbers) for numbers in zip(*(part.tolist() for part in parts), strict=True)]

    def _forward(self, batch: Batch, rows: list[Row]) -> Tensor:
        """[total, hidden]: the final hidden vectors; writes what the sequences keep into the pages."""
        self.forwards += 1
        positions = torch.cat([torch.arange(row.start, row.context) for row in rows])
        tokens = torch.from_numpy(self.slots.resolve(batch).astype(np.int64))
        state = PagedState(self._groups, self._tables, self.slots.page_rows, rows)
        return self.model.hidden(tokens, positions, state)

    def _output(
        self, batch: Batch, rows: list[Row], hidden: Tensor, masks: Mapping[int, Mask], begin: float
    ) -> StepOutput:
        # Before a token is drawn: drawing changes slots, so what fails after it could not be run again.
        prompt = tuple(self._prompt_logprobs(row, hidden) for row in rows)
        tokens = np.full(len(rows), -1, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        pooled = pool(batch, self.slots, lambda begin, end: [hidden[begin:end].float().numpy()])
        drawn = self.slots.drawing(batch)
        if len(drawn):
            last = torch.tensor([rows[i].end - 1 for i in drawn])
            logits = self.model.logits(hidden[last]).numpy()
            for i, row_logits in zip(drawn.tolist(), logits, strict=True):
                try:
                    tokens[i], logprobs[i] = self.slots.draw(rows[i].slot, row_logits, rows[i].context, masks.get(i))
                except Exception as error:
                    pooled.errors[i] = str(error)
        accepted, seconds = (tokens >= 0).astype(np.int32), time.perf_counter() - begin
        return StepOutput(
            batch.step, tokens, accepted, tuple(logprobs), prompt, pooled.errors, seconds, pooled.embeddings
        )

    def _prompt_logprobs(self, row: Row, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of the prompt tokens that follow this row's positions."""
        slot = self.slots[row.slot]
        top = slot.sampling.prompt_logprobs
        first = row.start
        count = min(row.context, slot.prompt_length - 1) - first
        if top is None or count <= 0:
            return ()
        reports: list[TokenLogprobs] = []
        for at in range(0, count, LOGIT_ROWS):
            many = min(LOGIT_ROWS, count - at)
            logits = self.model.logits(hidden[row.begin + at : row.begin + at + many]).numpy()
            follows = slot.tokens[first + at + 1 : first + at + many + 1].tolist()
            reports += [token_logprobs(x, token, top) for x, token in zip(logits, follows, strict=True)]
        return tuple(reports)
