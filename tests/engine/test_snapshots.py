"""Where states of prompts are kept: at their ends, where they part ways, and at a spacing."""

from random import Random

import pytest
from byte_engines import teach_cost
from byte_executor import VOCAB, ByteExecutor, expected
from engines import request, run

from headrace.engine.engine import Engine
from headrace.engine.policy import Places, chunk
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.memory.page_form import PageForm
from headrace.memory.snapshots import snapshot_spacing
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.spec import ModelSpec

PAGE, STATE_BYTES, SLAB, CONTEXT = 16, 1 << 16, 1 << 16, 2_000
FULL = MemoryGroup(True, PageForm.of(1, [(1, 32)]).in_slabs(SLAB))
WINDOW = MemoryGroup(True, PageForm.of(1, [(1, 32)]).in_slabs(SLAB), 100)
STATE = MemoryGroup(False, PageForm.of(1, [(1, STATE_BYTES)]).in_slabs(SLAB))
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def engine_of(*groups, budget):
    memory = StateMemory(groups, nbytes=100 * SLAB, page_tokens=PAGE, poison=True)
    spec = ModelSpec("m", "none", VOCAB, 1, CONTEXT, (), (), 0)
    limits = SchedulerLimits(4, budget, None)
    return Engine(
        spec, ByteExecutor(memory, 4, CONTEXT), memory, limits, context_length=CONTEXT, constraint_for=lambda p: None
    )


def ask(engine, number, prompt):
    """A request alone: how many of its tokens were cached."""
    result = run(engine, request(number, prompt, PARAMS))[number, 0]
    assert result.tokens == expected(engine.scheduler.memory.groups, prompt, 3)
    return result.cached_tokens


@pytest.mark.parametrize("groups", [(FULL, STATE), (STATE,), (FULL, WINDOW, STATE)])
@pytest.mark.parametrize("budget", [100, 512, 4_000])
def test_the_third_prompt_finds_all_that_two_shared(groups, budget):
    engine, rng = engine_of(*groups, budget=budget), Random(1)
    shared = [rng.randrange(VOCAB) for _ in range(1_000)]
    prompts = [shared + [k] + [rng.randrange(VOCAB) for _ in range(300)] for k in range(3)]
    assert ask(engine, 0, prompts[0]) == 0
    assert ask(engine, 1, prompts[1]) < 992
    assert ask(engine, 2, prompts[2]) == 1_000 // PAGE * PAGE
    assert ask(engine, 3, prompts[0]) == 1_301 // PAGE * PAGE  # and each finds its own end
    assert ask(engine, 4, shared[:500]) <= 496
    assert ask(engine, 5, shared[:500] + [VOCAB - 2] * 50) == 496


def test_no_more_states_are_kept_than_serve():
    """A state is worth many tokens here, so a prompt keeps that at its end, however small its chunks are."""
    engine, rng = engine_of(FULL, STATE, budget=64), Random(2)
    ask(engine, 0, [rng.randrange(VOCAB) for _ in range(1_000)])
    assert engine.scheduler.memory.pools[1].evictable == 1


@pytest.mark.parametrize(
    ("cost", "spacing"),
    [
        ({"token": 1e-3}, 64),  # a state lies where two tokens would, and costs nothing else
        ({"token": 1e-3, "step": 0.15}, 512),
        ({"token": 1e-3, "step": 0.15, "pair": 1e-4}, 128),  # a step more is worth fewer tokens, as those see many
    ],
)
def test_the_spacing_follows_what_steps_were_measured_to_take(cost, spacing):
    state = MemoryGroup(False, PageForm.of(1, [(1, 4)]).in_slabs(SLAB))
    engine, rng = engine_of(FULL, state, budget=4_000), Random(3)
    teach_cost(engine, **cost)
    ask(engine, 0, [rng.randrange(VOCAB) for _ in range(530)])
    places = {*range(spacing, 530, spacing), 530 // PAGE * PAGE}
    assert engine.scheduler.memory.pools[1].evictable == len(places)


def test_chunks_end_at_places():
    places = Places(16, 64, 144)
    ends, computed = [], 0
    while computed < 300:
        computed += chunk(computed, 300 - computed, 1_000, places)
        ends.append(computed)
    assert ends == [64, 128, 144, 192, 256, 288, 300]
    assert [end for end in range(1, 301) if places.has(end, 300)] == [64, 128, 144, 192, 256, 288]


def spacing(**given):
    about = {"page_tokens": 16, "state_bytes": 1_000, "token_bytes": 10.0, "step_seconds": 0.0, "token_seconds": 0.0}
    return snapshot_spacing(**(about | {"branch_tokens": 1_000.0} | given))


def test_the_spacing_is_near_the_least_cost():
    """Of pages times powers of two: by the cost that the docstring names, summed up."""

    def cost(tokens, price, branch):
        return price / tokens + (tokens - 1) / 2 / branch

    for state_bytes in (100, 1_000, 30_000):
        for branch in (100.0, 5_000.0):
            for seconds in (0.0, 0.5):
                price = state_bytes / 10 + seconds / 0.001
                found = spacing(
                    state_bytes=state_bytes, branch_tokens=branch, step_seconds=seconds, token_seconds=0.001
                )
                best = min(cost(16 << k, price, branch) for k in range(20))
                assert cost(found, price, branch) < 1.1 * best


def test_a_page_is_the_least_spacing():
    assert spacing(state_bytes=1) == 16
    assert spacing(state_bytes=1, token_seconds=1.0) == 16


def test_where_a_state_is_all_that_a_prefix_needs_few_are_kept():
    assert spacing(token_bytes=0.0, branch_tokens=1_024.0) in (1_024, 2_048)
