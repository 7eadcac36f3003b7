"""Comparisons: no difference where there is none, the one that there is, and a warning where it is unfair."""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec
import numpy as np
import pytest
from bench_samples import Row, answered, gather, random_samples, result_of, round_of, samples_of_any_kind
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.results.compare import compare, highest_common
from headrace.bench.results.ratios import combined_ratio, paired_ratio
from headrace.bench.results.samples import UNKNOWN
from headrace.bench.results.schema import Certificate, Estimate, Point, Search, Sweep, Swept
from headrace.bench.results.statistics import student_t
from headrace.bench.results.sweeps import compare_sweeps
from headrace.errors import InvalidInput

SLO = {"ttft": 0.4, "tpot": 0.04}


def verdicts(seed, runs, *, ratio=1.0, rounds=1, requests=200, machine=0.0):
    """Share of simulated comparisons by measure and verdict; both sides of a round share the machine's state."""
    rng = np.random.default_rng(seed)
    found = defaultdict(list)
    for _ in range(runs):
        sides = [], []
        for _ in range(rounds):
            state = math.exp(machine * rng.normal())
            for side, factor in zip(sides, (state, state * ratio), strict=True):
                samples = random_samples(rng, requests, ttft=0.2 * factor, gap=0.02 * factor)
                side.append(round_of(samples, SLO))
        for each in compare(result_of(sides[0]), result_of(sides[1])).ratios:
            found[each.measure].append(each.verdict)
    return {name: {each: verdict.count(each) / runs for each in "ab"} for name, verdict in found.items()}


def test_one_server_twice_shows_no_difference():
    found = verdicts(1, 25, requests=150)
    assert {"ttft.p50", "tpot.p90", "itl.p99", "e2e.mean", "rates.output_tokens", "goodput.share"} <= set(found)
    for measure, shown in found.items():
        assert shown["a"] + shown["b"] <= 0.1, measure


def test_one_server_twice_over_several_rounds_shows_no_difference():
    for measure, shown in verdicts(3, 20, rounds=3, requests=40, machine=0.3).items():
        assert shown["a"] + shown["b"] <= 0.1, measure


def test_a_difference_of_a_fifth_is_found():
    found = verdicts(4, 8, ratio=1.2, requests=800)
    for measure in ("ttft.mean", "ttft.p50", "tpot.mean", "tpot.p50", "itl.mean", "itl.p50", "e2e.mean", "e2e.p50"):
        assert found[measure]["a"] >= 0.85, measure
    assert all(shown["b"] <= 0.1 for shown in found.values())


def test_a_difference_is_found_through_what_changes_from_round_to_round():
    found = verdicts(5, 6, ratio=1.2, rounds=5, requests=100, machine=0.5)
    for measure in ("ttft.mean", "tpot.mean", "itl.p50", "e2e.mean"):
        assert found[measure]["a"] >= 0.8, measure


def test_paired_rounds_are_students_interval_of_the_log_ratios():
    a = [Estimate(value) for value in (1.0, 2.0, 4.0, 3.0)]
    b = [Estimate(value) for value in (1.1, 2.1, 5.0, 3.2)]
    logs = np.log([1 / 1.1, 2 / 2.1, 4 / 5, 3 / 3.2])
    half = 3.182 * logs.std(ddof=1) / 2
    found = paired_ratio(a, b)
    assert student_t(3) == 3.182
    assert (found.value, found.low, found.high) == pytest.approx(
        (math.exp(logs.mean()), math.exp(logs.mean() - half), math.exp(logs.mean() + half))
    )


def test_intervals_combine_like_independent_errors():
    """Of lognormal figures with known errors the interval of the ratio is known."""
    wide, narrow = math.exp(1.96 * 0.3), math.exp(1.96 * 0.4)
    found = combined_ratio([Estimate(2.0, 2 / wide, 2 * wide)], [Estimate(1.0, 1 / narrow, narrow)])
    both = math.exp(1.96 * 0.5)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 / both, 2 * both))
    twice = combined_ratio([Estimate(2.0, 2 / wide, 2 * wide)] * 2, [Estimate(1.0, 1 / narrow, narrow)] * 2)
    assert twice.high / twice.value == pytest.approx(math.exp(1.96 * 0.5 / math.sqrt(2)))


ends = st.one_of(st.none(), st.just(0.0), st.floats(1e-6, 1))
positive = st.builds(
    lambda value, low, high: Estimate(
        value, None if low is None else value * low, None if high is None else value * (1 + high)
    ),
    st.floats(1e-6, 1e6),
    ends,
    ends,
)


@given(st.lists(positive, min_size=1, max_size=4), st.lists(positive, min_size=1, max_size=4))
def test_a_combined_interval_holds_the_ratio_and_turns_round_with_it(a, b):
    found, turned = combined_ratio(a, b), combined_ratio(b, a)
    assert turned.value == pytest.approx(1 / found.value)
    assert (found.low is None) == (turned.high is None)
    if found.low is not None:
        assert 0 < found.low <= found.value * (1 + 1e-9)
        assert turned.high == pytest.approx(1 / found.low)
    unknown = any(each.low in {None, 0} for each in a) or any(each.high is None for each in b)
    assert (found.low is None) == unknown


def simple(ttft=0.1, requests=60, rounds=1, slo=None, **given):
    samples = random_samples(np.random.default_rng(0), requests, ttft=ttft)
    return result_of([round_of(samples, slo, **given)] * rounds)


def changed(result, **changes):
    return msgspec.structs.replace(result, **changes)


def by_name(comparison):
    return {each.measure: each for each in comparison.ratios}


def test_a_result_with_itself():
    result = simple(slo=SLO)
    found = compare(result, result)
    assert found.warnings == []
    assert all(each.ratio.value == 1 and each.verdict == "none" for each in found.ratios)
    assert (found.a, found.b) == (result, result)
    assert "differences between runs of the machine are not in them" in found.method
    assert "over 3 pairs of rounds" in compare(simple(rounds=3), simple(rounds=3)).method
    assert "are not in them" in compare(simple(rounds=3), simple(rounds=4)).method


def test_which_direction_is_better():
    found = by_name(compare(simple(ttft=0.1, requests=200, slo=SLO), simple(ttft=0.3, requests=200, slo=SLO)))
    assert found["ttft.p50"].verdict == "a"
    assert found["ttft.p50"].ratio.value == pytest.approx(1 / 3, rel=0.01)
    assert found["goodput.share"].verdict == "a"
    assert found["goodput.share"].better == "higher"
    back = by_name(compare(simple(ttft=0.3, requests=200, slo=SLO), simple(ttft=0.1, requests=200, slo=SLO)))
    assert back["ttft.p50"].verdict == back["goodput.share"].verdict == "b"


def test_without_an_interval_there_is_no_verdict():
    few = [result_of([round_of(gather([answered(0.0, ttft), answered(1.0, ttft)]))]) for ttft in (0.1, 0.9)]
    for each in compare(*few).ratios:
        assert each.verdict == "none", each


def test_equal_figures_have_no_winner_by_rounding():
    rounds = [[round_of(gather([answered(i, 0.1 * (1 + error)) for i in range(9)]))] * 3 for error in (0.0, 1e-12)]
    assert {each.verdict for each in compare(*map(result_of, rounds)).ratios} == {"none"}


def test_what_only_one_has_or_is_zero_is_said():
    good = simple(slo={"ttft": 1.0})
    bad_rows = [Row(float(i), float(i), i + 0.1, error="http 500") for i in range(60)]
    bad = result_of([round_of(gather(bad_rows), {"ttft": 1.0})])
    found = compare(good, bad)
    said = " ".join(found.warnings)
    assert "ttft.p50 is known of every round of the first only" in said
    assert "goodput.share is 1 beside 0: 0 has no ratio" in said
    assert "60 of 60 requests to the second failed" in said
    assert "1 of 1 rounds of the second are not certified: None of the 60 requests" in said
    assert "ttft.p50" not in by_name(found)
    assert "goodput.share" not in by_name(found)


def test_what_was_asked_of_only_one_is_said():
    a = simple(slo=SLO, rate=4.0)
    assert compare(a, a).warnings == []
    for change in (
        {"workload": "other"},
        {"parameters": {"prompt": 20}},
        {"arrivals": "constant"},
        {"arrival_parameters": {"rate": 9.0}},
        {"seed": 1},
        {"warmup": "10%"},
        {"requests": 9},
    ):
        found = compare(a, changed(a, plan=msgspec.structs.replace(a.plan, **change)))
        assert len(found.warnings) == 1, change
        assert " differs: " in found.warnings[0]
    for change in ({"model": "other"}, {"api": "chat"}, {"prompts": "text"}):
        assert len(compare(a, changed(a, target=msgspec.structs.replace(a.target, **change))).warnings) == 1
    found = compare(a, simple(slo={"ttft": 0.1}, rate=8.0))
    assert any(
        text.startswith("The service level differs: ttft=0.4, tpot=0.04 beside ttft=0.1") for text in found.warnings
    )
    assert "goodput.share" not in by_name(found)
    closed = changed(a, plan=msgspec.structs.replace(a.plan, arrivals="closed"))
    more = changed(closed, plan=msgspec.structs.replace(closed.plan, requests=99))
    assert compare(closed, more).warnings == []


def test_what_only_one_can_be_asked_is_no_difference():
    a = simple()
    closed = msgspec.structs.replace(a.plan, arrivals="closed", arrival_parameters={"concurrency": 8})
    opened = msgspec.structs.replace(a.plan, arrivals="poisson", arrival_parameters={"rate": 4.0}, requests=99)
    found = compare(changed(a, plan=closed), changed(a, plan=opened))
    assert found.warnings == ["The kind of arrivals differs: closed beside poisson"]


def test_uncertified_rounds_are_said():
    a = simple()
    void = Certificate(certified=False, reasons=["The generator was late."])
    b = changed(a, rounds=[msgspec.structs.replace(a.rounds[0], certificate=void)])
    assert compare(a, b).warnings == ["1 of 1 rounds of the second are not certified: The generator was late."]


def test_work_that_was_not_the_same_is_said():
    a = simple()
    notes = ["It takes no seed.", "It takes no min_tokens."]
    strict = changed(a, target=msgspec.structs.replace(a.target, notes=notes))
    assert compare(a, strict).warnings == [
        "The list of what the server does not take differs: none beside It takes no seed. It takes no min_tokens."
    ]
    whole, short, other, untold = (
        result_of([round_of(gather([answered(float(i), 0.1, [0.02] * (7 - (i < cut)), **given) for i in range(50)]))])
        for cut, given in (
            (0, {}),
            (5, {"planned_output": 8}),
            (0, {"planned_prompt": 11}),
            (0, {"output_tokens": UNKNOWN}),
        )
    )
    assert compare(whole, short).warnings == [
        "The mean answer has 8 tokens beside 7.9: the servers did not do the same work",
        "5 of 50 requests to the second had an answer of another length than was asked for",
    ]
    assert compare(other, whole).warnings == [
        "50 of 50 requests to the first had a prompt that it counted otherwise than was sent"
    ]
    assert not any("mean answer" in text for text in compare(whole, untold).warnings)


def searched(found, failed=1.05, tried=((1.0, True), (2.0, True), (4.0, False))):
    rounds = [round_of(random_samples(np.random.default_rng(0), 60), SLO, rate) for rate, _ in tried]
    points = [Point(rate, index, met) for index, (rate, met) in enumerate(tried)]
    above = None if failed is None or found is None else found * failed
    return result_of(
        rounds, search=Search(target_share=0.99, tolerance=0.05, max_rate=found, failed_rate=above, points=points)
    )


def test_searches_compare_by_what_they_leave_open():
    found = compare(searched(3.0), searched(2.0))
    rate = by_name(found)["max_rate"]
    assert (rate.a, rate.b, rate.better, rate.verdict) == (3.0, 2.0, "higher", "a")
    assert (rate.ratio.value, rate.ratio.low, rate.ratio.high) == pytest.approx((1.5, 1.5 / 1.05, 1.5 * 1.05))
    assert "not a confidence interval" in found.method
    assert by_name(compare(searched(2.05), searched(2.0)))["max_rate"].verdict == "none"
    open_ended = by_name(compare(searched(3.0, failed=None), searched(2.0)))["max_rate"]
    assert open_ended.ratio.high is None
    assert open_ended.verdict == "a"
    none = compare(searched(None), searched(2.0))
    assert "max_rate" not in by_name(none)
    assert any("max_rate is none beside 2" in text for text in none.warnings)


def test_searches_compare_figures_at_the_highest_rate_that_both_kept():
    found = compare(searched(2.0), searched(1.0, tried=((1.0, True), (2.0, False))))
    assert by_name(found)["ttft.p50"].ratio.value == 1
    apart = compare(searched(2.0, tried=((2.0, True),)), searched(1.0, tried=((1.0, True),)))
    assert set(by_name(apart)) == {"max_rate"}
    assert any("no rate that both kept" in text for text in apart.warnings)


def test_a_rate_that_one_search_rejected_was_not_kept():
    doubted = ((1.0, True), (2.0, True), (2.0, False), (2.0, False))
    a, b = searched(1.0, tried=doubted), searched(2.0, tried=((1.0, True), (2.0, True), (2.0, True)))
    assert highest_common(a, b) == (0, 0)
    assert highest_common(b, b) == (2, 2)
    assert highest_common(a, searched(None)) is None
    assert highest_common(simple(), simple()) is None


def test_a_search_is_not_compared_with_something_else():
    with pytest.raises(InvalidInput, match="compare like with like"):
        compare(searched(2.0), simple())


@settings(max_examples=40)
@given(samples_of_any_kind(), samples_of_any_kind(), st.integers(1, 4), st.integers(1, 4))
def test_any_two_results_can_be_compared(a, b, first, second):
    found = compare(result_of([round_of(a, SLO)] * first), result_of([round_of(b, SLO)] * second))
    for each in found.ratios:
        assert each.a > 0
        assert each.b > 0
        assert each.ratio.value == pytest.approx(each.a / each.b)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def swept(over="rate", loads=(1.0, 2.0), **given):
    rounds = [round_of(random_samples(np.random.default_rng(seed), 30)) for seed in range(len(loads))]
    return msgspec.structs.replace(result_of(rounds, **given), sweep=Sweep(over=over, loads=list(loads)))


def test_sweeps_need_not_have_the_same_loads():
    found = compare_sweeps([Swept("a", swept()), Swept("b", swept(loads=(1.0, 4.0, 8.0)))])
    assert found.warnings == []
    assert [each.name for each in found.sweeps] == ["a", "b"]


def test_what_differs_between_sweeps_is_said():
    first, other = swept(), swept()
    other = msgspec.structs.replace(other, plan=msgspec.structs.replace(other.plan, seed=7))
    late = msgspec.structs.replace(other.rounds[1], certificate=Certificate(certified=False, reasons=["It was late."]))
    other = msgspec.structs.replace(other, rounds=[other.rounds[0], late])
    found = compare_sweeps([Swept("a", first), Swept("b", first), Swept("c", other)])
    assert found.warnings == [
        "a beside c: The seed differs: 0 beside 7",
        "1 of 2 rounds of c are not certified: It was late.",
    ]


def test_sweeps_are_compared_with_sweeps_over_the_same():
    rates, users, plain = swept(), swept(over="concurrency"), result_of(swept().rounds)
    for sides, says in (
        ([Swept("a", rates)], "two sweeps at least"),
        ([Swept("a", rates), Swept("a", rates)], "the name 'a'"),
        ([Swept("a", rates), Swept("b", plain)], "and another is not"),
        ([Swept("a", rates), Swept("b", users)], "over concurrency and another over rates"),
    ):
        with pytest.raises(InvalidInput, match=says):
            compare_sweeps(sides)
    for pair in ((rates, plain), (plain, rates), (rates, rates)):
        with pytest.raises(InvalidInput, match="with other sweeps only"):
            compare(*pair)
