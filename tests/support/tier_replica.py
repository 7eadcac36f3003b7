"""A memory with tiers behind it and an executor of bytes, driven by hand."""

import math
import time
from collections import deque

import numpy as np
from tier_doubles import Clock, Crew, FakeFiles, FaultyPages
from token_pages import PAGE, STEP, FaultyMemory, Running, TokenPages, array, memory

from headrace.engine.policy import Places, chunk
from headrace.memory.commands import POISON, carry_out
from headrace.memory.state_memory import RowWrite
from headrace.memory.tiered_memory import TieredMemory, tier_groups
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.store import TierLimits, TierStore
from headrace.memory.tiers.worker import Worker

IDENTITY = Identity("weights", "layout", "numerics")


class Replica:
    """Memory, tiers and an executor, driven by hand.

    Args:
        folder: A path that names the disk, or None.
        stored: What is on the disk; None: a real one, and real threads.
    """

    def __init__(self, kinds, nbytes, host_bytes, folder, disk_bytes, stored, **options):
        self.clock, self.crew = (Clock(), Crew()) if stored is not None else (time.monotonic, None)
        self.mem = memory(nbytes, kinds, make=FaultyMemory, poison=True, **options)
        self.bytes = TokenPages(self.mem)
        self.pages = FaultyPages(self.bytes.buffer, self.bytes.forms)
        self.files = FakeFiles(stored, self.clock)
        self.store = TierStore(
            tier_groups(self.mem.groups),
            PAGE,
            self.pages,
            IDENTITY,
            TierLimits(host_bytes, folder, disk_bytes),
            hands=self.crew or Worker,
            files=Files if stored is None else lambda folder: self.files,
            clock=self.clock,
        )
        self.tiered = TieredMemory(self.mem, self.store, clock=self.clock)
        self.batches = deque()
        self.running = []
        self.step = self.collected = 0

    def add(self, tokens):
        held, computed = self.mem.match("key", array(tokens))
        assert computed % PAGE == 0
        assert computed < len(tokens)
        sequence = Running(tokens, held, computed, [np.full(40, -1, np.int32) for _ in self.mem.groups])
        sequence.pending = [RowWrite(group, 0, row.copy()) for group, row in enumerate(held.rows)]
        self.running.append(sequence)
        return sequence

    def plan(self, sequence, most, offer=True):
        """Plan a batch of one sequence, if there is room, and count it as done."""
        pending = len(sequence.tokens) - sequence.computed
        if not pending:
            return False
        count = chunk(sequence.computed, pending, most, Places(PAGE, 1 << 20, 0) if self.mem.has_states else None)
        reach = sequence.computed + count
        fits = self.mem.fits(sequence.held, reach, step_tokens=STEP)
        if not (sequence.computed < sequence.held.reach and reach <= sequence.held.reach):
            before = [row.copy() for row in sequence.held.rows]
            writes = self.mem.grow(sequence.held, reach)
            if writes is None:
                assert not fits or self.mem.room.refused, "there is no room although there should be"
                assert all(map(np.array_equal, before, sequence.held.rows)), "it was refused, and took something"
                return False
            sequence.pending += writes
        self._submit(sequence, sequence.computed, count, sequence.pending)
        sequence.computed = reach
        sequence.pending = self.mem.settle(sequence.held)
        if offer:
            self.share(sequence)
        self.mem.trim(sequence.held, sequence.computed)
        return True

    def plan_nothing(self):
        self._submit(None, 0, 0, [])

    def _submit(self, *work):
        self.step += 1
        self.batches.append((self.mem.commands(), *work))
        self.tiered.planned(self.step)

    def collect(self):
        """Run the oldest batch."""
        commands, sequence, computed, count, writes = self.batches.popleft()
        carry_out(commands, self.bytes.forms, self.bytes.tables, self.bytes.buffer)
        self.collected += 1
        if sequence is not None:
            sequence.write(RowWrite(write.group, write.start, write.handles.copy()) for write in writes)
            self.bytes.compute(sequence.rows, sequence.tokens, computed, count)
        return self.tiered.collected(self.collected)

    def share(self, sequence):
        tokens = array(sequence.tokens[: sequence.computed])
        sequence.pending += self.mem.share("key", tokens, sequence.held)
        self.tiered.after_share("key", tokens, sequence.held)

    def end(self, sequence, offer=True):
        if offer and sequence.computed:
            self.share(sequence)
        self.mem.release(sequence.held)
        self.running.remove(sequence)

    def settle(self):
        """Let all batches run and all transfers end."""
        over = []
        while self.batches:
            over += self.collect()
        while True:
            if self.tiered.needs_batch:
                self.plan_nothing()
                over += self.collect()
            if self.crew is not None:
                self.crew.finish()
            over += self.tiered.collected(self.collected)
            if not self.tiered.waiting:
                return over

    def fetch(self, tokens, seconds=math.inf):
        return self.tiered.fetch("key", array(tokens), lambda start, end: seconds)

    def forget(self, tokens):
        """What was computed of some tokens is not to be trusted: nobody may find it any more."""
        pages = self.mem.forget("key", array(tokens))
        for over in self.tiered.forget("key", array(tokens), pages):
            assert over.state == "failed"
        for sequence in self.running.copy():
            if self.mem.has_any(sequence.held, pages):
                self.end(sequence, offer=False)
        assert self.mem.cached("key", array([*tokens, 1])) == 0
        assert not self.store.lookup(self.store.chain("key", array(tokens)), 0)

    def reset(self):
        """A batch failed: all begins anew."""
        self.tiered.reset()
        self.mem.reset()
        assert not self.tiered.waiting
        self.batches.clear()
        self.running.clear()
        self.collected = self.step
        self.bytes.buffer[:] = POISON  # as if others wrote there
        for table in self.bytes.tables:
            table[:] = -1

    def check(self):
        self.tiered.check([sequence.held for sequence in self.running])

    def stop(self):
        """End everything; nothing may be left in the arena."""
        self.settle()
        for sequence in self.running.copy():
            self.end(sequence, offer=False)
        self.settle()
        self.mem.tree.evict(1 << 30)
        self.check()
        assert self.mem.arena.free_slabs == self.mem.arena.slabs, "something is never given back"


class FakePath:
    def __truediv__(self, name):
        return self


def replica(kinds=("full",), host=64, **options):
    made = Replica(kinds, 40 * 96, host << 12, None, 0, {}, **options)
    made.crew.finish()
    return made


def whole(made, tokens):
    """Compute and share a sequence, let its stores end, and have the arena forget it."""
    sequence = made.add(tokens)
    while made.plan(sequence, STEP):
        made.collect()
    made.end(sequence)
    made.settle()
    made.mem.tree.evict(1 << 30)
