"""Rows of text: figures as people read them, and nothing that fails on a result of any kind."""

from __future__ import annotations

import numpy as np
from bench_samples import answered, gather, random_samples, result_of, round_of, samples_of_any_kind
from hypothesis import given, settings
from msgspec.structs import replace

from headrace.bench.results.compare import compare
from headrace.bench.results.measure import Window, parse_margin, summarize, window
from headrace.bench.results.schema import Certificate, Point, Search, Sweep, Swept
from headrace.bench.results.sweeps import holds_start
from headrace.bench.results.table import (
    count_rows,
    latency_rows,
    ratio_rows,
    remarks,
    search_outcome,
    sweep_table,
    trial_rows,
)
from headrace.bench.results.wording import duration, percent


def test_a_round():
    samples = random_samples(np.random.default_rng(0), 300, failed=0.1)
    summary = summarize(samples, Window(0, 30), {"ttft": 0.3}, devices=2)
    rows = {row.label: row for row in count_rows(summary, devices=2)}
    assert rows["Requests"].note == f"{summary.succeeded} succeeded"
    assert rows["  disconnected"].value == str(summary.errors["disconnected"])
    assert rows["Met TTFT <= 300 ms"].value == percent(summary.goodput.share.value)
    assert rows["Output tokens"].note.count("–") == 1
    (label, cells), *_ = latency_rows(summary)
    assert (label, len(cells)) == ("TTFT", 6)
    assert cells[1].value == duration(summary.latency["ttft"].percentiles["p50"].value)
    assert "\N{EN DASH}" in cells[1].interval


@settings(max_examples=30)
@given(samples_of_any_kind(), samples_of_any_kind())
def test_rounds_and_comparisons_of_any_kind(a, b):
    for samples in (a, b):
        summary = summarize(samples, Window(0, 2), {"ttft": 1.0})
        assert all(row.value for row in count_rows(summary))
        assert all(cell.value for _, cells in latency_rows(summary) for cell in cells)
    comparison = compare(result_of([round_of(a)]), result_of([round_of(b)]))
    for row, ratio in zip(ratio_rows(comparison), comparison.ratios, strict=True):
        assert len(row) == 6
        assert row[-1].endswith("is better") == (ratio.verdict != "none")


def test_remarks():
    found = round_of(random_samples(np.random.default_rng(0), 50))
    lengths = replace(
        found.summary.lengths, prompt_differs=1, output_differs=2, output_uncounted=3, tokens_per_event=2.5
    )
    told = replace(found, summary=replace(found.summary, lengths=lengths), messages={"http 429": "too much"})
    assert [remark[0] for remark in remarks(told)] == ["1", "2", "3", "T", "h"]
    plain = replace(lengths, prompt_differs=0, output_differs=0, output_uncounted=0, tokens_per_event=1.0)
    assert remarks(replace(found, summary=replace(found.summary, lengths=plain))) == []


def test_searches():
    points = [Point(2.0, 1, False), Point(1.0, 0, True)]
    rounds = [round_of(random_samples(np.random.default_rng(seed), 50)) for seed in range(2)]
    search = Search(target_share=0.99, tolerance=0.05, max_rate=1.0, failed_rate=2.0, points=points)
    rows = trial_rows(replace(result_of(rounds), search=search))
    assert [(row[0], row[-1]) for row in rows] == [("1/s", "met"), ("2/s", "not met")]
    assert "1 requests/s; at least 99 %" in search_outcome(search)
    assert "No rate" in search_outcome(replace(search, max_rate=None))
    assert "may be higher" in search_outcome(replace(search, failed_rate=None))


def test_sweeps_stand_beside_each_other_at_each_load():
    rng = np.random.default_rng(0)
    fast = [round_of(random_samples(rng, 50, gap=0.01)) for _ in range(2)]
    slow = [round_of(random_samples(rng, 50, gap=0.05, failed=0.2), {"ttft": 1.0}) for _ in range(2)]
    slow[1] = replace(slow[1], certificate=Certificate(certified=False, reasons=["It was late."]))
    a = replace(result_of(fast), sweep=Sweep(over="concurrency", loads=[1.0, 8.0]))
    b = replace(result_of(slow), sweep=Sweep(over="concurrency", loads=[1.0, 4.0]))
    head, rows = sweep_table([Swept("", a)])
    assert head == ["concurrency", "output tokens/s", "a user", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", ""]
    assert [row[0] for row in rows] == ["1", "8"]
    assert rows[0][4] == duration(fast[0].summary.latency["ttft"].percentiles["p99"].value)
    head, rows = sweep_table([Swept("a", a), Swept("b", b)])
    assert [row[:2] for row in rows] == [["1", "a"], ["1", "b"], ["4", "b"], ["8", "a"]]
    assert [row[head.index("met SLO")] for row in rows].count("\N{EN DASH}") == 2
    assert (
        rows[2][-1] == f"{slow[1].summary.requests - slow[1].summary.succeeded} of 50 failed, too short, not certified"
    )
    assert all(len(row) == len(head) for row in rows)


def test_a_window_that_holds_the_start_of_a_closed_loop_is_too_short():
    rows = [answered(0.0 if number < 4 else 0.1 * number, 0.1, [0.1]) for number in range(20)]
    samples = gather(rows)
    for cut, short in ((0, True), (3, True), (4, False)):
        summary = summarize(samples, window(samples, parse_margin(f"{5 * cut}%", "warmup")))
        found = replace(round_of(samples), summary=summary)
        assert holds_start("concurrency", 4.0, found) == short, cut
        assert not holds_start("rate", 4.0, found)


@settings(max_examples=30)
@given(samples_of_any_kind())
def test_sweeps_of_any_kind(samples):
    swept = replace(result_of([round_of(samples)]), sweep=Sweep(over="rate", loads=[0.5]))
    head, rows = sweep_table([Swept("", swept)])
    assert head[0] == "requests/s"
    assert all(row[:-1] and all(row[:-1]) for row in rows)
