"""Who is preempted leaves what it has computed, and takes it up again from wherever that is had soonest."""

import pytest
from byte_engines import byte_engine, give_host_tier, greedy, teach_cost
from byte_executor import expected
from engines import collect, request

from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup

PAGE = 4
FULL = MemoryGroup(True, PageForm.of(1, [(1, 8), (2, 4)]).in_slabs(144))
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """For transfers that end only when a test says so."""
    monkeypatch.setattr("headrace.engine.engine.TRANSFER_WAIT", 0.0)


def tiered_engine(transfer_seconds):
    """One slot, and host memory behind the arena; to compute a token takes a millisecond."""
    engine = byte_engine([FULL], slabs=40, context=100, slots=1)
    teach_cost(engine, token=0.001)
    return engine, give_host_tier(engine, transfer_seconds)


def lose_what_is_stored(engine, crew):
    """Let stores end; then the arena gives up all that nobody holds."""
    crew.finish()
    engine.scheduler.tiers.collected(engine.stats().step)
    engine.memory.tree.evict(1 << 40)


def preempted(engine, crew, results, steps=0):
    """Have request 0 computed in part, preempted by an urgent request 1, and evicted; request 2 comes behind it.

    Args:
        steps: That pass before it is evicted.
    """
    engine.add(request(0, PROMPT, greedy(40)))
    for _ in range(20):
        collect(engine, results, engine.step())
        crew.finish()
    (sequence,) = engine.scheduler.running
    engine.add(request(1, [11], greedy(3), priority=-1))
    collect(engine, results, engine.step())
    for _ in range(steps):
        collect(engine, results, engine.step())
    assert engine.scheduler.waiting == [sequence]
    lose_what_is_stored(engine, crew)
    assert engine.memory.cached(sequence.root, sequence.tokens[: sequence.known]) == 0
    engine.add(request(2, [12], greedy(3)))
    return sequence


def finish(engine, crew, results):
    for _ in range(200):
        crew.finish()
        collect(engine, results, engine.step())
        engine.check()
    assert not engine.has_work
    for number, (prompt, count) in enumerate(((PROMPT, 40), ([11], 3), ([12], 3))):
        assert results[number, 0].tokens == expected([FULL], prompt, count)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_who_was_preempted_loads_what_it_had_computed_while_others_run(steps):
    """Also if it was evicted only after it was looked up."""
    (engine, crew), results = tiered_engine(transfer_seconds=0.001), {}
    sequence = preempted(engine, crew, results, steps)
    for _ in range(20):
        collect(engine, results, engine.step())
        assert sequence in engine.scheduler.waiting
    assert sequence.is_fetching
    assert results[2, 0].finish is not None
    whole_pages = (sequence.known - 1) // PAGE * PAGE  # one token is left to compute
    assert whole_pages > len(PROMPT)
    finish(engine, crew, results)
    assert engine.stats().tier_tokens == whole_pages


def test_who_was_preempted_computes_anew_what_loads_slowly():
    (engine, crew), results = tiered_engine(transfer_seconds=1.0), {}
    preempted(engine, crew, results)
    finish(engine, crew, results)
    assert engine.stats().tier_tokens == 0


@pytest.mark.parametrize(("transfer_seconds", "loaded"), [(0.020, 40), (0.080, 0)])
def test_a_prefix_is_loaded_if_that_takes_less_than_computing_it(transfer_seconds, loaded):
    """To compute the 40 tokens takes 40 milliseconds."""
    engine, crew = tiered_engine(transfer_seconds)
    prompt, results = list(range(41)), {}
    for number in range(2):
        engine.add(request(number, prompt, greedy(1)))
        while engine.has_work:
            collect(engine, results, engine.step())
            crew.finish()
        assert results[number, 0].tokens == expected([FULL], prompt, 1)
        assert engine.stats().tier_tokens == loaded * number
        lose_what_is_stored(engine, crew)
