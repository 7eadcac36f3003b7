"""An executor without a model: each token is written into the pages, and the next one follows from what is read there.

So a page that was lost, moved wrongly, shared by mistake or written too early shows as another token. What the tokens
must be is known from the prompt alone (``expected``).
"""

import numpy as np

from headrace.memory.commands import POISON, carry_out
from headrace.memory.state_memory import READ, WRITE
from headrace.runtime.batch import NO_MASKS, BatchQueue, StepOutput
from headrace.runtime.pooling import pool
from headrace.runtime.sampler import allowed_tokens
from headrace.runtime.slots import SlotTable

VOCAB = 200


def mixed(value, token):
    return (31 * value + token + 7) % 65_521


def of_tokens(tokens):
    value = 1
    for token in tokens:
        value = mixed(value, token)
    return value


def hidden(groups, tokens):
    """What is made of the tokens, as far as each kind of state remembers them."""
    parts = [of_tokens(tokens[-group.window :] if group.window else tokens) for group in groups]
    return of_tokens([part % VOCAB for part in parts])


def next_token(groups, tokens):
    """What follows from the tokens."""
    return hidden(groups, tokens) % VOCAB


def expected_embedding(groups, prompt, pooling):
    """The embedding of a prompt; each vector has one number."""
    every = [hidden(groups, prompt[: end + 1]) for end in range(len(prompt))]
    return np.float32(np.mean(every) if pooling == "mean" else every[-1])


def nearest(token, mask):
    """The first allowed token from this one on, and from the start behind the last."""
    if mask is None:
        return token
    allowed = np.flatnonzero(allowed_tokens(mask, VOCAB))
    return int(allowed[np.searchsorted(allowed, token) % len(allowed)])


def expected(groups, prompt, count, constraint=None):
    """What follows from a prompt, as far as a constraint goes."""
    tokens = list(prompt)
    for _ in range(count):
        if constraint is not None and constraint.complete:
            break
        mask = None if constraint is None else constraint.allowed()
        tokens.append(nearest(next_token(groups, tokens), mask))
        if constraint is not None:
            constraint.accept(tokens[-1])
    return tokens[len(prompt) :]


class ByteExecutor:
    """See the module.

    Args:
        memory: Whose pages; a token's share is its number in each byte, a state's the value in its first two.
        slots: Sequences that run at once.
        context_length: Most tokens of a sequence.
        ahead: Batches that it wants ahead.
        fault: Raises for a batch (given with its tokens) that shall fail, before or after it was computed.
    """

    def __init__(self, memory, slots, context_length, ahead=1, fault=lambda batch, tokens: None):
        self.ahead, self.fault = ahead, fault
        self.groups, self.page_tokens = memory.groups, memory.page_tokens
        self.buffer = np.full(memory.arena.nbytes, POISON, np.uint8)
        self.forms = [group.form for group in self.groups]
        self.tables = [np.full(pool.capacity, -1, np.int64) for pool in memory.pools]
        pages = -(-context_length // self.page_tokens)
        self.slots = SlotTable(slots, [pages if group.by_token else 2 for group in self.groups], VOCAB)
        self._queue = BatchQueue()

    def submit(self, batch):
        return self._queue.put(batch)

    def collect(self, ticket, masks=NO_MASKS):
        try:
            return self._run(self._queue.take(ticket), masks)
        except Exception:
            self._queue.clear()
            raise

    def _run(self, batch, masks):
        carry_out(batch.commands, self.forms, self.tables, self.buffer)
        self.slots.apply(batch)
        assert all(batch.sample[row] for row in masks), "a mask for a row that draws nothing"
        tokens, drawn = self.slots.resolve(batch).tolist(), []
        self.fault(batch, tokens)
        vectors = np.zeros((len(tokens), 1), np.float32)
        drawing = self.slots.drawing(batch).tolist()
        for row, slot in enumerate(batch.slots.tolist()):
            begin, end = int(batch.offsets[row]), int(batch.offsets[row + 1])
            vectors[begin:end, 0] = self._row(slot, int(batch.starts[row]), tokens[begin:end])
            found = nearest(int(vectors[end - 1, 0]) % VOCAB, masks.get(row))
            drawn.append(found if row in drawing else -1)
            if row in drawing:
                self.slots.last_tokens[slot] = found
        pooled = pool(batch, self.slots, lambda begin, end: [vectors[begin:end]])
        self.fault(batch, tokens)
        got = np.array(drawn, np.int32)
        none = (None,) * batch.rows
        seconds = 0.001 * len(batch.tokens)
        accepted = (got >= 0).astype(np.int32)
        return StepOutput(
            batch.step, got, accepted, none, ((),) * batch.rows, seconds=seconds, embeddings=pooled.embeddings
        )

    def _row(self, slot, start, tokens):
        """The hidden value at the last position of a row; at each position, if that is asked for."""
        every = self.slots[slot].sampling.pooling is not None
        positions = range(start if every else start + len(tokens) - 1, start + len(tokens))
        parts = []
        for n, group in enumerate(self.groups):
            row = self.slots.page_rows[n][slot]
            if group.by_token:
                for at, token in enumerate(tokens, start):
                    for pieces in self._pieces(n, row[at // self.page_tokens]):
                        pieces[:, at % self.page_tokens] = token
                parts.append([self._seen(n, row, at + 1) for at in positions])
                continue
            value = 1 if not start else int(self._pieces(n, row[READ])[0].reshape(-1)[:2].view("<u2")[0])
            values = []
            for token in tokens:
                value = mixed(value, token)
                values.append(value)
            for pieces in self._pieces(n, row[WRITE]):
                pieces.reshape(-1, 2)[:] = np.array([value], "<u2").view(np.uint8)
            parts.append(values[-len(positions) :])
        return [of_tokens([part % VOCAB for part in at]) for at in zip(*parts, strict=True)]

    def _seen(self, n, row, end):
        window = self.groups[n].window
        return of_tokens([self._token(n, row, at) for at in range(max(0, end - window) if window else 0, end)])

    def _pieces(self, group, handle):
        return self.forms[group].pieces(self.buffer, int(self.tables[group][handle]))

    def _token(self, group, row, at):
        found = {int(x) for p in self._pieces(group, row[at // self.page_tokens]) for x in p[:, at % self.page_tokens]}
        assert len(found) == 1, "the pieces of a page were torn apart"
        return found.pop()
