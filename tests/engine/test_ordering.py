"""Who comes first: the policies, shares of tenants, and what the scheduler makes of them."""

import math
import time

import numpy as np
import pytest
from byte_engines import teach_cost
from byte_executor import VOCAB, ByteExecutor, expected
from engines import collect, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.engine import Engine
from headrace.engine.objective import aims
from headrace.engine.ordering import LONGEST_OVERTAKING, POLICIES, Standing, least_slack, longest_prefix
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.engine.shares import MOST_ABSENT, Shares
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.spec import ModelSpec

CONTEXT = 120
STANDINGS = st.builds(
    Standing,
    arrival=st.integers(0, 99),
    priority=st.integers(-2, 2),
    waited=st.floats(0, 30),
    cached=st.integers(0, 5000),
    slack=st.one_of(st.floats(-5, 5), st.just(math.inf)),
    service=st.floats(0, 1e6),
)


def engine_with(slots=2, step=16, pages=200, ahead=1, **limits):
    groups = [MemoryGroup(True, PageForm.of(4, [(1, 16)]))]
    memory = StateMemory(groups, nbytes=pages * 16, page_tokens=4, poison=True)
    spec = ModelSpec("m", "none", VOCAB, 1, CONTEXT, (), (), 0)
    executor = ByteExecutor(memory, slots, CONTEXT, ahead)
    return Engine(
        spec,
        executor,
        memory,
        SchedulerLimits(slots, step, None, **limits),
        context_length=CONTEXT,
        constraint_for=lambda params: None,
    )


def text(number, length=20):
    return [number + 10, *[3] * (length - 1)]


def params(count):
    return SamplingParams(temperature=0, max_tokens=count)


def starts(engine, *messages):
    """The order in which requests are first scheduled."""
    order = []
    for message in messages:
        assert engine.add(message) == []
    for _ in range(10_000):
        if not engine.has_work:
            return order
        engine.step()
        engine.check()
        order += [s.request for s in engine.scheduler.running if s.request not in order]
    raise AssertionError("the engine did not finish")


@pytest.mark.parametrize("name", POLICIES)
@given(standings=st.lists(STANDINGS, min_size=2, max_size=8, unique_by=lambda s: s.arrival))
def test_priority_comes_before_everything(name, standings):
    order = sorted(standings, key=POLICIES[name])
    assert [s.priority for s in order] == sorted(s.priority for s in standings)


@given(standings=st.lists(STANDINGS, min_size=2, max_size=8, unique_by=lambda s: s.arrival))
def test_nobody_is_overtaken_for_ever(standings):
    """Among those that waited for long the first to arrive is the first, whatever the others have cached."""
    order = sorted(standings, key=longest_prefix)
    for priority in {s.priority for s in standings}:
        overdue = [s for s in order if s.priority == priority and s.waited > LONGEST_OVERTAKING]
        assert overdue == sorted(overdue, key=lambda s: s.arrival)
        assert order[[s.priority for s in order].index(priority) :][: len(overdue)] == overdue


def test_what_is_late_already_makes_nobody_else_late():
    lost, tight, easy, free = (Standing(i, slack=s) for i, s in enumerate((-0.1, 0.2, 3.0, math.inf)))
    assert sorted([lost, free, easy, tight], key=least_slack) == [tight, easy, free, lost]


def test_slots_go_to_the_urgent_who_may_interrupt():
    engine = engine_with(slots=1)
    results = {}
    for number in (0, 1):
        collect(engine, results, engine.add(request(number, text(number), params(30))))
    for _ in range(8):
        collect(engine, results, engine.step())
    assert results[0, 0].finish is None
    collect(engine, results, engine.add(request(2, text(2), params(5), priority=-1)))
    order = []
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
        order += [s.request for s in engine.scheduler.running if s.request not in order]
    assert order == [2, 0, 1]
    assert engine.scheduler.roster.preemptions == 1
    for number, count in ((0, 30), (1, 30), (2, 5)):
        assert results[number, 0].tokens == expected(engine.memory.groups, text(number), count)


def test_a_prompt_that_is_being_computed_makes_way_for_a_more_urgent_one():
    engine, results = engine_with(slots=2, step=16, ahead=0), {}
    for number in range(2):
        engine.add(request(number, text(number, 100), params(2), priority=1))
        collect(engine, results, engine.step())
    engine.add(request(2, text(2, 8), params(2)))
    collect(engine, results, engine.step())
    assert len(results[2, 0].tokens) == 1
    engine.check()
    while engine.has_work:
        collect(engine, results, engine.step())
    assert [len(results[number, 0].tokens) for number in range(3)] == [2] * 3


def test_the_longest_cached_prefix_goes_first():
    engine = engine_with(slots=1, policy="longest-prefix")
    run(engine, request(0, text(0, 40), params(1)))
    order = starts(
        engine,
        *[request(i, text(i), params(2)) for i in (1, 2)],
        request(3, text(0, 40)[:24] + [5] * 4, params(2)),
        request(4, text(0, 40)[:36] + [5] * 4, params(2)),
    )
    assert order == [4, 3, 1, 2]


def test_the_earliest_deadline_goes_first():
    now = time.monotonic()
    engine = engine_with(slots=1, policy="slo", first_token_seconds=1000.0)
    order = starts(
        engine,
        request(0, text(0), params(2)),
        *[request(i, text(i), params(2), deadline=now + 900 - i) for i in (1, 2, 3)],
        request(4, text(4), params(2), deadline=now + 2000),
    )
    assert order == [3, 2, 1, 0, 4]


def test_a_prompt_that_takes_longer_must_begin_sooner():
    engine, now = engine_with(slots=1, policy="slo"), time.monotonic()
    teach_cost(engine, token=1.0)
    order = starts(
        engine,
        request(0, text(0, 10), params(2), deadline=now + 1000),
        request(1, text(1, 110), params(2), deadline=now + 1050),
    )
    assert order == [1, 0]


def test_who_waits_beyond_its_deadline_is_told_so():
    engine = engine_with(slots=1)
    results = {}
    collect(engine, results, engine.add(request(0, text(0), params(40))))
    collect(engine, results, engine.step())
    collect(engine, results, engine.add(request(1, text(1), params(4), deadline=time.monotonic() - 0.001)))
    collect(engine, results, engine.add(request(2, text(2), params(4), deadline=time.monotonic() + 1e4)))
    collect(engine, results, engine.step())
    assert results[1, 0].finish.reason == "late"
    while engine.has_work:
        collect(engine, results, engine.step())
    engine.check()
    assert len(results[2, 0].tokens) == 4
    assert len(results[0, 0].tokens) == 40


def test_a_request_whose_first_sample_was_in_time_is_served_whole():
    engine, results = engine_with(slots=1), {}
    samples = SamplingParams(temperature=0, max_tokens=4, n=3)
    collect(engine, results, engine.add(request(0, text(0), samples, deadline=time.monotonic() + 1e4)))
    collect(engine, results, engine.step())
    for sequence in engine.scheduler.waiting:
        sequence.deadline = 0.0
    while engine.has_work:
        collect(engine, results, engine.step())
    assert [results[0, index].finish.reason for index in range(3)] == ["length"] * 3


@pytest.mark.parametrize(("weights", "share"), [((), 0.5), ((("b", 3.0),), 0.75)])
def test_tenants_get_their_shares_while_both_have_work(weights, share):
    """Tenant a sends ten times as much; what is computed for each is in proportion to the weights."""
    engine = engine_with(slots=4, step=24, pages=400, policy="fair", weights=weights)
    rng = np.random.default_rng(0)
    number, results, got = 0, {}, {"a": 0, "b": 0}

    def send(tenant):
        nonlocal number
        prompt = rng.integers(10, VOCAB - 1, rng.integers(10, 40)).tolist()
        engine.add(request(number, prompt, params(int(rng.integers(5, 30))), tenant=tenant))
        number += 1

    for _ in range(20):
        send("a")
    for _ in range(2_000):
        waiting = [s.tenant for s in engine.scheduler.waiting]
        while waiting.count("a") < 20:
            send("a")
            waiting.append("a")
        while waiting.count("b") < 2:
            send("b")
            waiting.append("b")
        before = {s: s.computed for s in engine.scheduler.running}
        collect(engine, results, engine.step())
        for s in engine.scheduler.running:
            got[s.tenant] += s.computed - before.get(s, s.cached_tokens)
    assert got["b"] / (got["a"] + got["b"]) == pytest.approx(share, rel=0.05)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "serve"]), st.integers(1, 100))),
    st.floats(0.5, 4),
)
def test_shares_follow_who_is_there(events, weight):
    """Who comes back is not behind those that worked meanwhile, and never ahead of where it was."""
    shares, there = Shares({"b": weight}), []
    for tenant, what, tokens in events:
        if what == "enter":
            working = [shares.service(name) for name in set(there)]
            had = shares.service(tenant)
            shares.enter(tenant)
            there.append(tenant)
            assert shares.service(tenant) >= max(had, min(working, default=0.0))
        elif tenant in there and what == "leave":
            there.remove(tenant)
            shares.leave(tenant)
        elif tenant in there:
            before = shares.service(tenant)
            shares.serve(tenant, tokens)
            assert shares.service(tenant) - before == pytest.approx(tokens / (weight if tenant == "b" else 1))
        shares.check(there)


def test_tenants_that_left_are_not_remembered_without_end():
    shares = Shares({})
    shares.enter("starving")
    for number in range(3 * MOST_ABSENT):
        shares.enter(f"t{number}")
        shares.serve(f"t{number}", 10 + number)
        shares.leave(f"t{number}")
    assert len(shares._service) == MOST_ABSENT + 1
    assert shares.service(f"t{3 * MOST_ABSENT - 1}") > 0


def test_objectives_differ_in_the_length_of_a_step():
    steps = [aims(name, 0.1).max_step_seconds for name in ("latency", "slo", "throughput")]
    assert steps == sorted(steps)
    assert aims("slo", 0.1).policy == "slo"


def test_a_first_token_that_cannot_come_in_time_is_refused_at_once():
    """What counts is what goes before it, and what of its own prompt is not cached; a token takes a millisecond."""
    engine = engine_for_costs()
    now = time.monotonic()
    for number, prompt, more, late in (
        (1, text(1, 100), {"deadline": now + 0.05}, True),
        (2, text(1, 100), {"deadline": now + 50}, False),
        (3, text(0, 100), {"deadline": now + 0.05}, True),  # cached, but behind the other
        (4, text(0, 100), {"deadline": now + 0.05, "priority": -1}, False),
    ):
        deltas = engine.add(request(number, prompt, params(2), **more))
        assert [delta.finish.reason for delta in deltas] == ["late"] * late, number
    engine.abort(range(5))
    while engine.has_work:
        engine.step()
    engine.check()


def test_what_others_have_cached_makes_no_first_token_sooner():
    engine, prompt = engine_with(), text(0, 100)
    run(engine, request(0, prompt, params(1), salt="a"))
    teach_cost(engine, token=1.0)
    soon = time.monotonic() + 50
    for number, (salt, late) in enumerate((("a", False), ("b", True), ("", True))):
        deltas = engine.add(request(number, prompt, params(1), salt=salt, deadline=soon))
        assert [delta.finish.reason for delta in deltas] == ["late"] * late, salt
        engine.abort([number])


@pytest.mark.parametrize(("prompt_logprobs", "pooling"), [(None, "mean"), (0, None)])
def test_what_needs_every_token_of_a_prompt_is_no_sooner_for_a_cache(prompt_logprobs, pooling):
    engine, prompt = engine_with(), text(0, 100)
    run(engine, request(0, prompt, params(1)))
    teach_cost(engine, token=1.0)
    soon = time.monotonic() + 50
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=prompt_logprobs)
    deltas = engine.add(request(1, prompt, asked, deadline=soon, pooling=pooling))
    assert [delta.finish.reason for delta in deltas] == ["late"]
    assert not engine.add(request(2, prompt, params(1), deadline=soon))


def engine_for_costs():
    """An engine that has learned its speed, with one prompt in the tree."""
    engine = engine_with(slots=2, step=16)
    for number in range(10):
        run(engine, request(number, text(0, 100) if number == 9 else text(number + 20, 100), params(4)))
    return engine
