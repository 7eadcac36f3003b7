"""What an executor keeps of each slot: the token that a row of a batch stands for."""

import dataclasses

import numpy as np

from headrace.runtime.batch import FROM_SLOT, Batch, SlotOpen, SlotSampling, decode_batch
from headrace.runtime.slots import SlotTable


def test_tokens_of_a_mixed_batch_come_from_the_batch_or_the_slot():
    table = SlotTable(8, [4], 100)
    table.last_tokens[2], table.last_tokens[7] = 42, 77
    batch = Batch(
        step=1,
        opens=(),
        pages=(),
        slots=np.array([5, 7, 2], np.int32),
        starts=np.array([0, 9, 3], np.int32),
        offsets=np.array([0, 4, 5, 6], np.int32),
        tokens=np.array([9, 31, 4, 11, FROM_SLOT, FROM_SLOT], np.int32),
        sample=np.ones(3, np.bool_),
    )
    assert table.resolve(batch).tolist() == [9, 31, 4, 11, 77, 42]
    assert batch.tokens.tolist()[4:] == [FROM_SLOT, FROM_SLOT]


def test_output_that_comes_in_a_batch_is_counted_once():
    """Prompts and what was drawn are counted already; doing it twice changes nothing."""
    table = SlotTable(2, [4], 10)
    sampling = SlotSampling(temperature=0, frequency_penalty=1.0)

    def batch(start, tokens, opens=()):
        given, offsets = np.array(tokens, np.int32), np.array([0, len(tokens)], np.int32)
        return Batch(1, opens, (), np.zeros(1, np.int32), np.array([start], np.int32), offsets, given, np.ones(1, bool))

    table.apply(batch(0, [1, 2], (SlotOpen(0, np.array([1, 2, 3], np.int32), 2, sampling),)))
    table.apply(batch(2, [3]))
    assert table.draw(0, np.eye(10, dtype=np.float32)[5], 3)[0] == 5
    for _ in range(2):
        table.apply(batch(3, [5, 6, 6]))
        assert table[0].counts.output.tolist() == [0, 0, 0, 1, 0, 1, 2, 0, 0, 0]
    table.apply(batch(6, [FROM_SLOT]))
    assert table[0].counts.output.sum() == 4


def test_a_batch_that_decodes_is_an_ordinary_one():
    """Its short way through the slots gives what the long one gives."""
    table = SlotTable(8, [4], 100)
    table.last_tokens = list(range(10, 18))
    batch = decode_batch(3, (), (), [6, 0, 3], [20, 4, 9])
    assert (batch.rows, batch.offsets.tolist(), batch.sample.tolist()) == (3, [0, 1, 2, 3], [True] * 3)
    assert table.resolve(batch).tolist() == [16, 10, 13]
    assert table.resolve(dataclasses.replace(batch, decode=False)).tolist() == [16, 10, 13]
