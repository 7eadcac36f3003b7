"""Sequences hold the pages that they need now, and what goes first is what is soonest computed again."""

import numpy as np
import pytest
from byte_engines import byte_engine, greedy, teach_cost
from byte_executor import expected
from engines import collect, request, run

from headrace.memory.page_form import PageForm
from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.state_memory import MemoryGroup

PAGE = 4
FULL = MemoryGroup(True, PageForm.of(1, [(1, 16)]))


def test_nobody_needs_room_for_all_that_it_might_become():
    engine = byte_engine([FULL], slabs=30, context=120)
    for number in range(4):
        engine.add(request(number, [number] * 7, greedy(112)))  # of 30 pages at its longest, and 2 now
    engine.step()
    assert len(engine.scheduler.running) == 4


@pytest.mark.parametrize("length", [3, 4])
@pytest.mark.parametrize("gap", [1, 3, 4, 5])
def test_nobody_starts_only_to_be_preempted_at_once(gap, length):
    """Requests come every ``gap`` steps; each prompt fits into a step, and its first token into its page or not."""
    preemptions = 0
    for slabs in range(8, 24):
        engine, started, before = byte_engine([FULL], slabs=slabs, context=28, slots=8), set(), set()
        for step in range(100):
            if step % gap == 0 and step < 8 * gap:
                engine.add(request(step, [step] * length, greedy(24)))
            engine.step()
            if engine.scheduler.roster.preemptions:
                preemptions += 1
                assert started == before, f"somebody started in the step before, with {slabs} pages"
                break
            before, started = started, started | {s.request for s in engine.scheduler.running}
    assert preemptions


def test_what_a_window_leaves_behind_is_given_back_at_once():
    window, step, most = 9, 8, 0
    groups = [MemoryGroup(True, PageForm.of(1, [(1, 16)])), MemoryGroup(True, PageForm.of(1, [(1, 16)]), window)]
    engine, results = byte_engine(groups, slabs=200, context=400, step=step), {}
    grow = engine.memory.grow

    def watched(held, tokens):
        nonlocal most
        writes = grow(held, tokens)
        most = max(most, np.count_nonzero(held.rows[1] >= 0))
        return writes

    engine.memory.grow = watched
    prompt = [number % 7 for number in range(100)]
    engine.add(request(0, prompt, greedy(200)))
    while engine.has_work:
        collect(engine, results, engine.step())
    assert results[0, 0].tokens == expected(groups, prompt, 200)
    assert most * PAGE <= window + step + PAGE


def test_what_goes_first_is_soonest_computed_again():
    """The end of a long prompt sees many tokens, so it stays, although the short one was used after it."""
    times = iter(range(1_000_000))
    engine = byte_engine([FULL], slabs=100, context=200, clock=lambda: next(times) / 1_000)
    teach_cost(engine, token=1e-6, pair=1e-6)
    long, short = [1] * 160, [2] * 16
    run(engine, request(0, long, greedy(1)))
    run(engine, request(1, short, greedy(1)))
    engine.memory.tree.evict(FULL.form.page_bytes)

    def kept(prompt):
        return engine.memory.cached(PrefixKey(""), np.array([*prompt, 0], np.int32))

    assert (kept(long), kept(short)) == (160, 12)
