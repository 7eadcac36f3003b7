"""Rows of text: figures as people read them, and nothing that fails on a result of any kind."""

from __future__ import annotations

import numpy as np
import pytest
from bench_samples import random_samples, result_of, round_of, samples_of_any_kind
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.results.compare import compare
from headrace.bench.results.measure import Window, summarize
from headrace.bench.results.schema import Estimate, Point, Search
from headrace.bench.results.table import (
    count_rows,
    digits,
    duration,
    interval,
    latency_rows,
    percent,
    ratio_rows,
    search_rows,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.000001, "1.00e-06"),
        (0.00123, "0.00123"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (12.345, "12.3"),
        (999.6, "1000"),
        (12345.6, "12346"),
        (-1.5, "-1.50"),
    ],
)
def test_digits(value, text):
    assert digits(value) == text


@given(st.floats(1e-4, 1e9))
def test_digits_are_right_to_half_a_per_cent(value):
    assert float(digits(value)) == pytest.approx(value, rel=0.0051)


def test_durations_and_shares():
    assert duration(0.000312) == "0.312 ms"
    assert duration(0.0312) == "31.2 ms"
    assert duration(0.9999) == "1.00 s"
    assert duration(31.2) == "31.2 s"
    assert percent(0.9931) == "99.3 %"


def test_intervals():
    assert interval(Estimate(1.0, 0.9, 1.1), duration) == "[900 ms, 1.10 s]"
    assert interval(Estimate(1.0, 0.9, None), duration) == "[900 ms, ?]"
    assert interval(Estimate(1.0), duration) == ""


def test_a_round():
    samples = random_samples(np.random.default_rng(0), 300, failed=0.1)
    summary = summarize(samples, Window(0, 30), {"ttft": 0.3}, devices=2)
    rows = {row.label: row for row in count_rows(summary, devices=2)}
    assert rows["Requests"].note == f"{summary.succeeded} succeeded"
    assert rows["  disconnected"].value == str(summary.errors["disconnected"])
    assert rows["Met TTFT <= 300 ms"].value == percent(summary.goodput.share.value)
    assert rows["Output tokens"].note.startswith("[")
    assert "TTFT p99" in {row.label for row in latency_rows(summary)}


@settings(max_examples=30)
@given(samples_of_any_kind(), samples_of_any_kind())
def test_rounds_and_comparisons_of_any_kind(a, b):
    for samples in (a, b):
        summary = summarize(samples, Window(0, 2), {"ttft": 1.0})
        assert all(row.value for row in (*count_rows(summary), *latency_rows(summary)))
    comparison = compare(result_of([round_of(a)]), result_of([round_of(b)]))
    for row, ratio in zip(ratio_rows(comparison), comparison.ratios, strict=True):
        assert len(row) == 6
        assert (row[-1] == "no difference shown") == (ratio.verdict == "none")


def test_searches():
    points = [Point(1.0, 0, True), Point(2.0, 1, False)]
    found = search_rows(Search(target_share=0.99, tolerance=0.05, max_rate=1.0, bounded=True, points=points))
    assert [row.value for row in found] == ["met", "not met", "1.00/s"]
    assert "at least 99.0 %" in found[-1].note
    none = search_rows(Search(target_share=0.99, tolerance=0.05, max_rate=None, bounded=True, points=points[1:]))
    assert none[-1].value == "none"
    open_ended = search_rows(Search(target_share=0.99, tolerance=0.05, max_rate=1.0, bounded=False, points=points[:1]))
    assert "may be higher" in open_ended[-1].note
