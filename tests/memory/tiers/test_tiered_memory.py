"""Sequences whose prefixes wander between arena, host memory and disk, while anything fails.

Batches are planned, and counted as done, before the one before them has run; transfers end at any time in any order;
the disk loses, spoils and refuses files. Every token reads all that it sees, so a byte of another sequence shows.
"""

import errno
import logging
import math
import random

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
from tier_replica import FakePath, Replica
from token_pages import STEP

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=30)
KINDS = [("full",), ("full", "window"), ("window",), ("state",), ("full", "state"), ("full", "window", "state")]
FAULTS = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES])


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


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.bars
def test_tiers_at_length(caplog):
    """150,000 operations."""
    caplog.set_level(logging.CRITICAL)
    run_state_machine_as_test(Tiers, settings=settings(max_examples=1_500, stateful_step_count=100, deadline=None))
