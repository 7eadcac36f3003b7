"""Intervals: against resamples written out, and by how often they hold the truth where it is known."""

from __future__ import annotations

import math
import time
from statistics import NormalDist

import numpy as np
import pytest
from bench_samples import autoregressive
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.results import resampling, statistics
from headrace.bench.results.resampling import Bins, block_length, resample
from headrace.bench.results.statistics import ENOUGH, describe, estimate, percentiles, quotient, rate, share, student_t

NORMAL = NormalDist()


def test_t_is_the_integral_of_its_density():
    for freedom in (*range(1, 40), 100, 1000):
        scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
        x = np.linspace(0, student_t(freedom), 200_001)
        inside = np.trapezoid(scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2), x)
        # The table has three decimals, which at one degree of freedom is 1.2e-6 of probability, and up to 3e-5 later.
        assert 2 * inside == pytest.approx(0.95, abs=6e-5), freedom


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_percentiles_are_numpys(values, part):
    np.testing.assert_allclose(percentiles(np.array(values), [part])[0], np.percentile(values, 100 * part))


def test_percentiles_of_nothing():
    assert np.isnan(percentiles(np.array([]))).all()
    assert describe(np.array([])) is None


@settings(max_examples=60)
@given(
    groups=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    length=st.integers(1, 8),
    spread=st.integers(1, 10),
    seed=st.integers(0, 2**31),
)
def test_resamples_are_those_of_whole_requests(groups, length, spread, seed):
    """Requests with any number of values each, with ties: every resample written out, and its figures compared."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(groups)), groups)
    values = rng.integers(0, spread, len(owner)) / 7
    drawn = resample(len(groups), length, seed)
    assert drawn.weights.shape == (resampling.RESAMPLES, len(groups))
    if not len(values):
        return
    totals = drawn.totals(values, owner)
    found = drawn.percentiles(values, owner, [0.0, 0.3, 0.5, 0.99, 1.0])
    for row in range(0, resampling.RESAMPLES, 97):
        written = np.repeat(values, drawn.weights[row].astype(int)[owner])
        assert totals[row] == pytest.approx(written.sum())
        if len(written):
            np.testing.assert_allclose(found[row], np.quantile(written, [0.0, 0.3, 0.5, 0.99, 1.0]), atol=1e-12)
        else:
            assert np.isnan(found[row]).all()


def test_resamples_are_of_neighbours_round_the_end():
    drawn = resample(12, 4, 5)
    assert (drawn.weights.sum(axis=1) == 12).all()
    patterns = {tuple(row) for row in drawn.weights.astype(int)}
    blocks = [np.isin(np.arange(12), (np.arange(4) + start) % 12).astype(int) for start in range(12)]
    possible = {tuple(blocks[i] + blocks[j] + blocks[k]) for i in range(12) for j in range(12) for k in range(12)}
    assert patterns <= possible
    assert drawn.weights.mean(axis=0) == pytest.approx(np.ones(12), abs=0.1)


def test_many_values_are_binned_closely():
    values = np.random.default_rng(0).lognormal(size=200_000)
    bins = Bins.of(values)
    assert len(bins) <= resampling.BINS
    assert (bins.low[bins.index] <= values).all()
    assert (values <= bins.high[bins.index]).all()
    drawn = resample(len(values), 1)
    found = drawn.percentiles(values, np.arange(len(values)), [0.5, 0.99])
    cells = drawn.weights.shape[1]
    per_cell = values.reshape(cells, -1)
    for row in (0, 500):
        written = np.repeat(per_cell, drawn.weights[row].astype(int), axis=0).ravel()
        np.testing.assert_allclose(found[row], np.quantile(written, [0.5, 0.99]), rtol=2e-3)


@pytest.mark.parametrize(("correlation", "low", "high"), [(0.0, 22, 30), (0.6, 30, 48), (0.9, 85, 130)])
def test_blocks_are_as_long_as_the_dependence_asks(correlation, low, high):
    """For an AR(1) the best length is (6 r^2 / (1 - r^2)^2)^(1/3) n^(1/3): 37 and 111 for 10,000; the least is 22."""
    rng = np.random.default_rng(1)
    found = [block_length(np.exp(autoregressive(rng, 10_000, correlation))) for _ in range(9)]
    assert low <= np.median(found) <= high


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_any_series_has_a_block_length(values):
    assert 1 <= block_length(np.array(values)) <= len(values)


def series(rng, requests, correlation):
    return np.exp(0.7 * autoregressive(rng, requests, correlation))


TRUTH = {"mean": math.exp(0.7**2 / 2)} | {
    name: math.exp(0.7 * NORMAL.inv_cdf(part)) for name, part in statistics.PERCENTILES.items()
}


def coverage(requests, correlation, runs, seed):
    """How often the interval of each figure held the truth, where both ends were given; and how often they were."""
    rng = np.random.default_rng(seed)
    held = {name: [] for name in TRUTH}
    for _ in range(runs):
        found = describe(series(rng, requests, correlation))
        for name, told in {"mean": found.mean, **found.percentiles}.items():
            if told.low is not None and told.high is not None:
                held[name].append(told.low <= TRUTH[name] <= told.high)
    return {name: np.mean(each) for name, each in held.items() if len(each) > runs / 2}


def test_intervals_hold_the_truth_of_independent_latencies():
    found = coverage(700, 0.0, 120, seed=1)
    assert set(found) == set(TRUTH)
    assert all(0.88 <= held <= 0.99 for held in found.values()), found


def test_intervals_hold_the_truth_of_latencies_that_hang_together(monkeypatch):
    found = coverage(1000, 0.6, 80, seed=2)
    assert all(0.88 <= held <= 0.99 for held in found.values()), found
    # Drawing requests one by one, as if they were independent, does not.
    monkeypatch.setattr(statistics, "block_length", lambda series: 1)
    naive = coverage(1000, 0.6, 80, seed=2)
    assert naive["mean"] < 0.78
    assert naive["p50"] < 0.78


def test_intervals_of_strongly_dependent_latencies():
    found = coverage(1000, 0.9, 80, seed=3)
    assert all(0.86 <= found[name] <= 0.99 for name in ("mean", "p50", "p90")), found


def test_gaps_are_drawn_with_their_request(monkeypatch):
    """A request is slow or fast as a whole: 25 gaps of it tell hardly more than one."""

    def held():
        rng = np.random.default_rng(4)
        hits = []
        for _ in range(50):
            gaps = np.exp(0.5 * rng.normal(size=(100, 1)) + 0.2 * rng.normal(size=(100, 25))).ravel()
            found = describe(gaps, np.repeat(np.arange(100), 25))
            hits.append(found.percentiles["p50"].low <= 1 <= found.percentiles["p50"].high)
        return np.mean(hits)

    assert 0.88 <= held() <= 0.99
    alone = describe  # the same gaps, taken for independent
    monkeypatch.setitem(globals(), "describe", lambda gaps, owner: alone(gaps))
    monkeypatch.setattr(statistics, "block_length", lambda series: 1)
    assert held() < 0.6


def test_a_million_gaps_take_a_second_or_two():
    owner = np.repeat(np.arange(24_000), 50)
    gaps = np.random.default_rng(5).lognormal(-4, 0.5, len(owner))
    begin = time.perf_counter()
    found = describe(gaps, owner)
    assert time.perf_counter() - begin < 4  # 0.7 s on one quiet core
    p99 = found.percentiles["p99"]
    assert p99.value == np.percentile(gaps, 99)
    assert p99.low < math.exp(-4 + 0.5 * NORMAL.inv_cdf(0.99)) < p99.high
    assert p99.high / p99.low < 1.02


def test_an_end_is_missing_where_too_few_saw_beyond():
    rng = np.random.default_rng(6)
    few = describe(rng.lognormal(size=100))
    assert few.percentiles["p99"].high is None
    assert few.percentiles["p99"].low is not None
    assert few.percentiles["p50"].high is not None
    enough = describe(rng.lognormal(size=1000))
    assert enough.percentiles["p99"].high > enough.percentiles["p99"].value
    tiny = describe(rng.lognormal(size=4))
    assert (tiny.mean.low, tiny.mean.high) == (None, None)
    single = describe(np.array([0.3]))
    assert single.percentiles["p50"].value == single.mean.value == 0.3
    assert single.percentiles["p50"].low is None


def test_one_stall_is_one_event_however_many_requests_it_hits():
    """30 of 1,000 requests waited, all at once: where the 99th percentile ends cannot be known from that."""
    values = np.random.default_rng(7).lognormal(-2, 0.1, 1000)
    values[500:530] += 2
    found = describe(values)
    assert found.percentiles["p99"].value > 2
    assert found.percentiles["p99"].high is None
    assert found.percentiles["p50"].high is not None


def test_equal_latencies_have_an_interval_of_no_width():
    found = describe(np.full(100, 0.25))
    assert (found.mean.low, found.mean.high) == (0.25, 0.25)
    assert (found.percentiles["p99"].low, found.percentiles["p99"].high) == (0.25, 0.25)


def test_the_same_samples_have_the_same_intervals():
    values = np.random.default_rng(8).lognormal(size=300)
    assert describe(values) == describe(values)


@given(st.floats(-5, 5), st.lists(st.one_of(st.floats(-5, 5), st.just(math.nan)), max_size=30), st.integers(0, 20))
def test_an_interval_holds_its_figure(value, drawn, blocks):
    found = estimate(value, np.array(drawn), blocks)
    if blocks < ENOUGH or all(math.isnan(each) for each in drawn):
        assert (found.low, found.high) == (None, None)
    else:
        assert found.low <= value <= found.high


@pytest.mark.parametrize(("part", "correlation", "runs"), [(0.95, 0.0, 150), (0.99, 0.0, 150), (0.9, 0.6, 150)])
def test_shares_hold_the_truth(part, correlation, runs):
    rng = np.random.default_rng(9)
    bound = NORMAL.inv_cdf(part)
    found = [share(autoregressive(rng, 400, correlation) <= bound) for _ in range(runs)]
    assert 0.88 <= np.mean([each.low <= part <= each.high for each in found]) <= 1


def test_a_share_of_all_or_none_is_not_certain():
    """Wilson's interval of 0 of n reaches up to about t^2 / (n + t^2)."""
    for n in (50, 1000):
        reach = student_t(n // block_length(np.ones(n)) - 1) ** 2
        assert share(np.ones(n, bool)).low == pytest.approx(n / (n + reach))
        assert share(np.zeros(n, bool)).high == pytest.approx(reach / (n + reach))
        assert share(np.ones(n, bool)).high == 1
    assert share(np.array([], bool)).value == 0
    assert share(np.array([True])).low is None


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_a_share_stays_between_0_and_1(hits):
    found = share(np.array(hits))
    assert found.value == pytest.approx(sum(hits) / len(hits))
    if found.low is not None:
        assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize("per_second", [1.0, 20.0])
def test_rates_hold_the_truth(per_second):
    rng = np.random.default_rng(10)
    held = []
    for _ in range(200):
        moments = np.cumsum(rng.exponential(1 / per_second, int(per_second * 100)))
        found = rate(moments, (10.0, 60.0))
        held.append(found.low <= per_second <= found.high)
    assert 0.88 <= np.mean(held) <= 0.99


def test_rates_of_little_or_nothing():
    assert rate(np.array([]), (0.0, 10.0)).value == 0
    assert rate(np.array([1.0]), (1.0, 1.0)).value == 0
    found = rate(np.array([0.0, 5.0, 10.0, 11.0, np.nan]), (0.0, 10.0), np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert (found.value, found.low, found.high) == (0.6, None, None)


def test_quotients_hold_the_truth():
    rng = np.random.default_rng(11)
    held = []
    for _ in range(150):
        prompts = rng.integers(100, 3000, 200).astype(float)
        found = quotient(prompts * rng.uniform(0, 1, 200), prompts)
        held.append(found.low <= 0.5 <= found.high)
    assert 0.88 <= np.mean(held) <= 0.99
    assert quotient(np.zeros(3), np.zeros(3)) is None
