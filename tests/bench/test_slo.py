"""Service levels: what can be written, and who meets them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bench_samples import Row, answered, gather, samples_of_any_kind
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.results.slo import MEASURES, UNITS, meets, parse_duration, parse_slo
from headrace.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("ttft=500ms,tpot=50ms", {"ttft": 0.5, "tpot": 0.05}),
        ("e2e=2s", {"e2e": 2.0}),
        (" itl = 1.5 s , ttft=20us ", {"itl": 1.5, "ttft": 2e-5}),
        ("ttft=.5s", {"ttft": 0.5}),
        ("ttft=5.s", {"ttft": 5.0}),
        ("ttft=7µs", {"ttft": 7e-6}),
    ],
)
def test_parses(text, bounds):
    assert parse_slo(text) == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a bound"),
        ("ttft", "not a bound"),
        ("ttft=500ms,", "not a bound"),
        ("ttft=500", "has no unit; write 500ms or 500s"),
        ("ttft=500min", "'min' is not a unit"),
        ("ttft=5d", "'d' is not a unit"),
        ("TTFT=5s", "not a measure"),
        ("p99=5s", "not a measure"),
        ("ttft=5s,ttft=6s", "given twice"),
        ("ttft=0s", "above 0"),
        ("ttft=-1s", "not a duration"),
        ("ttft=1e3ms", "not a duration"),
        ("ttft=nans", "not a duration"),
        ("ttft=", "not a duration"),
        ("ttft=1 2s", "not a duration"),
        ("ttft=٣s", "not a duration"),
        ("ttft=" + "9" * 400 + "s", "too long"),
        ("ttft=0." + "0" * 400 + "1s", "above 0"),
    ],
)
def test_refuses_with_a_reason(text, says):
    with pytest.raises(InvalidInput, match=says) as caught:
        parse_slo(text)
    assert caught.value.field == "slo"
    assert len(str(caught.value)) < 200


@given(st.one_of(st.text(max_size=30), st.text("ttfpoie2l=,.0123456789 smuµ", max_size=30)))
def test_any_text_is_parsed_or_refused(text):
    try:
        bounds = parse_slo(text)
    except InvalidInput:
        return
    assert bounds
    assert all(name in MEASURES and 0 < bound < math.inf for name, bound in bounds.items())


@given(
    st.dictionaries(
        st.sampled_from(MEASURES), st.tuples(st.integers(1, 10**6), st.sampled_from(sorted(UNITS))), min_size=1
    )
)
def test_what_was_written_is_what_is_read(bounds):
    text = ",".join(f"{name}={number}{unit}" for name, (number, unit) in bounds.items())
    assert parse_slo(text) == {name: number * UNITS[unit] for name, (number, unit) in bounds.items()}


def test_a_duration_names_the_field():
    with pytest.raises(InvalidInput) as caught:
        parse_duration("5", "warmup")
    assert caught.value.field == "warmup"


def test_each_bound_by_itself():
    samples = gather([answered(1.0, 0.5, [0.25, 0.75])])  # tpot 0.5, e2e 1.5
    for name, value in {"ttft": 0.5, "tpot": 0.5, "itl": 0.75, "e2e": 1.5}.items():
        assert meets(samples, {name: value}).tolist() == [True], name
        assert meets(samples, {name: value - 1e-9}).tolist() == [False], name


def test_what_there_is_not_to_bound():
    unknown = Row(0.0, 0.0, 1.0, [0.5, 0.6])
    silent = Row(0.0, 0.0, 1.0, [], output_tokens=0)
    rows = [
        answered(0.0, 0.1),  # one token: no time per further token, no gap
        unknown,
        silent,
        Row(0.0, 0.0, 1.0, [0.5], output_tokens=5, error="timeout"),
        Row(0.0, 0.0, math.nan, [0.5], output_tokens=1),  # never ended
    ]
    samples = gather(rows)
    assert meets(samples, {"tpot": 9.0}).tolist() == [True, False, True, False, False]
    assert meets(samples, {"itl": 9.0}).tolist() == [True, True, True, False, False]
    assert meets(samples, {"ttft": 9.0}).tolist() == [True, True, False, False, False]
    assert meets(samples, {"e2e": 9.0}).tolist() == [True, True, True, False, False]


@given(samples_of_any_kind(), st.dictionaries(st.sampled_from(MEASURES), st.floats(0.01, 5)))
def test_agrees_with_the_definition_row_by_row(samples, slo):
    expected = []
    for row in range(len(samples)):
        begin, end = samples.event_offsets[row : row + 2]
        events, due = samples.event_times[begin:end].tolist(), samples.due[row]
        tokens = samples.output_tokens[row]
        ok = samples.error[row] == "" and not math.isnan(samples.end[row])
        if "ttft" in slo:
            ok = ok and bool(events) and events[0] - due <= slo["ttft"]
        if "e2e" in slo:
            ok = ok and (events[-1] if events else samples.end[row]) - due <= slo["e2e"]
        if "itl" in slo:
            ok = ok and all(events[i + 1] - events[i] <= slo["itl"] for i in range(len(events) - 1))
        if "tpot" in slo and tokens not in (0, 1):
            ok = ok and tokens > 1 and bool(events) and (events[-1] - events[0]) / (tokens - 1) <= slo["tpot"]
        expected.append(ok)
    np.testing.assert_array_equal(meets(samples, slo), np.array(expected, bool))
