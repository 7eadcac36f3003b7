"""What ``bench serve`` and ``bench compare`` found: tables for people, a file for programs, a page to look at."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.bench.results.result_file import encode, save
from headrace.bench.results.schema import Comparison, Document, Result, Round, Sweeps, Swept, results_of
from headrace.bench.results.sweeps import holds_start, loads_of
from headrace.bench.results.table import (
    Row,
    count_rows,
    latency_rows,
    ratio_rows,
    remarks,
    search_outcome,
    sweep_table,
    trial_rows,
)
from headrace.bench.results.wording import duration, load_size, percent
from headrace.cli.output import plain
from headrace.errors import HeadraceError, InvalidInput

STANDARD_OUTPUT = "-"
TOO_SHORT = (
    "too short: the window holds the start, when all sessions ask at once; give more requests (10 for each session "
    "at a time), or a longer warm-up"
)


def check_targets(json_target: str | None, html: Path | None) -> None:
    """Refuse files that cannot be written, before anything is measured.

    Raises:
        InvalidInput: A folder is missing or not writable.
    """
    targets = {"--json": json_target, "--html": None if html is None else str(html)}
    if html is not None and targets["--html"] == STANDARD_OUTPUT:
        raise InvalidInput("a page goes to a file; name one", field="--html")
    for name, target in targets.items():
        if target is not None and target != STANDARD_OUTPUT:
            path = Path(target).absolute()
            if not target or not os.access(path.parent, os.W_OK) or path.is_dir():
                raise InvalidInput(f"{target!r} cannot be written", field=name)
    if html is not None and json_target is not None and Path(json_target).absolute() == html.absolute():
        raise InvalidInput("is the same file as --json", field="--html")


def write_outputs(found: Document, json_target: str | None, html: Path | None) -> bool:
    """Print tables, unless JSON goes to standard output; write the files asked for.

    Returns:
        Whether every round is certified.

    Raises:
        InvalidInput: A file cannot be written.
    """
    # Files first: whoever reads standard output may stop reading. What fails does not keep the rest from being written.
    failures = [*_write_files(found, json_target, html), *_write_standard_output(found, json_target)]
    if failures:
        raise failures[0]
    return all(each.certificate.certified for result in results_of(found) for each in result.rounds)


def _write_files(found: Document, json_target: str | None, html: Path | None) -> Iterator[HeadraceError]:
    if json_target is not None and json_target != STANDARD_OUTPUT:
        try:
            save(found, json_target)
        except HeadraceError as error:
            yield error
    if html is not None:
        from headrace.bench.report import write_report

        try:
            write_report(found, html)
        except HeadraceError as error:
            yield error


def _write_standard_output(found: Document, json_target: str | None) -> Iterator[HeadraceError]:
    try:
        if json_target == STANDARD_OUTPUT:
            sys.stdout.write(encode(found).decode())
        else:
            _print(found)
        sys.stdout.flush()
    except OSError as error:
        yield HeadraceError(f"standard output cannot be written: {error.strerror or error}")


def _text(said: str, style: str = "") -> Text:
    return Text(plain(said), style)


def _print(found: Document) -> None:
    console = Console(highlight=False)
    if isinstance(found, Comparison):
        _print_comparison(console, found)
        return
    if isinstance(found, Sweeps):
        _print_sweeps(console, found)
        return
    _print_head(console, found)
    if found.sweep is not None:
        _print_curve(console, [Swept("", found)])
    if found.search is not None:
        console.print(_trials_table(found))
        console.print(_text(search_outcome(found.search)))
    for number, each in enumerate(found.rounds):
        if found.search is None and found.sweep is None:
            title = f"round {number + 1} of {len(found.rounds)}" if len(found.rounds) > 1 else ""
            _print_round(console, each, title, found.plan.devices)
    for number, each in enumerate(found.rounds):
        for reason in each.certificate.reasons:
            which = f", round {number + 1}" if len(found.rounds) > 1 else ""
            console.print(_text(f"NOT CERTIFIED{which}: {reason}", style="bold"))


def _print_head(console: Console, result: Result) -> None:
    target, plan = result.target, result.plan
    console.print(_text(f"{target.model} at {target.url} ({target.server or 'unnamed server'}), {target.api}"))
    skipped = "".join(f", {count} left out: {reason}" for reason, count in plan.skipped.items())
    most = "up to " if result.sweep is not None else ""
    arrivals = ", ".join(f"{name} {value}" for name, value in plan.arrival_parameters.items())
    console.print(
        _text(
            f"{plan.workload}: {most}{plan.requests} requests in {plan.sessions} sessions{skipped}; "
            f"{plan.arrivals} arrivals{f' ({arrivals})' if arrivals else ''}; "
            f"ideal cached share {percent(plan.ideal_cached_share)}"
        )
    )
    for note in target.notes:
        console.print(_text(note))


def _print_round(console: Console, each: Round, title: str, devices: int) -> None:
    console.print()
    console.print(_latency_table(each, title))
    console.print(_rows_table(count_rows(each.summary, devices)))
    console.print(_text(_generator([each])))
    total, summary = len(each.requests.due), each.summary
    begin, close = summary.window
    verdict = " Certified." if each.certificate.certified else ""
    console.print(
        _text(
            f"{summary.requests} of {total} requests count, due from {begin:.2f} to {close:.2f} s; below a latency "
            f"is its 95 % interval, ? an end that the sample is too small to give.{verdict}"
        )
    )
    for remark in remarks(each):
        console.print(_text(remark))


def _generator(rounds: Sequence[Round]) -> str:
    """What the generator did, at its worst."""
    own = [each.generator for each in rounds]
    return (
        f"generator: {max(each.cpu_cores for each in own):.2f} cores; "
        f"sent late by p50 {duration(max(each.send_lag.p50 for each in own))}, "
        f"p99 {duration(max(each.send_lag.p99 for each in own))}; "
        f"event loop late by p99 {duration(max(each.loop_lag.p99 for each in own))}; "
        f"{sum(each.connections for each in own)} connections"
    )


def _latency_table(each: Round, title: str) -> Table:
    """Latencies by percentile, each with its interval below."""
    table = Table("", title=title or None, box=None, title_justify="left")
    for name in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for name, cells in latency_rows(each.summary):
        table.add_row(name, *(Text.assemble(cell.value, ("\n" + cell.interval, "dim")) for cell in cells))
    return table


def _trials_table(result: Result) -> Table:
    table = Table(box=None)
    for name in ("rate", "met it", "TTFT p50", "TTFT p99", "TPOT p99", "output tokens"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in trial_rows(result):
        table.add_row(*map(_text, row))
    return table


def _print_curve(console: Console, sweeps: Sequence[Swept]) -> None:
    head, rows = sweep_table(sweeps)
    table = Table(box=None)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if name == "" or number == len(head) - 1 else "right")
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)
    if any(holds_start(*point) for each in sweeps for point in loads_of(each.result)):
        console.print(_text(TOO_SHORT))
    for each in sweeps:
        named = f"{each.name}: " if each.name else ""
        console.print(_text(f"{named}{_generator(each.result.rounds)}"))
        for over, load, found in loads_of(each.result):
            for remark in remarks(found):
                console.print(_text(f"{named}{load_size(over, load)}: {remark}"))


def _rows_table(rows: list[Row]) -> Table:
    table = Table("", "", "", box=None, show_header=False)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _print_sweeps(console: Console, found: Sweeps) -> None:
    for each in found.sweeps:
        console.print(_text(f"{each.name}: "), end="")
        _print_head(console, each.result)
    _print_curve(console, found.sweeps)
    for warning in found.warnings:
        console.print(_text(f"warning: {warning}"))


def _print_comparison(console: Console, comparison: Comparison) -> None:
    for name, result in (("A", comparison.a), ("B", comparison.b)):
        console.print(_text(f"{name}: "), end="")
        _print_head(console, result)
    table = Table("", "A", "B", "A / B", "95 % interval", "", box=None)
    for row in ratio_rows(comparison):
        table.add_row(*map(_text, row))
    console.print(table)
    console.print(_text(comparison.method))
    for name, result in (("A", comparison.a), ("B", comparison.b)):
        console.print(_text(f"{name}: {_generator(result.rounds)}"))
        for remark in dict.fromkeys(remark for each in result.rounds for remark in remarks(each)):
            console.print(_text(f"{name}: {remark}"))
    for warning in comparison.warnings:
        console.print(_text(f"warning: {warning}"))
