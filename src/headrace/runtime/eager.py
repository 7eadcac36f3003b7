"""``EagerExecutor``: the reference. PyTorch, plain and exact; one forward a step for the whole ragged batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headrace.models.llama import LlamaModel
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import (
    Batch,
    BatchQueue,
    FloatArray,
    IntArray,
    StepOutput,
    Ticket,
    TokenLogprobs,
    whole_prompt,
)
from headrace.runtime.sampler import token_logprobs
from headrace.runtime.slots import SlotTable
from headrace.runtime.state_layout import StateLayout, state_layout

# Prompt positions whose logits are held at once: 64 x 49,152 float32 are 12 MB.
LOGIT_ROWS = 64


def set_threads(threads: int) -> int:
    """Let PyTorch compute with so many threads; returns the number that it took."""
    torch.set_num_threads(threads)
    return torch.get_num_threads()


def torch_dtype(name: str) -> torch.dtype:
    """``float32`` or ``bfloat16`` as PyTorch's own."""
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


@dataclass(frozen=True, slots=True)
class _Row:
    """Where one sequence's tokens lie: in the batch, in its sequence, in the pages."""

    slot: int
    begin: int
    end: int
    context: int
    pages: Tensor
    mask: Tensor | None


class EagerExecutor:
    """Runs batches with PyTorch on the CPU, in ``collect``, on the caller's thread.

    Args:
        model: The family module.
        spec: The model's dimensions.
        layout: What a page holds, from ``layout_for``.
        state: uint8 [bytes], the arena.
        page_table: int64 [handles], byte offset of each page in the arena.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
    """

    def __init__(
        self,
        model: LlamaModel,
        spec: ModelSpec,
        layout: StateLayout,
        *,
        state: npt.NDArray[np.uint8],
        page_table: npt.NDArray[np.int64],
        slots: int,
        context_length: int,
    ) -> None:
        self.model = model
        self.layout = layout
        self.page_table = page_table
        self.dtype = next(model.parameters()).dtype
        self.forwards = 0  # counted, so that a test can hold us to one a step
        row_pages = -(-context_length // layout.page_tokens)
        self.slots = SlotTable(slots, row_pages, spec.vocab_size)
        self._pages = torch.from_numpy(state).view(self.dtype).view(-1, *layout.shape)
        self._queue = BatchQueue()

    @staticmethod
    def layout_for(spec: ModelSpec, dtype: torch.dtype) -> StateLayout:
        """The layout of the pages that an executor of this element type reads and writes."""
        return state_layout(spec, dtype.itemsize)

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
        with torch.inference_mode():
            self.slots.apply(batch)
            rows = self._rows(batch)
            hidden = self._forward(batch, rows)
            return self._output(batch, rows, hidden, begin)

    def prompt_logits(self, tokens: IntArray, rows: range) -> Iterator[FloatArray]:
        """The logits after some positions of one sequence, computed alone in slot 0 and the first pages.

        Args:
            tokens: int32 [n], the sequence.
            rows: The positions.

        Yields:
            float32 [some, vocab].
        """
        batch = whole_prompt(tokens, self.layout.page_tokens)
        with torch.inference_mode():
            self.slots.apply(batch)
            hidden = self._forward(batch, self._rows(batch))
            for at in range(rows.start, rows.stop, LOGIT_ROWS):
                yield self.model.logits(hidden[at : min(rows.stop, at + LOGIT_ROWS)]).numpy()

    def _rows(self, batch: Batch) -> list[_Row]:
        rows = []
        for i, slot in enumerate(batch.slots.tolist()):
            begin, end = int(batch.offsets[i]), int(batch.offsets[i + 1])
            start, count = int(batch.starts[i]), end - begin
            context = start + count
            handles = self.slots.page_rows[slot, : -(-context // self.layout.page_tokens)]
            pages = torch.from_numpy(self.page_table[handles] // self.layout.page_bytes)
            rows.append(_Row(slot, begin, end, context, pages, _causal_mask(count, context)))
        return rows

    def _forward(self, batch: Batch, rows: list[_Row]) -> Tensor:
        """[total, hidden]: the final hidden vectors; writes keys and values into the pages."""
        self.forwards += 1
        lengths = np.diff(batch.offsets)
        positions = np.arange(batch.offsets[-1]) + np.repeat(batch.starts - batch.offsets[:-1], lengths)
        in_page = torch.from_numpy(positions % self.layout.page_tokens)
        page_of = torch.cat(
            [r.pages[(torch.arange(r.context - (r.end - r.begin), r.context)) // self.layout.page_tokens] for r in rows]
        )

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._pages[:, layer, 0], self._pages[:, layer, 1]
            keys[page_of, in_page] = key
            values[page_of, in_page] = value
            return torch.cat([_attend_row(r, query, keys, values) for r in rows])

        tokens = torch.from_numpy(self.slots.resolve(batch).astype(np.int64))
        return self.model.hidden(tokens, torch.from_numpy(positions), attend)

    def _output(self, batch: Batch, rows: list[_Row], hidden: Tensor, begin: float) -> StepOutput:
        # Before a token is drawn: drawing changes slots, so what fails after it could not be run again.
        prompt = tuple(self._prompt_logprobs(row, hidden) for row in rows)
        tokens = np.full(len(rows), -1, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        errors: dict[int, str] = {}
        drawn = np.flatnonzero(batch.sample)
        if len(drawn):
            last = torch.tensor([rows[i].end - 1 for i in drawn])
            logits = self.model.logits(hidden[last]).numpy()
            for i, row_logits in zip(drawn.tolist(), logits, strict=True):
                try:
                    tokens[i], logprobs[i] = self.slots.draw(rows[i].slot, row_logits, rows[i].context)
                except Exception as error:
                    errors[i] = str(error)
        seconds = time.perf_counter() - begin
        return StepOutput(batch.step, tokens, (tokens >= 0).astype(np.int32), tuple(logprobs), prompt, errors, seconds)

    def _prompt_logprobs(self, row: _Row, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Log probabilities of the prompt tokens that follow this row's positions."""
        slot = self.slots[row.slot]
        top = slot.sampling.prompt_logprobs
        first = row.context - (row.end - row.begin)
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


def _causal_mask(count: int, context: int) -> Tensor | None:
    """Bool [count, context], true where a query sees a key; None where every query sees every key."""
    if count == 1:
        return None
    return torch.ones(count, context, dtype=torch.bool).tril(context - count)


def _attend_row(row: _Row, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[count, heads, head_dim]: attention of one sequence's new tokens over its pages."""
    q = query[row.begin : row.end].transpose(0, 1)
    k = keys[row.pages].flatten(0, 1)[: row.context].transpose(0, 1)
    v = values[row.pages].flatten(0, 1)[: row.context].transpose(0, 1)
    out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=row.mask, enable_gqa=True)
    return out[0].transpose(0, 1)
