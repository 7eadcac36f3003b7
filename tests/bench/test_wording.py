"""Figures as people read them: right to their last digit, and never past what is true."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.results import wording
from headrace.bench.results.schema import Estimate, Ratio


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (wording.digits(0.0), "0"),
        (wording.digits(3e-9), "3e-09"),
        (wording.digits(0.001_23), "0.00123"),
        (wording.digits(0.9996), "1.00"),
        (wording.digits(9.996), "10.0"),
        (wording.digits(12.345), "12.3"),
        (wording.digits(75.0), "75"),
        (wording.digits(99.96), "100"),
        (wording.digits(1234.4), "1,234"),
        (wording.digits(-1.5), "-1.50"),
        (wording.digits(math.inf), "–"),
        (wording.duration(0.000_312), "0.312 ms"),
        (wording.duration(0.312_4), "312 ms"),
        (wording.duration(0.9996), "1.00 s"),
        (wording.duration(75.0), "75 s"),
        (wording.duration(math.nan), "–"),
        (wording.span([0.301, 0.3224]), "301–322 ms"),
        (wording.span([0.09, 2.79]), "90 ms–2.79 s"),
        (wording.span([0.9, None]), "900–? ms"),
        (wording.percent(0.9912), "99.12 %"),
        (wording.percent(0.9996), "99.960 %"),
        (wording.percent(0.0004), "0.040 %"),
        (wording.percent(0.0), "0 %"),
        (wording.percent(1.0), "100 %"),
        (wording.percent(0.999_999_99), "> 99.9999 %"),
        (wording.percent(1e-9), "< 0.0001 %"),
        (wording.percent(0.0574), "5.7 %"),
        (wording.given_percent(0.9995), "99.95 %"),
        (wording.given(5.477_225), "5.477"),
        (wording.per_second(12.34), "12.3/s"),
        (wording.ratio(0.9981), "0.998"),
        (wording.ratio(0.0123), "0.0123"),
        (wording.interval(Estimate(1.0), "number"), "no interval: too few"),
        (wording.interval(Estimate(0.31, 0.301, 0.3224), "seconds"), "301–322 ms"),
        (wording.interval(Estimate(0.5, 0.25, None), "share"), "25.0 % – ?"),
        (wording.measure_name("ttft.p99"), "TTFT p99"),
        (wording.measure_name("rates.total_tokens"), "All tokens/s"),
        (wording.measure_name("goodput.share"), "Goodput"),
        (wording.measure_name("another"), "another"),
    ],
)
def test_figures_read_well(text, expected):
    assert text == expected


@given(st.floats(1e-4, 1e9))
def test_digits_are_right_to_half_a_per_cent(value):
    assert float(wording.digits(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@given(st.floats(0, 1))
def test_a_share_is_all_or_nothing_only_if_it_is(share):
    text = wording.percent(share)
    assert (text == "100 %") == (share == 1)
    assert (text == "0 %") == (share == 0)
    if text[0] not in "<>":
        assert float(text[:-2]) / 100 == pytest.approx(share, abs=0.000_51)
        assert (float(text[:-2]) < 100) == (share < 1)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_figure_can_be_written(value):
    for write in (wording.digits, wording.duration, wording.percent, wording.given, wording.ratio):
        assert write(value)


@pytest.mark.parametrize(
    ("measure", "low", "high", "verdict", "words"),
    [
        ("ttft.p50", 0.8, 0.9, "a", "A is better"),
        ("ttft.p50", 1.1, 1.2, "b", "B is better"),
        ("ttft.p50", 0.9, None, "none", "no difference shown"),
        ("ttft.p99", None, None, "none", "too few requests to tell"),
        ("max_rate", None, None, "none", "no difference shown"),
    ],
)
def test_verdicts(measure, low, high, verdict, words):
    ratio = Ratio(measure=measure, better="lower", a=1.0, b=1.0, ratio=Estimate(1.0, low, high), verdict=verdict)
    assert wording.verdict(ratio) == words
