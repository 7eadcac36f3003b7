"""Summaries, comparisons and searches as rows of text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from headrace.bench.results.schema import Comparison, Estimate, Ratio, Search, Summary

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "queue": "Queue"}
RATES = {
    "requests_due": "Requests due",
    "requests_completed": "Requests completed",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "total_tokens": "All tokens",
    "cached_tokens": "Cached tokens",
}
UNKNOWN = "?"

Formatter = Callable[[float], str]


class Row(NamedTuple):
    """A line of a table: what it is, the figure with its unit, and its 95 % confidence interval or other remark."""

    label: str
    value: str
    note: str = ""


def latency_rows(summary: Summary) -> list[Row]:
    """The mean and the percentiles of every latency."""
    rows = []
    for key, name in LATENCIES.items():
        found = summary.latency.get(key)
        if found is not None:
            told = {"mean": found.mean, **found.percentiles}
            rows += [Row(f"{name} {part}", duration(each.value), durations(each)) for part, each in told.items()]
    return rows


def count_rows(summary: Summary, devices: int = 1) -> list[Row]:
    """Requests, errors, rates (and by device where there are several), cached tokens, goodput."""
    rows = [Row("Requests", f"{summary.requests}", f"{summary.succeeded} succeeded")]
    rows += [Row(f"  {kind}", f"{count}") for kind, count in summary.errors.items()]
    for key, name in RATES.items():
        if key in summary.rates:
            each = summary.rates[key]
            rows.append(Row(name, per_second(each.value), interval(each, per_second)))
            if devices > 1:
                rows.append(Row("  by device", per_second(summary.per_device[key])))
    if summary.cached_share is not None:
        rows.append(Row("Cached share", percent(summary.cached_share)))
    if summary.goodput is not None:
        good = summary.goodput
        level = ", ".join(f"{LATENCIES.get(key, key)} <= {duration(bound)}" for key, bound in good.slo.items())
        rows.append(Row(f"Met {level}", percent(good.share.value), interval(good.share, percent)))
        rows.append(Row("Goodput", per_second(good.rate.value), interval(good.rate, per_second)))
    return rows


def ratio_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str, str]]:
    """Measure, the first, the second, their ratio, its interval, and the verdict."""
    return [_ratio_row(each) for each in comparison.ratios]


def _ratio_row(each: Ratio) -> tuple[str, str, str, str, str, str]:
    group, _, part = each.measure.partition(".")
    verdict = {"a": "first is better", "b": "second is better", "none": "no difference shown"}[each.verdict]
    if group in LATENCIES:
        label, a, b = f"{LATENCIES[group]} {part}", duration(each.a), duration(each.b)
    elif part == "share" or group == "cached_share":
        label, a, b = each.measure, percent(each.a), percent(each.b)
    else:
        label, a, b = RATES.get(part, each.measure), per_second(each.a), per_second(each.b)
    return label, a, b, digits(each.ratio.value), interval(each.ratio, digits), verdict


def search_rows(search: Search) -> list[Row]:
    """Every trial in order, and what was found."""
    rows = [Row(per_second(point.rate), "met" if point.met else "not met") for point in search.points]
    share = f"at least {percent(search.target_share)} of the requests meet the service level"
    if search.max_rate is None:
        return [*rows, Row("Highest rate", "none", f"no rate was found at which {share}")]
    if search.bounded:
        note = f"{share}; at {1 + search.tolerance:.3g} times this rate they do not"
    else:
        note = f"{share}; no rate was seen to fail, so the true one may be higher"
    return [*rows, Row("Highest rate", per_second(search.max_rate), note)]


def durations(estimate: Estimate) -> str:
    """The interval of a duration."""
    return interval(estimate, duration)


def interval(estimate: Estimate, write: Formatter) -> str:
    """Such as ``[12.1 ms, 12.9 ms]``; ``?`` for an end that the sample cannot give, nothing if it gives neither."""
    if estimate.low is None and estimate.high is None:
        return ""
    ends = (UNKNOWN if end is None else write(end) for end in (estimate.low, estimate.high))
    return f"[{', '.join(ends)}]"


def duration(seconds: float) -> str:
    """With three digits, in ms below a second, such as ``0.312 ms``, ``31.2 ms``, ``3.12 s``."""
    return f"{digits(seconds * 1e3)} ms" if abs(seconds) < 0.9995 else f"{digits(seconds)} s"


def per_second(value: float) -> str:
    """Such as ``12.3/s``."""
    return f"{digits(value)}/s"


def percent(share: float) -> str:
    """Such as ``99.3 %``."""
    return f"{share * 100:.1f} %"


def digits(value: float) -> str:
    """Three digits, or all those before the point, without an exponent from 0.0001 on."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
