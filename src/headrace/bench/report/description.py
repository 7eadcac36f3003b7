"""Results in one sentence, and in a few lines that can be pasted elsewhere."""

from __future__ import annotations

from headrace.bench.report.markup import counted, moment
from headrace.bench.report.views import METRICS, load_name, server_name
from headrace.bench.results.schema import Comparison, Result, Summary, Sweeps, Swept
from headrace.bench.results.table import sweep_table
from headrace.bench.results.wording import (
    digits,
    duration,
    given,
    given_percent,
    interval,
    measure_name,
    measure_unit,
    percent,
    quantity,
    ratio,
    verdict,
)


def headline(result: Result) -> str:
    """What was measured on what."""
    return f"{result.target.model} on {server_name(result.target)}: {load_name(result.plan)}"


def comparison_headline(comparison: Comparison) -> str:
    """What was compared."""
    a, b = comparison.a.target, comparison.b.target
    load = load_name(comparison.a.plan)
    if server_name(a) == server_name(b):
        # The same server program: its models or its addresses tell the two apart.
        names = (a.model, b.model) if a.model != b.model else (a.url, b.url)
        if names[0] == names[1]:
            return f"Two runs of {a.model} on {server_name(a)}: {load}"
        return f"{names[0]} against {names[1]} on {server_name(a)}: {load}"
    if a.model == b.model:
        return f"{server_name(a)} against {server_name(b)}, {a.model}: {load}"
    return f"{a.model} on {server_name(a)} against {b.model} on {server_name(b)}: {load}"


def sweeps_headline(sweeps: Sweeps) -> str:
    """Which sweeps stand beside each other."""
    results = [each.result for each in sweeps.sweeps]
    targets = [each.target for each in results]
    served = dict.fromkeys(f"{each.model} on {each.server}" if each.server else each.model for each in targets)
    loads = dict.fromkeys(load_name(each.plan) for each in results)
    return f"{len(results)} sweeps, {' and '.join(served)}: {' and '.join(loads)}"


def when(result: Result) -> str:
    """When the first round began."""
    return moment(result.rounds[0].started) if result.rounds else "at an unknown moment"


def extent(result: Result, summary: Summary, rounds: int) -> str:
    """How much was measured.

    Args:
        result: The whole.
        summary: Of what is shown.
        rounds: How many rounds that pools.
    """
    seconds = summary.window[1] - summary.window[0]
    many = f" in {rounds} rounds" if rounds > 1 else ""
    searched = ""
    if result.search is not None:
        rates = len({point.rate for point in result.search.points})
        searched = f" of the round shown; {rates} rates were tried"
    elif result.sweep is not None:
        searched = f" of the round shown; {counted(len(result.rounds), 'load')} measured"
    return (
        f"{counted(summary.requests, 'request')} due in {digits(round(seconds, 1))} measured seconds{many}{searched}."
    )


def found_rate(result: Result) -> str | None:
    """What the search found; None without a search."""
    search, slo = result.search, None
    if search is None:
        return None
    for each in result.rounds:
        if each.summary.goodput is not None:
            slo = each.summary.goodput.slo
    level = service_level(slo or {})
    share = given_percent(search.target_share)
    if search.max_rate is None:
        lowest = min((point.rate for point in search.points), default=0.0)
        tried = f"At no rate that was tried, the lowest {given(lowest)} requests/s,"
        return f"{tried} did {share} of the requests meet {level}."
    said = f"Up to {given(search.max_rate)} requests/s, at least {share} of the requests meet {level}."
    if search.failed_rate is None:
        return f"{said} No rate above it was seen to fail: the true maximum may be higher."
    return f"{said} At {given(search.failed_rate)} they do not."


def service_level(slo: dict[str, float]) -> str:
    """Such as ``TTFT ≤ 500 ms, TPOT ≤ 50 ms``."""
    parts = [f"{METRICS[key].name if key in METRICS else key} ≤ {duration(bound)}" for key, bound in slo.items()]
    return ", ".join(parts) or "the service level"


def describe_result(result: Result, summary: Summary, rounds: int) -> str:
    """A few lines of text that say what was measured, how, and what came of it."""
    target = result.target
    lines = [
        f"{target.model} on {server_name(target)} ({target.url}, {target.api}), {when(result)}",
        f"load: {load_name(result.plan)}, seed {result.plan.seed}; {extent(result, summary, rounds)}",
    ]
    if result.sweep is not None:
        return "\n".join([*lines, *_described(Swept("", result)), f"{_certified(result)}; headrace {result.version}"])
    for key, metric in METRICS.items():
        if key in summary.latency:
            told = [
                f"{name} {duration(each.value)} ({interval(each, 'seconds')})"
                for name, each in summary.latency[key].percentiles.items()
                if name in {"p50", "p99"}
            ]
            lines.append(f"{metric.name}: {', '.join(told)}")
    rates = {key: digits(each.value) for key, each in summary.rates.items()}
    lines.append(
        f"output tokens/s: {rates.get('output_tokens', '–')}; requests/s: {rates.get('requests_completed', '–')}"
    )
    if summary.goodput is not None:
        share = f"{percent(summary.goodput.share.value)} ({interval(summary.goodput.share, 'share')})"
        lines.append(f"goodput: {share} met {service_level(summary.goodput.slo)}")
    found = found_rate(result)
    if found is not None:
        lines.append(found)
    lines.append(f"errors: {summary.requests - summary.succeeded:,} of {summary.requests:,}")
    return "\n".join([*lines, f"{_certified(result)}; headrace {result.version}"])


def _described(swept: Swept) -> list[str]:
    """A line a load."""
    head, rows = sweep_table([swept])
    return [", ".join(f"{name} {cell}".strip() for name, cell in zip(head, row, strict=True) if cell) for row in rows]


def _certified(result: Result) -> str:
    bad = sum(not each.certificate.certified for each in result.rounds)
    return f"NOT CERTIFIED ({bad} of {len(result.rounds)} rounds)" if bad else "certified"


def describe_comparison(comparison: Comparison) -> str:
    """A few lines of text: both servers, the load, every ratio."""
    lines = [
        f"{name}: {each.target.model} on {server_name(each.target)} ({each.target.url}); {_certified(each)}"
        for name, each in (("A", comparison.a), ("B", comparison.b))
    ]
    lines.append(f"load: {load_name(comparison.a.plan)}, seed {comparison.a.plan.seed}; {when(comparison.a)}")
    for each in comparison.ratios:
        unit = measure_unit(each.measure)
        values = f"{quantity(each.a, unit)} / {quantity(each.b, unit)} = {ratio(each.ratio.value)}"
        lines.append(f"{measure_name(each.measure)}: {values} ({interval(each.ratio, 'ratio')}), {verdict(each)}")
    return "\n".join(
        [*lines, *(f"warning: {each}" for each in comparison.warnings), f"headrace {comparison.a.version}"]
    )


def describe_sweeps(sweeps: Sweeps) -> str:
    """A few lines of text: every load of every sweep."""
    lines = []
    for each in sweeps.sweeps:
        target, plan = each.result.target, each.result.plan
        lines.append(f"{each.name}: {target.model} on {server_name(target)} ({target.url}); {_certified(each.result)}")
        lines += [f"load: {load_name(plan)}, seed {plan.seed}; {when(each.result)}", *_described(each)]
    version = sweeps.sweeps[0].result.version
    return "\n".join([*lines, *(f"warning: {each}" for each in sweeps.warnings), f"headrace {version}"])
