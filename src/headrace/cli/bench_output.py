"""What ``bench serve`` and ``bench compare`` found: tables for people, a file for programs, a page to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.bench.results.result_file import encode, save
from headrace.bench.results.schema import Comparison, Result, Round
from headrace.bench.results.table import (
    LATENCIES,
    Row,
    count_rows,
    digits,
    duration,
    ratio_rows,
    search_rows,
)

if TYPE_CHECKING:
    from headrace.bench.results.schema import Distribution, Estimate

STANDARD_OUTPUT = "-"


def write_outputs(found: Result | Comparison, json_target: str | None, html: Path | None) -> bool:
    """Print tables, unless JSON goes to standard output; write the files asked for.

    Returns:
        Whether every round is certified.

    Raises:
        InvalidInput: A file cannot be written.
    """
    if json_target == STANDARD_OUTPUT:
        sys.stdout.write(encode(found).decode())
        sys.stdout.flush()
    else:
        _print(found)
        if json_target is not None:
            save(found, json_target)
    if html is not None:
        from headrace.bench.report import write_report

        write_report(found, html)
    results = [found] if isinstance(found, Result) else [found.a, found.b]
    return all(each.certificate.certified for result in results for each in result.rounds)


def _print(found: Result | Comparison) -> None:
    console = Console(highlight=False)
    if isinstance(found, Comparison):
        _print_comparison(console, found)
        return
    _print_head(console, found)
    if found.search is not None:
        console.print(_rows_table(search_rows(found.search), "the search"))
    for number, each in enumerate(found.rounds):
        if found.search is None:
            title = f"round {number + 1} of {len(found.rounds)}" if len(found.rounds) > 1 else ""
            _print_round(console, each, title, found.plan.devices)
    for each in found.rounds:
        _print_certificate(console, each)


def _print_head(console: Console, result: Result) -> None:
    target, plan = result.target, result.plan
    console.print(Text(f"{target.model} at {target.url} ({target.server or 'unnamed server'}), {target.api}"))
    skipped = "".join(f", {count} left out: {reason}" for reason, count in plan.skipped.items())
    arrivals = ", ".join(f"{name} {value}" for name, value in plan.arrival_parameters.items())
    console.print(
        Text(
            f"{plan.workload}: {plan.requests} requests in {plan.sessions} sessions{skipped}; "
            f"{plan.arrivals} arrivals{f' ({arrivals})' if arrivals else ''}; "
            f"ideal cached share {plan.ideal_cached_share:.1%}"
        )
    )


def _print_round(console: Console, each: Round, title: str, devices: int) -> None:
    console.print()
    console.print(_latency_table(each, title))
    console.print(_rows_table(count_rows(each.summary, devices), None))
    own = each.generator
    console.print(
        Text(
            f"generator: {own.cpu_cores:.2f} cores; sent late by p50 {duration(own.send_lag.p50)}, "
            f"p99 {duration(own.send_lag.p99)}; event loop late by p99 {duration(own.loop_lag.p99)}; "
            f"{own.connections} connections"
        )
    )
    for kind, message in each.messages.items():
        console.print(Text(f"{kind}: {message}"))


def _latency_table(each: Round, title: str) -> Table:
    """Latencies by percentile, each with its interval below."""
    table = Table("", title=title or None, box=None, title_justify="left")
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for key, name in LATENCIES.items():
        found = each.summary.latency.get(key)
        if found is not None:
            table.add_row(name, *_cells(found))
    return table


def _cells(found: Distribution) -> list[Text]:
    estimates = [found.mean, *found.percentiles.values()]
    return [*map(_cell, estimates), Text(duration(found.maximum))]


def _cell(estimate: Estimate) -> Text:
    """A duration, and below it the ends of its interval in the same unit."""
    value, unit = duration(estimate.value).split(" ")
    if estimate.low is None and estimate.high is None:
        return Text(f"{value} {unit}")
    factor = 1.0 if unit == "s" else 1e3
    ends = ("?" if end is None else digits(end * factor) for end in (estimate.low, estimate.high))
    return Text.assemble(f"{value} {unit}", ("\n" + "\N{EN DASH}".join(ends), "dim"))


def _rows_table(rows: list[Row], title: str | None) -> Table:
    table = Table("", "", "", title=title, box=None, show_header=False, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _print_comparison(console: Console, comparison: Comparison) -> None:
    for name, result in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text(f"{name}: "), end="")
        _print_head(console, result)
    table = Table("", "A", "B", "A / B", "95 % interval", "", box=None)
    for row in ratio_rows(comparison):
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(Text(comparison.method))
    for warning in comparison.warnings:
        console.print(Text(f"warning: {warning}"))


def _print_certificate(console: Console, each: Round) -> None:
    for reason in each.certificate.reasons:
        console.print(Text(f"NOT CERTIFIED: {reason}", style="bold"))
