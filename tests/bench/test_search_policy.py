"""The search for a rate, against truths that are known, and against verdicts that make no sense."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.results.search import LEAST_TOLERANCE, MAX_TRIALS, REACH, Outcome, next_rate, outcome

rates = st.floats(1e-3, 1e5)
tolerances = st.floats(LEAST_TOLERANCE, 0.5)


def search(verdict, start=1.0, tolerance=0.05, limit=None):
    points = []
    while (rate := next_rate(points, start, tolerance, limit)) is not None:
        points.append((rate, verdict(rate)))
        assert len(points) <= MAX_TRIALS
    return points, outcome(points)


@given(start=rates, steps=st.floats(-11.9, 11.9), tolerance=tolerances)
def test_finds_any_truth_within_the_tolerance_below_it(start, steps, tolerance):
    truth = start * 2**steps
    points, found = search(lambda rate: rate <= truth, start, tolerance)
    assert truth < found.failed_rate
    assert found.max_rate <= truth < found.max_rate * (1 + tolerance) * (1 + 1e-12)
    assert len(points) <= 13 + math.ceil(math.log2(math.log(2) / math.log1p(tolerance)) + 1e-9) + 2


@given(start=rates, steps=st.floats(-5, 5), limit_steps=st.floats(-5, 5))
def test_never_goes_above_the_limit(start, steps, limit_steps):
    truth, limit = start * 2**steps, start * 2**limit_steps
    points, found = search(lambda rate: rate <= truth, start, 0.05, limit)
    assert max(rate for rate, _ in points) <= limit
    if truth >= limit:
        assert found == Outcome(limit, None)
    else:
        assert truth < found.failed_rate
        assert found.max_rate <= truth < found.max_rate * 1.05


@given(verdicts=st.lists(st.booleans(), min_size=MAX_TRIALS, max_size=MAX_TRIALS), tolerance=tolerances)
def test_ends_and_stays_consistent_whatever_the_verdicts(verdicts, tolerance):
    answers = iter(verdicts)
    points, found = search(lambda rate: next(answers), 1.0, tolerance)
    assert len(points) <= MAX_TRIALS
    votes = {rate: sum(1 if met else -1 for each, met in points if each == rate) for rate, _ in points}
    assert max(sum(each == rate for each, _ in points) for rate in votes) <= 3
    failed = [rate for rate, vote in votes.items() if vote < 0 or (vote == 0)]
    assert found.failed_rate == min(failed, default=None)
    if found.max_rate is not None:
        assert votes[found.max_rate] > 0
        assert found.max_rate < min(failed, default=math.inf)


def test_gives_up_far_below_and_far_above():
    points, found = search(lambda rate: False)
    assert found == Outcome(None, 1 / REACH)
    assert min(rate for rate, _ in points) == 1 / REACH
    points, found = search(lambda rate: True)
    assert found == Outcome(REACH, None)
    assert points[-1] == points[-2], "the rate that is reported was confirmed"


def test_both_ends_of_the_last_bracket_are_tried_twice():
    points, found = search(lambda rate: rate <= 10)
    failed = min(rate for rate, met in points if not met)
    assert [rate for rate, _ in points].count(found.max_rate) == 2
    assert [rate for rate, _ in points].count(failed) == 2


@pytest.mark.parametrize("wrong", range(12))
def test_one_wrong_verdict_does_not_change_what_is_found(wrong):
    tried = 0

    def verdict(rate):
        nonlocal tried
        tried += 1
        return (rate <= 10) != (tried - 1 == wrong)

    points, found = search(verdict)
    believed = [rate for rate, _ in points].count(found.max_rate) >= 2
    assert believed
    assert found.max_rate <= 10 * 1.05
    assert found.max_rate >= 10 / 1.05**2


def test_noisy_verdicts_near_the_truth_still_find_it():
    rng = np.random.default_rng(3)
    found = []
    for _ in range(200):
        # The chance to meet falls from nearly 1 to nearly 0 within 3 % around the truth of 10.
        points, result = search(lambda rate: rng.random() < 1 / (1 + math.exp((rate - 10) / 0.1)))
        found.append(result.max_rate)
        assert len(points) <= 25
    assert np.mean(np.abs(np.array(found) / 10 - 1) < 0.06) > 0.97


def test_an_unfinished_search_has_an_outcome():
    assert outcome([]) == Outcome(None, None)
    assert outcome([(4.0, True)]) == Outcome(4.0, None)
    assert outcome([(4.0, True), (8.0, False)]) == Outcome(4.0, 8.0)
    assert outcome([(4.0, True), (2.0, True), (4.0, False)]) == Outcome(2.0, 4.0)
