"""Summaries, comparisons and searches as rows of text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from headrace.bench.results.schema import Comparison, Estimate, Ratio, Result, Round, Search, Summary

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
GROUPED = 1.05  # tokens an event from which on gaps are not those of tokens

Formatter = Callable[[float], str]


class Row(NamedTuple):
    """A line of a table: what it is, the figure with its unit, and its 95 % confidence interval or other remark."""

    label: str
    value: str
    note: str = ""


class Cell(NamedTuple):
    """A duration such as ``31.2 ms``, and its interval in the same unit, such as ``30.1–33.0``."""

    value: str
    interval: str = ""


def latency_rows(summary: Summary) -> list[tuple[str, list[Cell]]]:
    """Every latency: its name, then mean, p50, p90, p95, p99 and maximum."""
    rows = []
    for key, name in LATENCIES.items():
        found = summary.latency.get(key)
        if found is not None:
            told = [found.mean, *found.percentiles.values()]
            rows.append((name, [*map(_cell, told), Cell(duration(found.maximum))]))
    return rows


def _cell(estimate: Estimate) -> Cell:
    value = duration(estimate.value)
    if estimate.low is None and estimate.high is None:
        return Cell(value)
    factor = 1e3 if value.endswith(" ms") else 1.0
    ends = (UNKNOWN if end is None else digits(end * factor) for end in (estimate.low, estimate.high))
    return Cell(value, "\N{EN DASH}".join(ends))


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


def remarks(each: Round) -> list[str]:
    """What a reader of a round's figures should know of what was computed, one sentence each."""
    lengths, of = each.summary.lengths, f"of {each.summary.succeeded} requests"
    found = []
    if lengths.prompt_differs:
        found.append(f"{lengths.prompt_differs} {of} had a prompt that the server counted otherwise than it was sent.")
    if lengths.output_differs:
        found.append(f"{lengths.output_differs} {of} had an answer of another length than was asked for.")
    if lengths.output_uncounted:
        found.append(f"{lengths.output_uncounted} {of} had an answer whose tokens the server did not count.")
    if lengths.tokens_per_event is not None and lengths.tokens_per_event > GROUPED:
        found.append(f"The server sends {lengths.tokens_per_event:.3g} tokens at a time: ITL is between these groups.")
    return found + [f"{kind}: {message}" for kind, message in each.messages.items()]


def ratio_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str, str]]:
    """Measure, the first, the second, their ratio, its interval, and the verdict."""
    return [_ratio_row(each) for each in comparison.ratios]


def _ratio_row(each: Ratio) -> tuple[str, str, str, str, str, str]:
    group, _, part = each.measure.partition(".")
    verdict = {"a": "A is better", "b": "B is better", "none": "no difference shown"}[each.verdict]
    if each.ratio.low is None and each.ratio.high is None:
        verdict = "too few requests to tell"
    if group in LATENCIES:
        label, a, b = f"{LATENCIES[group]} {part}", duration(each.a), duration(each.b)
    elif part == "share" or group == "cached_share":
        label, a, b = each.measure, percent(each.a), percent(each.b)
    else:
        label, a, b = RATES.get(part, each.measure), per_second(each.a), per_second(each.b)
    return label, a, b, digits(each.ratio.value), interval(each.ratio, digits), verdict


def trial_rows(result: Result) -> list[tuple[str, ...]]:
    """The trials of a search by rate: rate, share, TTFT p50 and p99, TPOT p99, output tokens a second, verdict."""
    rows = []
    for point in sorted(result.search.points if result.search else (), key=lambda point: point.rate):
        tried = result.rounds[point.round]
        summary = tried.summary
        share = percent(summary.goodput.share.value) if summary.goodput else UNKNOWN
        output = summary.rates.get("output_tokens")
        rows.append(
            (
                per_second(point.rate),
                share,
                *(_percentile(summary, *which) for which in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p99"))),
                UNKNOWN if output is None else per_second(output.value),
                ("met" if point.met else "not met") + ("" if tried.certificate.certified else ", not certified"),
            )
        )
    return rows


def _percentile(summary: Summary, latency: str, which: str) -> str:
    found = summary.latency.get(latency)
    return UNKNOWN if found is None else duration(found.percentiles[which].value)


def search_outcome(search: Search) -> str:
    """What a search found, in a sentence."""
    share = f"at least {percent(search.target_share)} of the requests meet the service level"
    if search.max_rate is None:
        return f"No rate was found at which {share}."
    found = f"Highest rate: {search.max_rate:.4g} requests/s; {share}"
    if search.bounded:
        return f"{found}, at {1 + search.tolerance:.3g} times this rate they do not."
    return f"{found}; no rate was seen to fail, so the true one may be higher."


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
