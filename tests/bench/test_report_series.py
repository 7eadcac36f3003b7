import math
from itertools import pairwise

import numpy as np
import pytest
from bench_results import as_result, as_round, search_result, simulate
from bench_samples import Row, answered, gather
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.report import markup, series, timelines
from headrace.bench.report.pooling import pool
from headrace.bench.report.result_page import views_of
from headrace.bench.report.views import compared_rounds, measured, pooled, shown_rounds
from headrace.bench.results.compare import compare
from headrace.bench.results.schema import Estimate

seconds = st.floats(1e-6, 1e3, allow_nan=False)
values = st.lists(seconds, min_size=1, max_size=300).map(np.array)


@given(values, st.integers(4, 400))
def test_a_tail_curve_is_the_share_of_what_is_at_least_as_large(all_of_them, most):
    x, share = series.tail_curve(all_of_them, most)
    assert len(x) <= max(most, 2)
    assert x[-1] == all_of_them.max()
    assert share[-1] == pytest.approx(1 / len(all_of_them))
    for value, found in zip(x, share, strict=True):
        assert np.mean(all_of_them > value) < found + 1e-12
        assert found <= np.mean(all_of_them >= value) + 1e-12


def test_a_thinned_tail_curve_keeps_each_of_the_slowest():
    x, share = series.tail_curve(np.arange(1_000_000.0), 2000)
    assert len(x) <= 2000
    assert x[-20:].tolist() == list(range(999_980, 1_000_000))
    assert np.diff(share).max() < 0


@given(st.floats(1e-6, 1e6), st.integers(1, 500))
def test_bins_have_a_nice_width_and_reach_the_end(extent, bins):
    edges = series.bin_edges(extent, bins)
    width = edges[1]
    assert edges[0] == 0
    assert edges[-1] >= extent * (1 - 1e-6)
    assert len(edges) <= bins + 2
    assert round(width / 10 ** math.floor(math.log10(width) + 1e-9), 6) in {1, 2, 5, 10}


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), max_size=40), st.integers(1, 60))
def test_the_mean_of_open_intervals_is_their_overlap_with_the_bin(intervals, bins):
    begin = np.array([start for start, _ in intervals])
    end = begin + np.array([length for _, length in intervals])
    edges = np.linspace(0, 80, bins + 1)
    overlap = [
        sum(max(0.0, min(b, high) - max(a, low)) for a, b in zip(begin, end, strict=True)) / (high - low)
        for low, high in pairwise(edges)
    ]
    assert series.mean_active(begin, end, edges) == pytest.approx(overlap, abs=1e-5)


def test_activity_and_flow_account_for_every_request_and_token():
    samples = simulate(requests=300, failures=0.05)
    found = series.activity(samples)
    width = np.diff(found.edges)
    over = np.where(np.isnan(samples.end), 0, samples.end)
    assert (found.waiting + found.streaming) @ width == pytest.approx((over - samples.due).sum(), rel=1e-3)
    assert found.queued @ width == pytest.approx(np.nansum(samples.queue), abs=0.1)
    flow = series.flow(samples)
    widths = np.diff(flow.edges)
    widths[-1] = series.extent(samples) - flow.edges[-2]
    assert flow.due @ widths == pytest.approx(300)
    assert flow.completed @ widths == pytest.approx(samples.succeeded.sum())
    assert flow.output_tokens @ widths == pytest.approx(samples.output_tokens[samples.output_tokens >= 0].sum())


def test_tokens_without_an_event_came_at_the_end():
    samples = gather([Row(end=3.5, output_tokens=6), answered(1.0, 0.5, [0.1]), Row(output_tokens=7)])
    flow = series.flow(samples)
    widths = np.diff(flow.edges)
    widths[-1] = series.extent(samples) - flow.edges[-2]
    assert flow.output_tokens @ widths == pytest.approx(6 + 2)
    assert flow.output_tokens[-1] * widths[-1] == pytest.approx(6)


def test_the_end_to_end_of_a_point_is_what_the_curve_shows():
    samples = gather([answered(1.0, 0.5, [0.25], end=9.0), Row(due=2.0, end=3.5)])
    (line,) = timelines.timeline_figures(samples, (0.0, 5.0), {}, 100)["first"]["data"]
    assert [told[-1] for told in line["customdata"]] == [0.75]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=400), st.integers(2, 200))
def test_thinning_keeps_the_largest_and_no_more_than_asked(points, most):
    moments = np.array([moment for moment, _ in points])
    heights = np.array([height for _, height in points])
    kept = series.thinned(moments, heights, most)
    assert len(kept) <= most
    assert sorted(set(kept.tolist())) == kept.tolist()
    if points:
        assert heights[kept].max() == heights.max()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200).map(np.array))
def test_every_length_falls_into_a_bin(lengths):
    edges = series.length_edges(lengths)
    assert len(edges) <= 42
    assert np.histogram(lengths, edges)[0].sum() == len(lengths)
    assert (np.diff(edges) > 0).all()


def test_rounds_of_one_load_are_pooled():
    samples = [simulate(seed=seed, failures=0.1 * seed) for seed in range(3)]
    rounds = [as_round(each, margins=("0", "0")) for each in samples]
    together = pooled(samples, rounds, [0, 1, 2])
    each = [measured(of, found.summary.window)["ttft"] for of, found in zip(samples, rounds, strict=True)]
    assert sorted(together["ttft"]) == sorted(np.concatenate(each))
    found = pool([one.summary for one in rounds], samples, together)
    p99 = [one.summary.latency["ttft"].percentiles["p99"].value for one in rounds]
    assert found.latency["ttft"].percentiles["p99"].value == pytest.approx(np.percentile(together["ttft"], 99))
    assert found.latency["ttft"].percentiles["p99"].low == pytest.approx(min(p99))
    assert found.latency["ttft"].percentiles["p99"].high == pytest.approx(max(p99))
    spans = np.array([one.summary.window[1] - one.summary.window[0] for one in rounds])
    due = sum(one.summary.requests for one in rounds)
    assert found.rates["requests_due"].value == pytest.approx(due / spans.sum())
    assert found.errors.get("http 429", 0) == sum(one.summary.errors.get("http 429", 0) for one in rounds)
    assert found.goodput.met == sum(one.summary.goodput.met for one in rounds)


def test_shares_of_unequal_rounds_are_those_of_all_requests():
    samples = [simulate(requests=400, shared=0.1), simulate(requests=40, rate=0.5, shared=0.9)]
    rounds = [
        as_round(each, slo={"ttft": bound}, margins=("0", "0")) for each, bound in zip(samples, (9, 1e-3), strict=True)
    ]
    summaries = [one.summary for one in rounds]
    found = pool(summaries, samples, pooled(samples, rounds, [0, 1]))
    assert [one.goodput.share.value for one in summaries] == [1, 0]
    assert found.goodput.share == Estimate(400 / 440, 0, 1)
    cached, prompt = (sum(getattr(each, name).sum() for each in samples) for name in ("cached_tokens", "prompt_tokens"))
    assert found.cached_share == pytest.approx(cached / prompt)
    uncounted = simulate(counts=False)
    both = [samples[0], uncounted]
    rounds = [as_round(each, slo=None, margins=("0", "0")) for each in both]
    found = pool([one.summary for one in rounds], both, pooled(both, rounds, [0, 1]))
    assert found.cached_share == rounds[0].summary.cached_share
    assert found.goodput is None


def test_one_round_is_shown_as_it_was_measured():
    result = as_result([as_round(simulate())])
    views = views_of(result, [simulate()])
    assert views.shown is result.rounds[0].summary


def test_a_search_is_shown_by_the_round_that_it_found():
    result = search_result(rates=(4, 16, 6), seconds=20)
    assert [point.met for point in result.search.points] == [True, False, True]
    assert shown_rounds(result) == [2]
    assert compared_rounds(compare(result, result)) == ([2], [2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (markup.moment("2026-11-29T20:55:12+00:00"), "29 November 2026, 20:55 UTC"),
        (markup.moment("2026-11-29T20:55:12+05:30"), "29 November 2026, 20:55 +0530"),
        (markup.moment("yesterday"), "yesterday"),
        (markup.counted(1, "request"), "1 request"),
    ],
)
def test_moments_and_counts_read_well(text, expected):
    assert text == expected
