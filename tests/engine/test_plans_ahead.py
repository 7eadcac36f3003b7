"""What is planned ahead of execution, in the corners that a random mix seldom reaches."""

import dataclasses
import types

import numpy as np
import pytest
from byte_executor import VOCAB, ByteExecutor, expected
from engines import collect, request
from tier_doubles import Crew

from headrace.engine.engine import Engine
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.errors import InvalidInput
from headrace.memory.behind import Tiers
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.memory.tiered_memory import TieredMemory, tier_groups
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.store import TierLimits, TierStore
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import FROM_SLOT

PAGE = 4


class AlwaysInNeed(Tiers):
    """Wants a batch at every step, as transfers do that wait for commands."""

    needs_batch = True


class OneFault:
    """The first batch of two rows that hold that many tokens each fails."""

    def __init__(self, start):
        self.start, self.failed = start, False

    def __call__(self, batch, tokens):
        if not self.failed and batch.starts.tolist() == [self.start] * 2:
            self.failed = True
            raise RuntimeError("an accident")


class EverWaiting(Tiers):
    """Has a transfer that does not end."""

    waiting = 1


class SpreadingNaN(ByteExecutor):
    """The first prompt's state comes out as no number, once; who sees such state computes more of it, and no token."""

    NAN = 255
    broken = False

    def _run(self, batch, masks):
        self._bad = set()
        output = super()._run(batch, masks)
        bad = [row for row, slot in enumerate(batch.slots.tolist()) if slot in self._bad and batch.sample[row]]
        tokens = output.tokens.copy()
        tokens[bad] = -1
        errors = dict.fromkeys(bad, "no number")
        return dataclasses.replace(output, tokens=tokens, accepted=(tokens >= 0).astype(np.int32), errors=errors)

    def _row(self, slot, start, tokens):
        found, row = super()._row(slot, start, tokens), self.slots.page_rows[0][slot]
        end = start + len(tokens)
        if not self.broken or any(self._token(0, row, at) == self.NAN for at in range(end)):
            self.broken = True
            self._bad.add(slot)
            for at in range(start, end):
                for pieces in self._pieces(0, row[at // PAGE]):
                    pieces[:, at % PAGE] = self.NAN
        return found


def small_engine(fault=lambda batch, tokens: None, tiers=Tiers, slots=4, kind=ByteExecutor, ahead=1):
    groups = [MemoryGroup(True, PageForm.of(1, [(1, 8), (2, 4)]).in_slabs(144))]
    memory = StateMemory(groups, nbytes=40 * 144, page_tokens=PAGE, poison=True)
    executor = kind(memory, slots, 60, ahead=ahead, fault=fault)
    spec = ModelSpec("m", "none", VOCAB, 1, 60, (), (), 0)
    limits = SchedulerLimits(slots, 32, None)
    return groups, Engine(
        spec, executor, memory, limits, tiers(memory), context_length=60, constraint_for=lambda params: None
    )


@pytest.mark.parametrize(("ahead", "order"), [(0, "+1 -1 +2 -2 +3 -3"), (1, "+1 +2 -1 +3 -2 -3")])
def test_batches_are_submitted_before_the_tokens_are_known_that_they_take(ahead, order):
    _, engine = small_engine(ahead=ahead)
    own_submit, own_collect, calls, tokens = engine.executor.submit, engine.executor.collect, [], []

    def submit(batch):
        calls.append(f"+{batch.step}")
        tokens.append(batch.tokens.tolist())
        return own_submit(batch)

    def take(ticket, masks):
        calls.append(f"-{ticket.step}")
        return own_collect(ticket, masks)

    engine.executor.submit, engine.executor.collect = submit, take
    engine.add(request(0, [1, 2], SamplingParams(temperature=0, max_tokens=3)))
    while engine.has_work:
        engine.step()
    assert " ".join(calls) == order
    assert tokens == [[1, 2], [FROM_SLOT], [FROM_SLOT]]


def test_rows_that_changed_outlive_a_batch_that_only_carries_commands():
    # Both run alone after the fault. The second one's page becomes the first one's, and no row tells so at once.
    fault = OneFault(PAGE - 1)
    groups, engine = small_engine(fault, AlwaysInNeed)
    results = {}
    for number in range(2):
        engine.add(request(number, [1], SamplingParams(temperature=0, max_tokens=20)))
    for _ in range(100):
        collect(engine, results, engine.step())
        engine.scheduler.check()
    assert fault.failed
    for number in range(2):
        assert results[number, 0].tokens == expected(groups, [1], 20)


def test_who_had_taken_broken_state_computes_it_anew():
    groups, engine = small_engine(kind=SpreadingNaN)
    prompt, results = [1, 2, 3, 4, 5, 6, 7, 8, 9], {}
    params = SamplingParams(temperature=0, max_tokens=4)
    engine.add(request(0, prompt, params))
    collect(engine, results, engine.step())
    # They take the first one's pages before that has failed.
    prompts = {1: [*prompt, *[7] * 40], 2: [*prompt, 8, 8, 8], 3: prompt}
    for number, longer in prompts.items():
        engine.add(request(number, longer, params))
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
    assert results[0, 0].finish.reason == "error"
    for number, longer in prompts.items():
        assert results[number, 0].finish.reason == "length"
        assert results[number, 0].tokens == expected(groups, longer, 4)


@pytest.mark.parametrize(("tiers", "ahead", "count"), [(EverWaiting, 1, 4), (Tiers, 0, 9)])
def test_a_step_takes_no_longer_for_what_was_idle_before_it(monkeypatch, tiers, ahead, count):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr("headrace.engine.engine.time", types.SimpleNamespace(monotonic=lambda: clock.now))
    _, engine = small_engine(tiers=tiers, ahead=ahead)
    engine.add(request(0, [1], SamplingParams(temperature=0, max_tokens=count)))
    for _ in range(8):
        clock.now += 1.0
        engine.step()
    engine.abort([0])
    clock.now += 1000.0
    engine.add(request(1, [2], SamplingParams(temperature=0, max_tokens=1)))
    while engine.stats().running or engine.stats().waiting:
        engine.step()
    assert engine.stats().step_seconds < 10


def test_nothing_of_a_rehearsal_is_stored():
    groups, engine = small_engine()
    crew, pages = Crew(), ArenaBytes(engine.executor.buffer, engine.executor.forms)
    identity = Identity("weights", "layout", "numerics")
    store = TierStore(tier_groups(groups), PAGE, pages, identity, TierLimits(100_000), hands=crew)
    engine.scheduler.roster.tiers = tiers = TieredMemory(engine.memory, store)
    engine.rehearse(40)
    crew.finish()
    tiers.collected(engine.stats().step)
    assert tiers.describe()["host"]["runs"] == 0
    results, params = {}, SamplingParams(temperature=0, max_tokens=4)
    engine.add(request(0, [1, 2, 3, 4, 5], params))
    while engine.has_work:
        collect(engine, results, engine.step())
        crew.finish()
        engine.check()
    assert results[0, 0].tokens == expected(groups, [1, 2, 3, 4, 5], 4)
    assert tiers.describe()["host"]["runs"] > 0


def test_samples_that_wait_for_their_prompt_count_once():
    _, engine = small_engine()
    engine.add(request(0, [1] * 40, SamplingParams(n=64)))
    assert engine.scheduler.prefill_tokens(0) == 40 + 63


def test_a_failed_step_has_times_of_its_own():
    fault, ends = OneFault(PAGE - 1), {}
    _, engine = small_engine(fault)
    for number in range(2):
        engine.add(request(number, [1], SamplingParams(temperature=0, max_tokens=8)))
    while engine.has_work:
        engine.step()
        ends[engine.stats().step] = engine.stats().ended
    assert fault.failed
    assert len(set(ends.values())) == len(ends)


def test_an_executor_that_wants_more_than_one_batch_ahead_is_refused():
    with pytest.raises(InvalidInput) as caught:
        small_engine(ahead=2)
    assert caught.value.field == "executor.ahead"
