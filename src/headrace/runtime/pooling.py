"""Embeddings: the hidden vectors of a prompt, as batches compute them, to one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.runtime.batch import Batch, FloatArray
from headrace.runtime.slots import SlotTable

# From a token of a batch up to, and without, another: their hidden vectors in order, float32 [some, hidden] each.
HiddenVectors = Callable[[int, int], Iterable[FloatArray]]


@dataclass(frozen=True, slots=True)
class Pooled:
    """What the hidden vectors of a batch gave.

    Attributes:
        embeddings: Row to float32 [hidden], of the prompts that end in it.
        errors: Row to message, of those whose vector is not finite.
    """

    embeddings: dict[int, FloatArray] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


NOTHING_POOLED = Pooled()  # not to be changed


def pool(batch: Batch, slots: SlotTable, hidden: HiddenVectors) -> Pooled:
    """Take what a batch has computed of prompts that are to be embedded.

    Vectors are added up one after the other, in float64: so the mean does not depend on where a prompt was cut.

    Args:
        batch: What was computed.
        slots: Keep the sums.
        hidden: The normalized hidden vectors, of which logits are made.
    """
    found = Pooled()
    for row, number in enumerate(batch.slots.tolist()):
        slot, ends = slots[number], bool(batch.sample[row])
        pooling = slot.sampling.pooling
        if pooling is None or (pooling == "last" and not ends):
            continue
        begin, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
        for vectors in hidden(begin if pooling == "mean" else end - 1, end):
            for vector in vectors.astype(np.float64):
                slot.hidden_sum = slot.hidden_sum + vector
        if ends:
            vector = np.asarray(slot.hidden_sum / (slot.prompt_length if pooling == "mean" else 1), np.float32)
            if np.isfinite(vector).all():
                found.embeddings[row] = vector
            else:
                found.errors[row] = "the prompt has no embedding: its hidden vectors are not finite"
    return found
