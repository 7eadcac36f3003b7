"""Sequences whose prefixes wander between arena, host memory and disk, while anything fails.

Batches are planned, and counted as done, before the one before them has run; transfers end at any time in any order;
the disk loses, spoils and refuses files. Every token reads all that it sees, so a byte of another sequence shows.
"""

import errno
import logging
import math
import random
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
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

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=30)
IDENTITY = Identity("weights", "layout", "numerics")
KINDS = [("full",), ("full", "window"), ("window",), ("state",), ("full", "state"), ("full", "window", "state")]
FAULTS = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])


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


class Tiers(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        kinds=st.sampled_from(KINDS),
        slabs=st.integers(4, 40),
        host=st.sampled_from([0, 1, 4, 16, 16, 32]),
        disk=st.sampled_from([None, 0, 3, 10, 40]),
        calm=st.booleans(),
    )
    def start(self, kinds, slabs, host, disk, calm):
        self.calm = calm  # nothing fails
        self.stored = {}
        folder = None if disk is None else "folder"
        self.make = lambda: Replica(kinds, slabs * 96, host << 12, FakePath(), (disk or 0) << 13, self.stored)
        if folder is None:
            self.make = lambda: Replica(kinds, slabs * 96, host << 12, None, 0, self.stored)
        self.replica = self.make()
        self.seen = []
        self.rng = random.Random(slabs)

    def draw_tokens(self, data, tokens):
        if self.seen and data.draw(st.integers(0, 3)):
            before = data.draw(st.sampled_from(self.seen))
            tokens = before[: data.draw(st.integers(0, len(before)))] + tokens
        self.seen = [*self.seen[-7:], tokens[:100]]
        return tokens[:100]

    @rule(data=st.data(), tokens=TOKENS)
    def add(self, data, tokens):
        self.replica.add(self.draw_tokens(data, tokens))

    @rule(data=st.data(), tokens=TOKENS, jobs=st.integers(0, 4))
    def compute(self, data, tokens, jobs):
        """A sequence from its start to its end, if there is room, while threads work."""
        self.compute_all(self.draw_tokens(data, tokens), jobs)

    def compute_all(self, tokens, jobs):
        sequence = self.replica.add(tokens)
        while sequence.computed < len(sequence.tokens) and self.replica.plan(sequence, STEP):
            while len(self.replica.batches) > jobs % 2:
                self.replica.collect()
            self.some_work(jobs)
        self.replica.end(sequence)
        self.some_work(jobs)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), seconds=st.sampled_from([math.inf, math.inf, 0.0, 5.0]), jobs=st.integers(0, 4))
    def fetch(self, data, seconds, jobs):
        tokens = [*data.draw(st.sampled_from(self.seen)), 0]
        if data.draw(st.integers(0, 3)):
            self.replica.mem.tree.evict(data.draw(st.sampled_from([50, 1 << 30])))
        self.replica.fetch(tokens, seconds)
        self.some_work(jobs)

    @rule(data=st.data(), tokens=TOKENS, evict=st.booleans(), refuse=st.booleans())
    def come_back(self, data, tokens, evict, refuse):
        """A sequence ends, its pages are needed by others, and then somebody goes on behind it."""
        tokens = self.draw_tokens(data, tokens)
        self.compute_all(tokens, 4)
        self.run_dry()
        self.replica.mem.tree.evict(1 << 30)
        if evict:
            self.replica.store.host.evict(1 << 30)
        if refuse and not self.calm:
            self.replica.mem.room.plan = [True]
        self.replica.fetch([*tokens, 1])
        if data.draw(st.booleans()):
            self.run_dry()
        self.compute_all([*tokens, 1], 3)

    def run_dry(self):
        if self.replica.tiered.needs_batch:
            self.replica.plan_nothing()
        while self.replica.batches:
            self.replica.collect()
        self.some_work(12)

    def some_work(self, jobs):
        for _ in range(jobs):
            self.replica.crew.work(self.rng)
        self.replica.tiered.collected(self.replica.collected)

    @precondition(lambda self: self.replica.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=3), most=st.integers(1, STEP), offer=st.booleans())
    def plan(self, data, more, most, offer):
        if len(self.replica.batches) == 2:
            return
        sequence = data.draw(st.sampled_from(self.replica.running))
        if sequence.computed == len(sequence.tokens) < 100:
            sequence.tokens = [*sequence.tokens, *more]
        self.replica.plan(sequence, most, offer)

    @precondition(lambda self: self.replica.batches)
    @rule()
    def collect(self):
        self.replica.collect()

    @precondition(lambda self: self.replica.tiered.needs_batch and not self.replica.batches)
    @rule()
    def plan_nothing(self):
        self.replica.plan_nothing()

    @precondition(lambda self: self.replica.running)
    @rule(data=st.data(), offer=st.booleans())
    def end(self, data, offer):
        self.replica.end(data.draw(st.sampled_from(self.replica.running)), offer)

    @rule(jobs=st.integers(1, 12), seconds=st.sampled_from([0.0, 0.0, 0.2, 70.0]))
    def work(self, jobs, seconds):
        """Threads do some of their jobs, time goes by, and the engine looks."""
        self.replica.clock.now += seconds
        self.some_work(jobs)

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def forget(self, data):
        self.replica.forget(data.draw(st.sampled_from(self.seen)))

    @precondition(lambda self: not self.calm)
    @rule()
    def reset(self):
        self.replica.reset()

    @rule(nbytes=st.sampled_from([20, 100, 1 << 30]))
    def evict(self, nbytes):
        self.replica.mem.tree.evict(nbytes)

    @precondition(lambda self: not self.calm)
    @rule(nbytes=st.integers(1, 3).map(lambda n: n << 12))
    def evict_tiers(self, nbytes):
        self.replica.store.host.evict(nbytes)
        if self.replica.store.disk is not None:
            self.replica.store.disk.evict(nbytes)

    @precondition(lambda self: not self.calm)
    @rule(
        what=st.sampled_from(["read", "write", "list", "remove", "touch", "pages", "reader", "writer", "memory"]),
        fault=FAULTS,
    )
    def break_something(self, what, fault):
        if what == "pages":
            self.replica.pages.broken = True
        elif (hand := self.replica.crew.hands.get(f"tiers-{what}")) is not None:
            hand.hangs = True
        else:
            self.replica.files.broken[what] = fault

    @precondition(lambda self: not self.calm)
    @rule(plan=st.lists(st.booleans(), min_size=1, max_size=8))
    def refuse(self, plan):
        """Some of the next allocations fail, whatever room there is."""
        self.replica.mem.room.plan = plan

    @rule()
    def repair(self):
        self.replica.files.broken.clear()
        self.replica.mem.room.plan = ()
        self.replica.pages.broken = False
        for hand in self.replica.crew.hands.values():
            hand.hangs = False

    @precondition(lambda self: self.stored and not self.calm)
    @rule(data=st.data(), what=st.sampled_from(["flip", "cut", "lose", "swap", "empty"]))
    def damage(self, data, what):
        """A file changes behind our back."""
        name = data.draw(st.sampled_from(sorted(self.stored)))
        content = self.stored[name][0]
        match what:
            case "flip" if content:
                content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            case "cut":
                del content[data.draw(st.integers(0, len(content))) :]
            case "lose":
                del self.stored[name]
            case "swap":
                self.stored[name] = self.stored[data.draw(st.sampled_from(sorted(self.stored)))]
            case "empty":
                self.stored.clear()

    @rule(flush=st.booleans())
    def restart(self, flush):
        """The process ends, in order or not, and another one begins."""
        if flush:
            self.replica.tiered.close(1.0)
        self.repair()
        self.replica.stop()
        self.replica = self.make()

    @invariant()
    def sound(self):
        if hasattr(self, "replica"):
            self.replica.check()

    def teardown(self):
        if hasattr(self, "replica"):
            self.repair()
            self.replica.stop()


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch):
    monkeypatch.setattr("headrace.memory.tiers.copies.PROBE_BYTES", (10, 100))
    monkeypatch.setattr("headrace.memory.tiers.copies._probe_key", lambda: bytes(18))


class FakePath:
    def __truediv__(self, name):
        return self


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.bars
@pytest.mark.timeout(3600)
def test_tiers_at_length(caplog):
    """150,000 operations."""
    caplog.set_level(logging.CRITICAL)
    run_state_machine_as_test(Tiers, settings=settings(max_examples=1_500, stateful_step_count=100, deadline=None))


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


def test_a_prefix_comes_back():
    made = replica(("full", "window", "state"))
    tokens = [1] * 8 + [0] * 8
    whole(made, tokens)
    fetch = made.fetch([*tokens, 1])
    assert fetch.state == "loading"
    assert made.mem.cached("key", array([*tokens, 1])) == 0
    assert made.fetch([*tokens, 0]) is fetch, "two that wait for the same wait for one load"
    assert made.settle() == [fetch]
    assert fetch.state == "done"
    assert made.mem.cached("key", array([*tokens, 1])) == 16
    assert made.fetch([*tokens, 1]) is None, "it is here"
    made.stop()


def test_computing_that_is_faster_is_not_waited_for():
    made = replica()
    whole(made, [1] * 16)
    assert made.fetch([1] * 17, seconds=0.0) is None
    assert not made.tiered.waiting
    assert made.fetch([1] * 17, seconds=1e-9) is not None


def test_a_load_without_room_is_none():
    """It takes nothing, and can be had when there is room."""
    made = replica(("full", "window", "state"))
    tokens = [1] * 8 + [0] * 8
    whole(made, tokens)
    first = made.add(tokens[:8])
    made.plan(first, 8)
    made.collect()
    made.mem.room.plan = [True]
    assert made.fetch([*tokens, 1]) is None
    assert made.mem.room.refusals == 1
    assert not made.tiered.waiting
    made.check()
    assert made.fetch([*tokens, 1]) is not None
    made.stop()


def test_a_late_load_is_given_up_and_its_pages_are_free_at_once():
    made = replica()
    whole(made, [1] * 16)
    made.crew.hands["tiers-memory"].hangs = True
    fetch = made.fetch([1] * 17, seconds=3.0)
    made.tiered.collected(made.collected)
    made.clock.now += 2.9
    assert made.tiered.collected(made.collected) == []
    made.clock.now += 0.2
    assert made.tiered.collected(made.collected) == [fetch]
    assert fetch.state == "failed"
    assert made.mem.arena.free_slabs == made.mem.arena.slabs
    made.bytes.buffer[:] = 9
    made.stop()
    assert (made.bytes.buffer == 9).all()


def test_a_state_that_is_written_again_is_not_stored():
    """Of two equal prompts side by side the tree has one's state; the other goes on writing into its own."""
    made = replica(("full", "state"))
    first, second = made.add([1] * 8), made.add([1] * 8)
    made.plan(first, 8)
    made.collect()
    made.settle()
    made.store.host.evict(1 << 30)
    second.tokens = [1] * 12
    made.plan(second, 8)
    made.plan(second, 4)
    made.collect()
    made.collect()
    made.settle()
    for sequence in (first, second):
        made.end(sequence, offer=False)
    made.mem.tree.evict(1 << 30)
    made.fetch([1] * 9)
    made.settle()
    again = made.add([1] * 9)
    while made.plan(again, STEP):
        made.collect()
    made.stop()


@pytest.mark.parametrize("moment", ["asked", "running", "stored", "loading"])
def test_what_is_not_to_be_trusted_is_not_found(moment):
    made = replica()
    tokens = [1] * 16
    sequence = made.add(tokens)
    made.plan(sequence, 16)
    if moment != "asked":
        made.collect()
    if moment in ("stored", "loading"):
        made.settle()
    if moment == "loading":
        made.end(sequence)
        made.mem.tree.evict(1 << 30)
        assert made.fetch([*tokens, 1]) is not None
    made.forget(tokens)
    made.settle()
    assert made.fetch([*tokens, 1]) is None
    assert made.mem.cached("key", array([*tokens, 1])) == 0
    made.stop()


def test_the_shares_of_the_arena_are_kept():
    made = replica()
    sequence = made.add([1] * 100)
    while made.plan(sequence, STEP):
        made.collect()
        assert made.tiered._pinned_bytes("store") <= made.mem.arena.nbytes / 8
    assert made.tiered.waiting
    made.stop()


def test_a_prefix_longer_than_that_share_is_stored_bit_by_bit():
    made = replica()
    tokens = list(range(160))
    sequence = made.add(tokens)
    while made.plan(sequence, STEP):
        made.collect()
    made.end(sequence)
    digests = made.store.chain("key", array(tokens))
    assert len(digests) * made.store.groups[0].page_bytes > made.mem.arena.nbytes / 8
    made.settle()
    assert made.store.lookup(digests, 0).pages == len(digests)
    made.stop()


def test_a_load_goes_on_behind_what_the_arena_has():
    made = replica(("full", "window", "state"))
    tokens = [1] * 8 + [0] * 8
    whole(made, tokens)
    first = made.add(tokens[:8])
    made.plan(first, 8)
    made.collect()
    fetch = made.fetch([*tokens, 1])
    assert len(fetch.digests) == 2
    made.settle()
    again = made.add([*tokens, 1])
    assert again.computed == 16
    while made.plan(again, STEP):
        made.collect()
    made.stop()


def test_with_real_threads_on_a_real_disk(tmp_path):
    """Nothing waits for transfers, but for now and then one."""
    rng = random.Random(7)
    prefixes = [[rng.randrange(2) for _ in range(60)] for _ in range(6)]
    done = 0
    for life in range(2):
        made = Replica(("full", "window", "state"), 30 * 96, 24 << 12, tmp_path, 40 << 13, None)
        for turn in range(150):
            prefix = rng.choice(prefixes)
            tokens = [*prefix[: rng.randrange(1, 60)], rng.randrange(2)]
            fetch = made.fetch(tokens) if life or turn > 20 else None
            if made.tiered.needs_batch and rng.randrange(2):
                made.plan_nothing()
            while made.batches:
                made.collect()
            until = time.monotonic() + rng.choice([0, 0.02])
            while fetch is not None and fetch.state == "loading" and time.monotonic() < until:
                made.tiered.collected(made.collected)
            done += fetch is not None and fetch.state == "done"
            sequence = made.add(tokens)
            while made.plan(sequence, STEP):
                if len(made.batches) == 2 or rng.randrange(2):
                    made.collect()
            made.end(sequence)
            if rng.randrange(3) == 0:
                made.mem.tree.evict(200)
            made.check()
        made.stop()
        made.tiered.close(20.0)
        made.store.check()
    assert done, "nothing was ever loaded"
    assert made.store.disk.usage().errors == 0


def test_rows_that_a_batch_carries_are_not_trimmed_behind_its_back():
    """A row exchanged for the tree's goes with the next batch, after whose planning the window moves on."""
    made = replica(("full", "window"))
    first, second = made.add([1] * 14), made.add([1] * 14)
    for count in (9, 4, 1):
        for sequence in (first, second):
            made.plan(sequence, count)
    while made.batches:
        made.collect()
    made.stop()
