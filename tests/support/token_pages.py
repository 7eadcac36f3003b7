"""Pages whose bytes are their tokens, as an executor would write them: whoever reads them sees whose they are."""

import itertools
from dataclasses import dataclass, field

import numpy as np

from headrace.memory.commands import POISON
from headrace.memory.page_form import PageForm
from headrace.memory.room import Room
from headrace.memory.state_memory import READ, WRITE, Holding, MemoryGroup, StateMemory

PAGE, WINDOW, STEP = 4, 7, 9
FULL = PageForm.of(4, [(1, 8), (2, 4)])
NARROW = PageForm.of(4, [(1, 12)])
STATE = PageForm.of(4, [(1, 20)])
KINDS = {
    "full": (True, FULL, 0),
    "window": (True, NARROW, WINDOW),
    "state": (False, STATE, 0),
}


class FaultyRoom(Room):
    """Makes room, pages moved and evicted, and says all the same that there is none, when a test wants it to.

    Attributes:
        plan: What becomes of the next calls that ask for pages: whether each is refused. None of those behind them is.
        refused: Whether the last call was.
        refusals: How many were.
    """

    plan = ()
    refused = False
    refusals = 0

    def make(self, counts):
        made, self.refused = super().make(counts), False
        if any(counts) and self.plan:
            self.refused, *self.plan = self.plan
        self.refusals += self.refused
        return made and not self.refused


class FaultyMemory(StateMemory):
    def reset(self):
        super().reset()
        self.room = FaultyRoom(self.arena, self.pools, self.tree)


def memory(nbytes, kinds=("full",), slab=96, make=StateMemory, **options):
    groups = [MemoryGroup(by_token, form.in_slabs(slab), window) for by_token, form, window in map(KINDS.get, kinds)]
    options = {"clock": itertools.count().__next__} | options  # by the clock of the wall nothing would happen twice
    return make(groups, nbytes=nbytes, page_tokens=PAGE, **options)


def array(values):
    return np.array(values, np.int32)


def state_after(tokens):
    """What a recurrent layer would have: it depends on every token and on their order."""
    value = 0
    for token in tokens:
        value = (31 * value + token + 1) % 251
    return value


class TokenPages:
    """The executor's side: a buffer and tables."""

    def __init__(self, mem):
        self.mem = mem
        self.buffer = np.full(mem.arena.nbytes, POISON, np.uint8)
        self.forms = [group.form for group in mem.groups]
        self.tables = [np.full(pool.capacity, -1, np.int64) for pool in mem.pools]

    def pieces(self, group, handle):
        return self.forms[group].pieces(self.buffer, int(self.tables[group][handle]))

    def compute(self, rows, tokens, computed, count):
        """Read what the tokens see, then write theirs."""
        for n, group in enumerate(self.mem.groups):
            if not group.by_token:
                read, write = rows[n][READ], rows[n][WRITE]
                if computed:
                    assert all((p == state_after(tokens[:computed])).all() for p in self.pieces(n, read)), (
                        "a wrong state"
                    )
                for p in self.pieces(n, write):
                    p[:] = state_after(tokens[: computed + count])
                continue
            first = max(0, computed - group.window + 1) if group.window else 0
            for at in range(first, computed):
                for p in self.pieces(n, rows[n][at // PAGE]):
                    assert (p[:, at % PAGE] == tokens[at]).all(), "a token sees what is not its sequence's"
            for at in range(computed, computed + count):
                for p in self.pieces(n, rows[n][at // PAGE]):
                    p[:, at % PAGE] = tokens[at]


@dataclass(eq=False)
class Running:
    tokens: list
    held: Holding
    computed: int
    rows: list = field(default_factory=list)

    def write(self, writes):
        for write in writes:
            row = self.rows[write.group]
            row[write.start : write.start + len(write.handles)] = write.handles
