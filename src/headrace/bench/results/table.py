"""Summaries, comparisons and searches as rows of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.bench.results.schema import Comparison, Estimate, Over, Ratio, Result, Round, Search, Summary, Swept
from headrace.bench.results.sweeps import holds_start, loads_of
from headrace.bench.results.wording import (
    LATENCIES,
    LOADS,
    NOT_KNOWN,
    OPEN_END,
    RATES,
    digits,
    duration,
    given,
    given_percent,
    interval,
    measure_name,
    measure_unit,
    per_second,
    percent,
    quantity,
    ratio,
    verdict,
)

BEHIND = 0.8  # completed by due, below which a queue grows
HELD_START = "too short"
GROUPED = 1.05  # tokens an event from which on gaps are not those of tokens


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
    ends = (OPEN_END if end is None else digits(end * factor) for end in (estimate.low, estimate.high))
    return Cell(value, "\N{EN DASH}".join(ends))


def count_rows(summary: Summary, devices: int = 1) -> list[Row]:
    """Requests, errors, rates (and by device where there are several), cached tokens, goodput."""
    rows = [Row("Requests", f"{summary.requests}", f"{summary.succeeded} succeeded")]
    rows += [Row(f"  {kind}", f"{count}") for kind, count in summary.errors.items()]
    for key, name in RATES.items():
        if key in summary.rates:
            each = summary.rates[key]
            rows.append(Row(name, per_second(each.value), interval(each, "number")))
            if devices > 1:
                rows.append(Row("  by device", per_second(summary.per_device[key])))
    if summary.user_tokens is not None:
        each = summary.user_tokens
        rows.append(Row("Output tokens a user", per_second(each.value), interval(each, "number")))
    if summary.cached_share is not None:
        rows.append(Row("Cached share", percent(summary.cached_share)))
    if summary.goodput is not None:
        good = summary.goodput
        level = ", ".join(f"{LATENCIES.get(key, key)} <= {duration(bound)}" for key, bound in good.slo.items())
        rows.append(Row(f"Met {level}", percent(good.share.value), interval(good.share, "share")))
        rows.append(Row("Goodput", per_second(good.rate.value), interval(good.rate, "number")))
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
    rates = each.summary.rates
    due, done = (rates[name].value for name in ("requests_due", "requests_completed"))
    if each.rate is not None and done < BEHIND * due:
        found.append(
            f"The server fell behind: {per_second(done)} requests were completed of {per_second(due)} due; "
            "latencies grow with the length of such a run."
        )
    return found + [f"{kind}: {message}" for kind, message in each.messages.items()]


def ratio_rows(comparison: Comparison) -> list[tuple[str, str, str, str, str, str]]:
    """Measure, the first, the second, their ratio, its interval, and the verdict."""
    return [_ratio_row(each) for each in comparison.ratios]


def _ratio_row(each: Ratio) -> tuple[str, str, str, str, str, str]:
    a, b = (quantity(value, measure_unit(each.measure)) for value in (each.a, each.b))
    found = each.ratio
    return measure_name(each.measure), a, b, ratio(found.value), interval(found, "ratio"), verdict(each)


def trial_rows(result: Result) -> list[tuple[str, ...]]:
    """The trials of a search by rate: rate, share, TTFT p50 and p99, TPOT p99, output tokens a second, verdict."""
    rows = []
    for point in sorted(result.search.points if result.search else (), key=lambda point: point.rate):
        tried = result.rounds[point.round]
        summary = tried.summary
        share = percent(summary.goodput.share.value) if summary.goodput else NOT_KNOWN
        output = summary.rates.get("output_tokens")
        rows.append(
            (
                per_second(point.rate),
                share,
                *(_percentile(summary, *which) for which in (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p99"))),
                NOT_KNOWN if output is None else per_second(output.value),
                ("met" if point.met else "not met") + ("" if tried.certificate.certified else ", not certified"),
            )
        )
    return rows


def sweep_table(sweeps: Sequence[Swept]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of sweeps of one kind, by load and then in the order given.

    Columns are: load, name (of several), output tokens a second of all and of a user, p50 and p99 of TTFT and ITL, the
    share within the service level (if there is one), and what is wrong with the round.
    """
    points = [(load, each.name, over, found) for each in sweeps for over, load, found in loads_of(each.result)]
    points.sort(key=lambda point: point[0])
    sweep = sweeps[0].result.sweep
    several, bound = len(sweeps) > 1, any(found.summary.goodput is not None for *_, found in points)
    which = [(latency, percentile) for latency in ("ttft", "itl") for percentile in ("p50", "p99")]
    head = ["" if sweep is None else LOADS[sweep.over], *([""] if several else []), "output tokens/s", "a user"]
    head += [f"{LATENCIES[latency]} {percentile}" for latency, percentile in which]
    head += [*(["met SLO"] if bound else []), ""]
    rows = []
    for load, name, over, found in points:
        summary = found.summary
        goodput = summary.goodput
        share = NOT_KNOWN if goodput is None else percent(goodput.share.value)
        row = [given(load), *([name] if several else [])]
        row += [_rate(summary.rates.get("output_tokens")), _rate(summary.user_tokens)]
        row += [_percentile(summary, *each) for each in which]
        rows.append([*row, *([share] if bound else []), _doubts(over, load, found)])
    return head, rows


def _rate(estimate: Estimate | None) -> str:
    return NOT_KNOWN if estimate is None else digits(estimate.value)


def _doubts(over: Over, load: float, found: Round) -> str:
    """Why not to believe a round at first sight."""
    failed = found.summary.requests - found.summary.succeeded
    parts = [f"{failed} of {found.summary.requests} failed"] if failed else []
    parts += [HELD_START] if holds_start(over, load, found) else []
    return ", ".join(parts if found.certificate.certified else [*parts, "not certified"])


def _percentile(summary: Summary, latency: str, which: str) -> str:
    found = summary.latency.get(latency)
    return NOT_KNOWN if found is None else duration(found.percentiles[which].value)


def search_outcome(search: Search) -> str:
    """What a search found, in a sentence."""
    share = f"at least {given_percent(search.target_share)} of the requests meet the service level"
    if search.max_rate is None:
        return f"No rate was found at which {share}."
    found = f"Highest rate: {given(search.max_rate)} requests/s; {share}"
    if search.failed_rate is not None:
        return f"{found}, at {given(search.failed_rate)} they do not."
    return f"{found}; no rate was seen to fail, so the true one may be higher."
