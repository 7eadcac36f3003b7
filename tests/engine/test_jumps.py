"""Tokens that are the only ones allowed: they come out as if they had been drawn, and cost no step of their own."""

import dataclasses

import numpy as np
import pytest
from automata import Automaton, Walk, followed, forced, walks
from byte_engines import byte_engine, teach_cost
from byte_executor import expected
from engines import collect, engine_for, record_logits, request, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripts import FULL, PROMPT, Script, greedy, scripted

from headrace.engine.sampling_params import SamplingParams
from headrace.runtime.batch import FROM_SLOT


def watch(engine):
    """Batches as they are planned: tokens of each row."""
    seen, own = [], engine.scheduler.plan

    def plan(step):
        planned = own(step)
        if planned is not None:
            seen.append([x.tolist() for x in np.split(planned.batch.tokens, planned.batch.offsets[1:-1])])
        return planned

    engine.scheduler.plan = plan
    return seen


FORCED = [None, {11}, {12}, {13}, {14}, None, None]


@pytest.mark.parametrize(("ahead", "behind"), [(0, []), (1, [[[FROM_SLOT]]])])
def test_forced_tokens_come_out_at_once_and_are_computed_together(ahead, behind):
    engine = scripted(FORCED, ahead)
    seen, results, deltas = watch(engine), {}, []
    engine.add(request(0, PROMPT, greedy(8, "s")))
    while engine.has_work:
        deltas += engine.step()
        engine.check()
    collect(engine, results, deltas)
    tokens = results[0, 0].tokens
    assert tokens == expected(FULL, PROMPT, 8, Script(FORCED))
    assert tokens[1:5] == [11, 12, 13, 14]
    assert [len(delta.tokens) for delta in deltas] == [5, 1, 1, 1]
    assert seen[:3] == [[PROMPT], *behind, [[11, 12, 13, 14] if ahead else tokens[:5]], [[FROM_SLOT]]][:3]
    stats = engine.stats()
    assert (stats.output_tokens, stats.forced_tokens, stats.masked_tokens) == (8, 4, 0)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_lone_forced_token_costs_no_row_of_its_own(ahead):
    steps = [None, {11}] * 5
    engine = scripted(steps, ahead)
    seen = watch(engine)
    results = run(engine, request(0, PROMPT, greedy(10, "s")))
    assert results[0, 0].tokens == expected(FULL, PROMPT, 10, Script(steps))
    assert all(len(rows[0]) <= 2 - ahead for rows in seen[1:])


@pytest.mark.parametrize("ahead", [0, 1])
def test_log_probabilities_are_of_draws(ahead):
    engine = scripted(FORCED, ahead)
    results = run(engine, request(0, PROMPT, greedy(8, "s", logprobs=0)))
    assert results[0, 0].tokens == expected(FULL, PROMPT, 8, Script(FORCED))
    assert (engine.stats().forced_tokens, engine.stats().masked_tokens) == (0, 4)


def test_jumps_come_before_prompts_and_leave_a_token_to_each_other():
    steps = [None, *({token} for token in range(20, 40)), *[None] * 9]
    engine = scripted(steps, step=10)
    seen, results = watch(engine), {}
    for number in range(2):
        engine.add(request(number, [number + 1], greedy(30, "s")))
    for _ in range(2):
        collect(engine, results, engine.step())
    engine.add(request(2, [3] * 40, greedy(3)))
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
    sizes = [[len(row) for row in rows] for rows in seen]
    assert sizes[:6] == [[1, 1], [1, 1], [9, 1], [9, 1], [2, 8], [1, 9]]
    for number in range(2):
        assert results[number, 0].tokens == expected(FULL, [number + 1], 30, Script(steps))
    assert results[2, 0].tokens == expected(FULL, [3] * 40, 3)


def test_a_jump_is_as_short_as_those_beside_it_need():
    """A token takes a millisecond, a step is to take ten: nine and one that only decodes."""
    steps = [None, *({token} for token in range(20, 50))]
    engine = scripted(steps, step=40)
    teach_cost(engine, token=0.001)
    engine.scheduler.limits = dataclasses.replace(engine.scheduler.limits, max_step_seconds=0.0101)
    seen = watch(engine)
    run(engine, request(0, [1], greedy(40, "s")), request(1, [2], greedy(20)))
    assert [[len(row) for row in rows] for rows in seen][2:5] == [[1, 9]] * 3


def test_who_was_preempted_is_prefilled_like_a_prompt():
    engine = byte_engine(FULL, slabs=60, context=200, slots=1, step=10)
    engine.memory.prefix_cache = False
    results = {}
    collect(engine, results, engine.add(request(0, PROMPT, greedy(30))))
    for _ in range(20):
        collect(engine, results, engine.step())
    (sequence,) = engine.scheduler.running
    engine.add(request(1, [1], greedy(1), priority=-1))
    known = []
    while engine.has_work:
        collect(engine, results, engine.step())
        known += [sequence.computed] if sequence in engine.scheduler.running and sequence.prefills else []
        assert not sequence.jumps
    assert known == [10, 20]
    assert results[0, 0].tokens == expected(FULL, PROMPT, 30)


def test_a_stop_token_ends_a_jump():
    engine = scripted(FORCED)
    result = run(engine, request(0, PROMPT, greedy(8, "s", stop_token_ids=[13])))[0, 0]
    assert result.tokens == expected(FULL, PROMPT, 4, Script(FORCED))
    assert (result.finish.reason, result.finish.stop, result.finish.hidden_tokens) == ("stop", 13, 1)


def test_the_limit_ends_a_jump():
    result = run(scripted(FORCED), request(0, PROMPT, greedy(3, "s")))[0, 0]
    assert result.tokens == expected(FULL, PROMPT, 3, Script(FORCED))
    assert result.finish.reason == "length"


# --- with a model -----------------------------------------------------------------------------------------------------


TINY = walks(256)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(3, 255), min_size=1, max_size=40),
            "temperature": st.sampled_from([0.0, 1.0]),
            "n": st.integers(1, 3),
            "max_tokens": st.integers(1, 30),
            "stop_token_ids": st.lists(st.integers(3, 255), max_size=20, unique=True),
            "frequency_penalty": st.sampled_from([0.0, 0.8]),
            "repetition_penalty": st.sampled_from([1.0, 1.2]),
            "top_p": st.sampled_from([1.0, 0.9]),
            "grammar": st.none() | st.tuples(st.integers(0, 30), st.integers(0, 2)).map(lambda x: f"{x[0]} 0 {x[1]}"),
        }
    ),
    min_size=1,
    max_size=5,
)


def messages_of(asked, kept=lambda ask: True):
    for number, ask in enumerate(asked):
        if kept(ask):
            params = {name: value for name, value in ask.items() if name != "prompt"}
            yield request(number, ask["prompt"], SamplingParams(seed=number, **params))


def outcome(results):
    return {key: (result.tokens, result.finish.reason, result.finish.stop) for key, result in results.items()}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS, st.sampled_from([3, 16, 64]), st.integers(1, 5), st.sampled_from([12, 60]), st.booleans())
def test_jumping_changes_nothing(folder, asked, chunk, slots, pages, cache):
    """Nor do neighbours under constraints."""
    options = {"max_batch_tokens": chunk, "max_running": slots, "prefix_cache": cache, "pages": pages}
    jumping = engine_for(folder, context_length=96, constraint_for=TINY, **options)
    drawing = engine_for(folder, context_length=96, constraint_for=TINY, jump_forward=False, **options)
    results = run(jumping, *messages_of(asked))
    assert outcome(results) == outcome(run(drawing, *messages_of(asked)))
    for (number, _), result in results.items():
        if asked[number]["grammar"] is not None:
            assert followed(Walk(Automaton(int(asked[number]["grammar"].split()[0]), 256)), result.tokens)
    free = run(engine_for(folder), *messages_of(asked, lambda ask: ask["grammar"] is None))
    assert outcome(free).items() <= outcome(results).items()
    assert drawing.stats().forced_tokens == 0
    assert drawing.stats().output_tokens == jumping.stats().output_tokens


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_all_that_can_be_forced_is(folder, executor):
    engine = engine_for(folder, constraint_for=TINY, **({"executor": executor, "recipe": "float32"}))
    results = run(engine, *[request(i, PROMPT, greedy(60, str(i))) for i in range(20)])
    wanted = sum(forced(Automaton(i, 256), results[i, 0].tokens) for i in range(20))
    assert engine.stats().forced_tokens == wanted > 100


@pytest.mark.model
def test_jumping_changes_no_bit(smollm2):
    """Logits and tokens of a compiled model, of mixed requests."""
    rng = np.random.default_rng(5)
    found, factory = [], walks(49_152, literal=20, ends=False)
    prompts = [rng.integers(20, 49_000, int(n)).tolist() for n in rng.integers(1, 60, 6)]
    for jump in (True, False):
        engine = engine_for(
            smollm2,
            executor="compiled",
            recipe="int8",
            kv_memory=256 << 20,
            max_batch_tokens=24,
            constraint_for=factory,
            jump_forward=jump,
        )
        logits = record_logits(engine)
        params = [
            SamplingParams(
                max_tokens=24, seed=i, temperature=i % 2, frequency_penalty=i % 3 / 2, grammar=(None, "2", "8")[i % 3]
            )
            for i in range(6)
        ]
        results = run(engine, *[request(i, x, p) for i, (x, p) in enumerate(zip(prompts, params, strict=True))])
        found.append((outcome(results), logits, engine.stats()))
    (tokens, logits, stats), (all_tokens, all_logits, _) = found
    assert tokens == all_tokens
    assert stats.forced_tokens > 20
    assert logits.keys() < all_logits.keys()
    assert all(np.array_equal(row, all_logits[at]) for at, row in logits.items())
