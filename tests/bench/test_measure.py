"""Summaries against a slow computation in plain Python, and by hand where it matters most."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from bench_samples import Row, answered, gather, random_samples, samples_of_any_kind
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.results.latency import check_samples, latencies
from headrace.bench.results.measure import Margin, Window, parse_margin, summarize, user_tokens, window
from headrace.bench.results.samples import UNKNOWN
from headrace.bench.results.schema import Distribution, Estimate
from headrace.bench.results.slo import meets
from headrace.errors import InvalidInput

moments = st.integers(0, 3000).map(lambda thousandths: thousandths / 1000)
windows = st.tuples(moments, moments).map(lambda ends: Window(min(ends), max(ends)))


@pytest.mark.parametrize(
    ("text", "margin"),
    [
        ("0", Margin()),
        ("0.0", Margin()),
        ("0s", Margin()),
        ("10%", Margin(share=0.1)),
        (" 2.5 % ", Margin(share=0.025)),
        ("5s", Margin(seconds=5)),
        ("500ms", Margin(seconds=0.5)),
    ],
)
def test_margins(text, margin):
    assert parse_margin(text, "warmup") == margin


@pytest.mark.parametrize("text", ["", "5", "100%", "-1%", "1e400%", "9" * 400 + "%", "ten", "%", "5 d", "1s2s", "nan%"])
def test_what_is_no_margin(text):
    with pytest.raises(InvalidInput) as caught:
        parse_margin(text, "cooldown")
    assert caught.value.field == "cooldown"


@pytest.mark.parametrize(
    ("gap", "rate"),
    [
        (Estimate(0.02, 0.01, 0.04), Estimate(50.0, 25.0, 100.0)),
        (Estimate(0.02, 0.0, None), Estimate(50.0, None, None)),
        (Estimate(0.0, 0.0, 0.1), None),
    ],
)
def test_what_a_user_gets_is_the_inverse_of_the_gap(gap, rate):
    tpot = Distribution(count=9, mean=gap, minimum=0.0, maximum=1.0, percentiles={"p50": gap})
    assert user_tokens({"tpot": tpot}) == rate
    assert user_tokens({}) is None


@given(st.text("0123456789.%sm une", max_size=12))
def test_any_margin_is_parsed_or_refused(text):
    try:
        margin = parse_margin(text, "warmup")
    except InvalidInput:
        return
    assert math.isfinite(margin.seconds)
    assert 0 <= margin.share < 1
    again = parse_margin(str(margin), "warmup")
    assert (again.seconds, again.share) == pytest.approx((margin.seconds, margin.share), rel=1e-4)


def test_window_is_the_span_less_the_margins():
    samples = gather([answered(float(due), 0.1) for due in range(11)])
    assert window(samples) == Window(0, 10)
    assert window(samples, Margin(share=0.1), Margin(seconds=3)) == Window(1, 7)
    assert window(samples, Margin(seconds=10), Margin()) == Window(10, 10)
    assert window(samples, Margin(share=0.5), Margin(share=0.4)) == Window(5, 6)


def test_shares_are_of_the_requests():
    """Two waves of a closed loop: of their time, a tenth less at both ends would leave no request."""
    rows = [answered(wave + place / 1000, 0.5, [0.4]) for wave in (0, 1) for place in range(8)]
    within = window(gather(rows), Margin(share=0.1), Margin(share=0.1))
    assert within == Window(0.001, 1.006)
    assert summarize(gather(rows), within).requests == 14


@pytest.mark.parametrize("apart", [0.0, 0.001])
def test_window_where_all_was_due_at_once_ends_with_the_last_stream(apart):
    samples = gather([answered(0.0, 1.0, [3.0]), answered(apart, 1.0 - apart, [1.0])])
    assert window(samples) == Window(0, 4)
    assert window(samples, Margin(share=0.2), Margin(share=0.2)) == Window(0, 4)
    assert summarize(samples, window(samples)).rates["requests_completed"].value == 0.5


def test_a_window_without_requests_is_refused():
    samples = gather([answered(0.0, 0.1), answered(10.0, 0.1)])
    for warmup, cooldown, field in [
        (Margin(seconds=11), Margin(), "warmup"),
        (Margin(), Margin(seconds=11), "cooldown"),
        (Margin(share=0.6), Margin(share=0.5), "warmup"),
        (Margin(seconds=1), Margin(seconds=1), "warmup"),
    ]:
        with pytest.raises(InvalidInput, match="no request is due") as caught:
            window(samples, warmup, cooldown)
        assert caught.value.field == field
    assert window(gather([])) == Window(0, 0)


margins = st.one_of(st.builds(Margin, seconds=moments), st.builds(Margin, share=st.floats(0, 0.99)))


@given(samples_of_any_kind(), margins, margins)
def test_a_window_holds_what_the_margins_leave(samples, warmup, cooldown):
    left = len(samples) - int(warmup.share * len(samples)) - int(cooldown.share * len(samples))
    try:
        within = window(samples, warmup, cooldown)
    except InvalidInput:
        assert left <= 0 or warmup.seconds or cooldown.seconds
        return
    assert within.begin <= within.close
    if warmup.seconds == cooldown.seconds == 0:
        assert within.holds(samples.due).sum() >= left


def test_a_stall_counts_from_when_requests_were_due():
    """One stall of 2 s at 100 requests a second: whoever was due meanwhile waited, though each was served at once."""
    due = np.arange(0, 10, 0.01)
    served = np.where((due >= 4) & (due < 6), 6.0, due) + 0.01
    found = latencies(gather([Row(d, d, s, [s], output_tokens=1) for d, s in zip(due, served, strict=True)]))
    assert found.ttft.max() == pytest.approx(2.01)
    assert np.quantile(found.ttft, 0.99) == pytest.approx(1.91, abs=0.011)
    assert (found.ttft > 0.011).mean() == pytest.approx(0.2, abs=0.002)


def brute(samples, within, slo):
    """Everything again, request by request."""
    found = {"latency": {name: [] for name in ("ttft", "tpot", "itl", "e2e", "queue")}, "errors": Counter()}
    happened = {name: [] for name in ("due", "completed", "input", "output", "cached")}
    met, succeeded, due_inside = 0, 0, 0
    cached = [0, 0]
    good = meets(samples, slo)
    for row in range(len(samples)):
        begin, end = samples.event_offsets[row : row + 2]
        events, due = [float(moment) for moment in samples.event_times[begin:end]], float(samples.due[row])
        tokens, prompt = int(samples.output_tokens[row]), int(samples.prompt_tokens[row])
        ok = samples.error[row] == "" and not math.isnan(samples.end[row])
        happened["due"].append((due, 1))
        if ok:
            happened["completed"].append((float(samples.end[row]), 1))
        if tokens >= 0:
            happened["output"] += [(moment, tokens / len(events)) for moment in events]
            if not events:
                happened["output"].append((float(samples.end[row]), tokens))
        if prompt >= 0 or samples.planned_prompt[row] >= 0:
            asked = prompt if prompt >= 0 else int(samples.planned_prompt[row])
            happened["input"].append((events[0] if events else math.nan, asked))
        if samples.cached_tokens[row] >= 0:
            happened["cached"].append((events[0] if events else math.nan, int(samples.cached_tokens[row])))
        if not within.begin <= due <= within.close:
            continue
        due_inside += 1
        met += bool(good[row])
        if not ok:
            found["errors"][samples.error[row] or "unfinished"] += 1
            continue
        succeeded += 1
        latency = found["latency"]
        latency["e2e"].append((events[-1] if events else float(samples.end[row])) - due)
        if events:
            latency["ttft"].append(events[0] - due)
            latency["itl"] += [later - earlier for earlier, later in pairwise(events)]
            if tokens >= 2:
                latency["tpot"].append((events[-1] - events[0]) / (tokens - 1))
        if not math.isnan(samples.queue[row]):
            latency["queue"].append(float(samples.queue[row]))
        if samples.cached_tokens[row] >= 0 and prompt > 0:
            cached[0] += int(samples.cached_tokens[row])
            cached[1] += prompt
    seconds = within.close - within.begin
    found["rates"] = {
        name: sum(weight for moment, weight in each if within.begin <= moment <= within.close) / seconds
        if seconds
        else 0
        for name, each in happened.items()
        if each or name in {"due", "completed"}
    }
    found |= {"requests": due_inside, "succeeded": succeeded, "met": met}
    found["cached_share"] = cached[0] / cached[1] if cached[1] else None
    return found


@given(samples_of_any_kind(), windows, st.dictionaries(st.sampled_from(["ttft", "itl", "e2e"]), st.floats(0.1, 4)))
def test_summary_is_what_a_slow_computation_gives(samples, within, slo):
    check_samples(samples)
    summary, expected = summarize(samples, within, slo, devices=2), brute(samples, within, slo)
    assert (summary.requests, summary.succeeded) == (expected["requests"], expected["succeeded"])
    assert summary.errors == dict(expected["errors"])
    assert summary.requests == summary.succeeded + sum(summary.errors.values())
    assert summary.cached_share == (
        None if expected["cached_share"] is None else pytest.approx(expected["cached_share"])
    )
    assert summary.goodput.met == expected["met"]
    for name, values in expected["latency"].items():
        assert (name in summary.latency) == bool(values), name
        if values:
            told = summary.latency[name]
            assert told.count == len(values)
            assert told.mean.value == pytest.approx(sum(values) / len(values))
            assert (told.minimum, told.maximum) == pytest.approx((min(values), max(values)))
            for part, estimate in told.percentiles.items():
                assert estimate.value == pytest.approx(np.percentile(values, float(part[1:]))), (name, part)
    middle = np.percentile(expected["latency"]["tpot"], 50) if expected["latency"]["tpot"] else 0
    assert summary.user_tokens is None if middle < 1e-9 else summary.user_tokens.value == pytest.approx(1 / middle)
    names = {
        "due": "requests_due",
        "completed": "requests_completed",
        "input": "input_tokens",
        "output": "output_tokens",
        "cached": "cached_tokens",
    }
    for name, key in names.items():
        assert (key in summary.rates) == (name in expected["rates"]), key
        if key in summary.rates:
            assert summary.rates[key].value == pytest.approx(expected["rates"][name]), key
            assert summary.per_device[key] == pytest.approx(expected["rates"][name] / 2), key
    if "total_tokens" in summary.rates:
        total = expected["rates"]["input"] + expected["rates"]["output"]
        assert summary.rates["total_tokens"].value == pytest.approx(total)
    assert_finite(summary)


def assert_finite(value):
    """JSON has no NaN: nothing may hold one."""
    if isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, dict):
        for each in value.values():
            assert_finite(each)
    elif hasattr(value, "__struct_fields__"):
        for name in value.__struct_fields__:
            assert_finite(getattr(value, name))


def test_nothing_at_all():
    summary = summarize(gather([]), Window(0, 0), {"ttft": 1.0})
    assert (summary.requests, summary.succeeded, summary.errors, summary.latency) == (0, 0, {}, {})
    assert summary.goodput.share.value == 0
    assert_finite(summary)


def test_nothing_succeeded():
    samples = gather([Row(float(due), float(due), due + 0.5, error="http 429") for due in range(30)])
    summary = summarize(samples, window(samples), {"ttft": 1.0})
    assert summary.errors == {"http 429": 30}
    assert summary.latency == {}
    assert summary.goodput.met == 0
    assert summary.goodput.share.high < 0.2
    assert summary.rates["requests_completed"].value == 0
    assert "output_tokens" not in summary.rates
    assert_finite(summary)


def test_lengths():
    rows = [
        answered(0.0, 0.1, [0.1, 0.1]),
        answered(0.1, 0.1, [0.1], prompt_tokens=12, output_tokens=6),
        answered(0.2, 0.1, [0.1], output_tokens=UNKNOWN, prompt_tokens=UNKNOWN),
        answered(0.3, 0.1, [0.1], planned_prompt=UNKNOWN),
        answered(0.4, 0.1, error="timeout"),
    ]
    found = summarize(gather(rows), Window(0, 1)).lengths
    assert (found.planned_prompt_tokens, found.prompt_tokens, found.prompt_differs) == (30, 32, 1)
    assert (found.output_tokens, found.output_differs, found.output_uncounted) == (11, 1, 1)
    assert found.tokens_per_event == pytest.approx(11 / 7)


def test_tokens_are_never_counted_from_events():
    grouped = gather([Row(0.0, 0.0, 1.0, [0.25, 0.5, 0.75, 1.0], output_tokens=12)])
    assert summarize(grouped, Window(0, 1)).rates["output_tokens"].value == 12
    assert summarize(grouped, Window(0, 0.5)).rates["output_tokens"].value == 12  # six, in half a second
    assert latencies(grouped).tpot[0] == pytest.approx(0.75 / 11)


def test_all_at_full_size_is_quick():
    samples = random_samples(np.random.default_rng(0), 3000, tokens=50)
    summary = summarize(samples, window(samples, Margin(share=0.1), Margin(share=0.1)), {"ttft": 0.5, "tpot": 0.05})
    assert summary.latency["itl"].count == summary.succeeded * 49
    for found in summary.latency.values():
        for estimate in (found.mean, *found.percentiles.values()):
            assert estimate.low <= estimate.value <= estimate.high
    low, high = summary.goodput.share.low, summary.goodput.share.high
    assert low < summary.goodput.share.value < high


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"due": [1.0, 0.0]}, "due"),
        ({"due": [0.0, math.nan]}, "due"),
        ({"due": [0.0]}, "session"),
        ({"sent": [0.0, 0.9]}, "sent"),
        ({"end": [math.inf, 2.0]}, "end"),
        ({"end": [0.05, 2.0]}, "end"),
        ({"error": ("",)}, "error"),
        ({"queue": [-1.0, 0.0]}, "queue"),
        ({"event_times": [0.2, 0.1, 1.1]}, "event_times"),
        ({"event_times": [0.1, 0.2, 0.5]}, "event_times"),
        ({"event_times": [0.1, 0.2, math.nan]}, "event_times"),
        ({"sent": [math.nan, 1.0]}, "event_times"),
        ({"event_offsets": [0, 2]}, "event_offsets"),
        ({"event_offsets": [0, 3, 2]}, "event_offsets"),
        ({"event_offsets": [0, 2, 4]}, "event_offsets"),
        ({"output_tokens": [-2, 1]}, "output_tokens"),
        ({"planned_output": [-1, 1]}, "planned_output"),
    ],
)
def test_broken_samples_are_named(change, field):
    samples = gather([answered(0.0, 0.1, [0.1]), answered(1.0, 0.1)])
    check_samples(samples)
    arrays = {name: value if name == "error" else np.array(value) for name, value in change.items()}
    with pytest.raises(InvalidInput) as caught:
        check_samples(replace(samples, **arrays))
    assert caught.value.field == field
