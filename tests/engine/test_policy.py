"""Policy is pure functions; the step-time model learns what it is shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine import policy
from headrace.engine.cost import StepCost
from headrace.engine.plan import Plan, finish
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput
from headrace.runtime.batch import PageWrite


def budget(estimate, **kwargs):
    defaults = {
        "max_tokens": 512,
        "decode_rows": 4,
        "decode_pairs": 400,
        "context": 0,
        "max_seconds": 0.1,
        "granule": 16,
    }
    return policy.prefill_budget(**{**defaults, **kwargs}, estimate=estimate)


@given(st.integers(1, 600), st.integers(0, 100), st.floats(1e-5, 1), st.floats(1e-6, 1e-2))
def test_prefill_budget_is_the_largest_that_fits(max_tokens, decode_rows, max_seconds, per_token):
    def estimate(tokens, pairs):
        return per_token * tokens

    got = budget(estimate, max_tokens=max_tokens, decode_rows=decode_rows, max_seconds=max_seconds)
    room = max(max_tokens - decode_rows, 0)
    assert got <= room
    if got > min(16, room):
        assert estimate(decode_rows + got, 0) <= max_seconds
    if got < room:
        assert estimate(decode_rows + got + 1, 0) > max_seconds


def test_prefill_budget_counts_attention():
    assert budget(lambda tokens, pairs: pairs / 1e6, context=10_000) < budget(lambda tokens, pairs: pairs / 1e6)


def test_without_a_limit_tokens_alone_count():
    assert budget(lambda tokens, pairs: 1e9, max_seconds=None) == 508


def test_only_prompts_more_urgent_than_all_that_decode_may_make_them_wait():
    budget = policy.Budget(room=500, bounded=100, decoding=0)
    assert [budget.left(priority) for priority in (-1, 0, 1)] == [500, 100, 100]
    budget.take(0, 120)
    assert [budget.left(priority) for priority in (-1, 0)] == [380, -20]


def test_less_urgent_prompts_make_no_urgent_one_wait():
    budget = policy.Budget(room=500, bounded=100, decoding=None)
    assert budget.left(7) == 500
    budget.take(-10, 0)
    assert budget.left(7) == 500
    budget.take(-10, 60)
    assert [budget.left(priority) for priority in (-10, 0)] == [440, 40]


def test_admission_leaves_a_page_for_each_that_runs():
    assert policy.may_admit(running=3, fits=lambda spare: spare <= 3)
    assert not policy.may_admit(running=3, fits=lambda spare: spare <= 2)
    assert policy.may_admit(running=0, fits=lambda spare: False)


def test_chunks_end_where_a_state_can_be_found_again():
    places = policy.Places(granule=16, spacing=1024, branch=0)
    assert policy.chunk(0, 100, 64) == 64
    assert policy.chunk(0, 100, 60, places) == 48
    assert policy.chunk(48, 52, 60, places) == 48
    assert policy.chunk(96, 4, 60, places) == 4  # the rest of the prompt
    assert policy.chunk(0, 100, 7, places) == 7  # no multiple is near
    assert policy.chunk(7, 93, 20, places) == 9


def test_step_cost_learns_a_linear_law():
    cost, rng = StepCost(), np.random.default_rng(0)
    assert cost.estimate(100, 1000) == 0
    for _ in range(300):
        tokens, pairs = int(rng.integers(1, 500)), int(rng.integers(1, 500_000))
        cost.learn(tokens, pairs, (0.02 + 0.001 * tokens + 1e-7 * pairs) * rng.normal(1, 0.02))
    assert cost.estimate(200, 100_000) == pytest.approx(0.23, rel=0.05)


def test_step_cost_follows_a_machine_that_slows_down():
    cost = StepCost()
    for factor in (1, 2):
        for i in range(300):
            cost.learn(1 + i % 64, 1000, factor * 0.001 * (1 + i % 64))
    assert cost.estimate(32, 1000) == pytest.approx(0.064, rel=0.05)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": "0.1"}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a", 3]}, "stop[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias.3"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias.3"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias.-1"),
    ],
)
def test_bad_sampling_parameters_name_their_field(values, field):
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(**values)
    assert caught.value.field == field


def test_a_lone_stop_string_and_lists_are_taken():
    params = SamplingParams(stop="x", stop_token_ids=[1, 2])
    assert (params.stop, params.stop_token_ids) == (("x",), (1, 2))


def test_a_batch_without_rows_carries_what_became_of_pages():
    write = PageWrite(1, 0, np.array([3], np.int32))
    planned = finish(7, Plan(pages=[(object(), write)]), ())
    assert planned.batch.pages == (write,)
    assert (planned.batch.rows, planned.rows) == (0, [])
