"""Any mix of requests in an arena far too small for it: all end, each with the tokens that it would have alone."""

import errno
from pathlib import Path
from random import Random

import pytest
from automata import walks
from byte_executor import VOCAB, ByteExecutor, expected, expected_embedding
from engines import Result, collect, request
from tier_doubles import Clock, Crew, FakeFiles

from headrace.engine.engine import Engine
from headrace.engine.ordering import POLICIES
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.memory.tiered_memory import TieredMemory, tier_groups
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.store import TierLimits, TierStore
from headrace.models.spec import ModelSpec

PAGE, SLAB, POISON = 4, 144, VOCAB - 1
FULL = (True, PageForm.of(1, [(1, 8), (2, 4)]), 0)
WINDOW = (True, PageForm.of(1, [(3, 4)]), 9)
OTHER = (True, PageForm.of(1, [(1, 8)]), 14)
STATE = (False, PageForm.of(1, [(1, 36)]), 0)
WALKS = walks(VOCAB)
KINDS = [(FULL,), (FULL, WINDOW), (WINDOW,), (STATE,), (FULL, STATE), (FULL, WINDOW, STATE), (WINDOW, OTHER)]


class Faults:
    """A batch with a poisoned token always fails, and any other one with some probability.

    Args:
        rng: Random numbers.
        share: The probability, before it computes and after that.
    """

    def __init__(self, rng, share):
        self._rng, self._share = rng, share
        self.alone = 0  # batches of one row that failed without a cause: their sequence is blamed
        self.largest = 0  # tokens of a batch

    def __call__(self, batch, tokens):
        self.largest = max(self.largest, len(tokens))
        if POISON in tokens:
            raise RuntimeError("poison")
        if self._rng.random() < self._share:
            self.alone += batch.rows == 1
            raise RuntimeError("an accident")


class FaultyFiles(FakeFiles):
    """Files of which now and then one cannot be read or written, or comes back changed."""

    def __init__(self, rng):
        super().__init__({})
        self._rng = rng

    def trouble(self, what):
        if self._rng.random() < 0.05:
            raise OSError(errno.EIO, "an accident")
        if what == "read" and self._rng.random() < 0.1:
            data = self.stored[self._rng.choice(list(self.stored))][0]
            data[self._rng.randrange(len(data))] ^= 1


def with_tiers(rng, memory, executor):
    """Host memory and a disk behind an arena, and the threads that do their work."""
    crew, files, clock = Crew(), FaultyFiles(rng), Clock()
    limits = TierLimits(rng.choice([2_000, 200_000]), rng.choice([None, Path("disk")]), 20_000)
    store = TierStore(
        tier_groups(memory.groups),
        PAGE,
        ArenaBytes(executor.buffer, executor.forms),
        Identity("weights", "layout", "numerics"),
        limits,
        hands=crew,
        files=lambda folder: files,
        clock=clock,
    )
    return crew, TieredMemory(memory, store, clock=clock)


def stops(params, tokens):
    """Whether a request ends before its limit, or with it by a stop token or its grammar."""
    walk = WALKS(params)
    for token in tokens if walk is not None else ():
        walk.accept(token)
    at_stop = bool(tokens) and tokens[-1] in params.stop_token_ids
    return at_stop or (walk is not None and walk.complete)


def judge(name, groups, prompts, results, gone, fault):
    """Every request has the tokens that it would have alone, or was at fault, or was taken back."""
    for number, (text, params, pooling) in prompts.items():
        if pooling is not None:
            judge_embedding(f"{name}, request {number}", groups, text, pooling, results.get((number, 0)), fault)
            assert (number, 0) in results or number in gone, f"{name}, request {number} has no end"
            continue
        wanted = expected(groups, text, params.max_tokens, WALKS(params))
        ends = [i + 1 for i, token in enumerate(wanted) if token in params.stop_token_ids]
        wanted = wanted[: min(ends, default=None)]
        for index in range(params.n):
            where, result = f"{name}, request {number}", results.get((number, index), Result())
            failed = result.finish is not None and result.finish.reason == "error"
            part = result.tokens == wanted[: len(result.tokens)] and (number in gone or failed)
            assert result.tokens == wanted or part, where
            ended = result.finish is not None and not failed
            assert not ended or (result.finish.reason == "stop") == stops(params, wanted), where
            assert not failed or POISON in text + wanted or fault.alone, f"{where} failed without cause"
            assert number in gone or failed or POISON not in text or not wanted, f"{where} should have failed"


def judge_embedding(where, groups, text, pooling, result, fault):
    """It is the one that the prompt would have alone, or the request was at fault, or was taken back."""
    if result is None:
        return
    failed = result.finish.reason == "error"
    assert failed or result.embedding.tolist() == [expected_embedding(groups, text, pooling)], where
    assert failed == (POISON in text) or fault.alone, where
    assert result.tokens == [], where


def watch_preemptions(roster):
    """Have it noticed when somebody is preempted for one that ranks behind."""
    own, served = roster._preempt, []

    def preempt(plan, victim):
        assert victim.rank >= served[-1].rank, "who comes first was preempted"
        own(plan, victim)

    def noting(serve):
        def call(plan, sequence, *count):
            served.append(sequence)
            return serve(plan, sequence, *count)

        return call

    roster._preempt, roster.grow, roster.start = preempt, noting(roster.grow), noting(roster.start)


def mix(seed, prefix_cache):
    """One engine's life: requests come while others run, some are taken back; some batches and transfers fail."""
    rng = Random(seed)
    groups = [MemoryGroup(by_token, form.in_slabs(SLAB), window) for by_token, form, window in rng.choice(KINDS)]
    slots, step = rng.randint(1, 5), rng.randint(1, 20)
    memory = StateMemory(
        groups, nbytes=rng.randint(3, 14) * SLAB, page_tokens=PAGE, prefix_cache=prefix_cache, poison=True
    )
    context = memory.longest(60, step)
    if context < 8:
        return 0
    spec = ModelSpec("m", "none", VOCAB, 1, context, (), (), 0)
    executor = ByteExecutor(memory, slots, context, rng.randint(0, 1), Faults(rng, rng.choice([0, 0, 0.02])))
    limits = SchedulerLimits(slots, step, None, rng.choice(["fcfs", "fcfs", *POLICIES]))
    crew, tiers = with_tiers(rng, memory, executor) if prefix_cache and rng.random() < 0.5 else (Crew(), None)
    jump = rng.random() < 0.8
    engine = Engine(
        spec, executor, memory, limits, tiers, context_length=context, constraint_for=WALKS, jump_forward=jump
    )
    watch_preemptions(engine.scheduler.roster)
    seen, prompts, results, gone = [[1, 2, 3]], {}, {}, set()
    todo, taken_back = rng.randint(2, 12), rng.choice([0, 1, 4])
    for turn in range(3_000):
        if len(prompts) < todo and rng.random() < 0.4:
            prefix = rng.choice(seen)
            text = prefix[: rng.randint(0, len(prefix))] + [rng.randrange(3) for _ in range(20)]
            pooling = rng.choice([None, None, None, "mean", "last"])
            text = text[: rng.randint(1, context - 4 * (pooling is None))]
            count = rng.randint(1, max(1, context - len(text)))
            number = len(prompts)
            if rng.random() < 0.05:
                text[rng.randrange(len(text))] = POISON
            ends = rng.sample(range(VOCAB), rng.choice([0, 0, 20]))
            grammar = rng.choice([None, f"{rng.randrange(50)} {rng.choice([0, 0, 3, 30])} {rng.choice([0, 0, 1, 9])}"])
            samples = 1 if pooling else rng.choice([1, 1, 3])
            params = SamplingParams(temperature=0, max_tokens=count, stop_token_ids=ends, n=samples, grammar=grammar)
            prompts[number] = text, params, pooling
            about = {"priority": rng.randint(0, 1), "tenant": rng.choice("ab"), "deadline": rng.choice([None, 1e12])}
            collect(engine, results, engine.add(request(number, text, params, pooling=pooling, **about)))
        elif prompts and len(gone) < taken_back and rng.random() < 0.03:
            number = rng.randrange(len(prompts))
            gone.add(number)
            engine.abort([number])
        elif not engine.has_work and len(prompts) == todo:
            break
        collect(engine, results, engine.step())
        for _ in range(rng.randint(0, 9)):
            crew.work(rng)
        for number, (text, *_) in prompts.items():
            if (number, 0) in results and results[number, 0].finish is not None and len(seen) < 8:
                seen.append(text + results[number, 0].tokens)
        if turn % 7 == 0:
            engine.check()
    for _ in range(100):
        crew.finish()
        collect(engine, results, engine.step())
    assert not engine.has_work, f"mix {seed} never ends"
    engine.check()
    assert executor.fault.largest <= max(step, slots), f"mix {seed} has too large a step"
    judge(f"mix {seed}", groups, prompts, results, gone, executor.fault)
    memory.tree.evict(1 << 40)
    assert memory.arena.free_slabs == memory.arena.slabs, f"mix {seed} leaves something behind"
    return engine.scheduler.roster.preemptions


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """For transfers that end only when a test says so."""
    monkeypatch.setattr("headrace.engine.engine.TRANSFER_WAIT", 0.0)
    monkeypatch.setattr("headrace.engine.engine.CONSTRAINT_WAIT", 0.0)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_every_request_ends_as_if_alone(prefix_cache):
    assert sum(mix(seed, prefix_cache) for seed in range(150)) > 0


@pytest.mark.bars
def test_ten_thousand_mixes():
    assert sum(mix(seed, prefix_cache=seed % 8 > 0) for seed in range(1_000, 11_000)) > 1_000
