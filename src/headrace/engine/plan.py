"""``Plan``: a step in the making, and the ``Batch`` that it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from headrace.engine.sequence import Sequence
from headrace.memory.commands import PageCommand
from headrace.runtime.batch import FROM_SLOT, Batch, IntArray, PageWrite, SlotOpen, bare_batch, decode_batch


@dataclass(slots=True)
class Plan:
    """A step in the making: its rows, and what the executor must be told beside them.

    Attributes:
        counts: Tokens of each row's sequence.
        opens: Slots that sequences take.
        pages: Rows of pages written, with their owners.
    """

    counts: dict[Sequence, int] = field(default_factory=dict)
    opens: dict[Sequence, SlotOpen] = field(default_factory=dict)
    pages: list[tuple[Sequence, PageWrite]] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that was preempted while the step was planned."""
        self.counts.pop(sequence, None)
        self.opens.pop(sequence, None)
        self.pages = [(owner, write) for owner, write in self.pages if owner is not sequence]


class Planned(NamedTuple):
    """A step that is ready to run.

    Attributes:
        batch: For the executor.
        rows: Of each of its rows: the sequence, and which of its stays in a slot this is.
        pairs: (query, key) pairs of its attention.
    """

    batch: Batch
    rows: list[tuple[Sequence, int]]
    pairs: int

    def positions(self) -> list[int]:
        """Of each row, where the token that it draws stands in its sequence; -1 if it draws none."""
        batch = self.batch
        ends: list[int] = np.where(batch.sample, batch.starts + np.diff(batch.offsets), -1).tolist()
        return ends


def finish(step: int, plan: Plan, commands: tuple[PageCommand, ...]) -> Planned:
    """Make the batch of a plan.

    Args:
        step: Number of the step.
        plan: What it consists of; without rows it only carries commands.
        commands: What becomes of pages.
    """
    pages = tuple([write for _, write in plan.pages])
    if not plan.counts:
        return Planned(bare_batch(step, commands, pages), [], 0)
    rows = [(s, s.stay) for s in plan.counts]
    if not any(s.explicit for s in plan.counts):
        starts = [s.computed for s in plan.counts]
        batch = decode_batch(step, commands, pages, [s.slot for s in plan.counts], starts)
        return Planned(batch, rows, sum(starts) + len(starts))
    counts = np.fromiter(plan.counts.values(), np.int32, len(plan.counts))
    starts_ = np.array([s.computed for s in plan.counts], np.int32)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    batch = Batch(
        step=step,
        commands=commands,
        opens=tuple(plan.opens.values()),
        pages=pages,
        slots=np.array([s.slot for s in plan.counts], np.int32),
        starts=starts_,
        offsets=offsets,
        tokens=np.concatenate([_row_tokens(s, count) for s, count in plan.counts.items()]),
        sample=np.array([count == s.pending for s, count in plan.counts.items()], np.bool_),
    )
    pairs = int((counts.astype(np.int64) * (starts_ + counts)).sum())
    return Planned(batch, rows, pairs)


_DRAWN = np.array([FROM_SLOT], np.int32)


def _row_tokens(sequence: Sequence, count: int) -> IntArray:
    if not sequence.explicit:
        return _DRAWN
    return sequence.tokens[sequence.computed : sequence.computed + count]
