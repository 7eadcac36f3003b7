"""``SlotTable``: what an executor keeps of each running sequence from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.runtime.batch import FROM_SLOT, Batch, FloatArray, IntArray, Mask, SlotSampling, TokenLogprobs
from headrace.runtime.sampler import TokenCounts, needs_counts, sample, token_logprobs


@dataclass(slots=True)
class Slot:
    """A running sequence.

    Attributes:
        tokens: int32 [prompt + output] at the time of opening; prompt log probabilities look up what follows.
        prompt_length: How many tokens are prompt.
        sampling: How its tokens are drawn.
        counts: For penalties; None if nothing is penalized.
        hidden_sum: float64 [hidden], of the vectors that were taken for an embedding; 0 before the first.
    """

    tokens: IntArray
    prompt_length: int
    sampling: SlotSampling
    counts: TokenCounts | None
    hidden_sum: npt.NDArray[np.float64] | float = 0.0


class SlotTable:
    """The slots of an executor.

    Args:
        slots: How many sequences run at once.
        row_pages: Most pages of a sequence, of each state group.
        vocab_size: Size of the vocabulary.

    Attributes:
        page_rows: int32 [slots, row_pages] of each state group, handles of each slot's pages.
        last_tokens: [slots], the token that each drew last; some token where it drew none.
        opened: How many slots were opened so far; while it stays the same, each holds the same sequence.
    """

    def __init__(self, slots: int, row_pages: Sequence[int], vocab_size: int) -> None:
        self.page_rows = [np.zeros((slots, pages), np.int32) for pages in row_pages]
        # A row may be submitted before it is known that its slot could draw nothing: it must find a token.
        self.last_tokens = [0] * slots
        self.opened = 0
        self._slots: list[Slot | None] = [None] * slots
        self._vocab_size = vocab_size

    def __getitem__(self, slot: int) -> Slot:
        state = self._slots[slot]
        if state is None:
            raise RuntimeError(f"slot {slot} was never opened")
        return state

    def apply(self, batch: Batch) -> None:
        """Take the batch's openings and page rows. Doing it twice changes nothing."""
        for opened in batch.opens:
            counts = None
            if needs_counts(opened.sampling):
                counts = TokenCounts(opened.tokens, opened.prompt_length, self._vocab_size)
            self._slots[opened.slot] = Slot(opened.tokens, opened.prompt_length, opened.sampling, counts)
            self.opened += 1
        for write in batch.pages:
            self.page_rows[write.group][write.slot, write.start : write.start + len(write.handles)] = write.handles
        if not batch.decode:
            self._count_given(batch)

    def _count_given(self, batch: Batch) -> None:
        """Count output that was not drawn here but comes in a batch."""
        starts, offsets = batch.starts.tolist(), batch.offsets.tolist()
        for row, slot in enumerate(batch.slots.tolist()):
            counts = self[slot].counts
            if counts is not None:
                counted = max(0, counts.length - starts[row])
                for token in batch.tokens[offsets[row] + counted : offsets[row + 1]].tolist():
                    if token != FROM_SLOT:  # its slot could draw nothing
                        counts.add(token)

    def resolve(self, batch: Batch) -> IntArray:
        """int32 [total]: the batch's tokens with ``FROM_SLOT`` replaced by what the slots drew last."""
        last = np.array([self.last_tokens[slot] for slot in batch.slots.tolist()], np.int32)
        if batch.decode:
            return last
        return np.where(batch.tokens == FROM_SLOT, np.repeat(last, np.diff(batch.offsets)), batch.tokens)

    def drawing(self, batch: Batch) -> IntArray:
        """int32 [draws]: the rows of a batch from which tokens are drawn; prompts that are embedded end without."""
        rows = np.flatnonzero(batch.sample).astype(np.int32)
        return rows[[self[slot].sampling.pooling is None for slot in batch.slots[rows].tolist()]]

    def draw(
        self, slot: int, logits: FloatArray, position: int, mask: Mask | None = None
    ) -> tuple[int, TokenLogprobs | None]:
        """Draw the token at ``position`` of the slot's sequence from float32 [vocab] logits and remember it."""
        state = self[slot]
        sampling, length = state.sampling, position - state.prompt_length
        token = sample(logits, sampling, state.counts, position=position, output_length=length, mask=mask)
        report = None if sampling.logprobs is None else token_logprobs(logits, token, sampling.logprobs)
        self.last_tokens[slot] = token
        if state.counts is not None:
            state.counts.add(token)
        return token, report
