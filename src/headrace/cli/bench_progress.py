"""How a run of ``bench serve`` goes, on standard error: one line that changes, or a line now and then in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from headrace.bench.results.wording import percent
from headrace.cli.output import plain

if TYPE_CHECKING:
    from rich.live import Live

    from headrace.bench.load.watch import Snapshot
    from headrace.bench.results.schema import Round
    from headrace.bench.serve import Show

QUIET_SECONDS = 10.0  # between lines where standard error is no terminal


@contextmanager
def progress() -> Iterator[Show]:
    """Shows rounds to whoever sits before a terminal, and notes them for whoever reads a log."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield OneLine(live)


class OneLine:
    """One line of a terminal that changes twice a second."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._title = ""

    def begin(self, title: str) -> None:
        """A round begins, as soon as its requests are written."""
        self._title = title
        self._write("writing the requests")

    def snapshot(self, snapshot: Snapshot) -> None:
        """How it goes."""
        self._write(line_of(snapshot))

    def _write(self, what: str) -> None:
        from rich.text import Text

        line = f"{self._title}  {what}" if self._title else what
        with suppress(OSError, ValueError):  # progress never ends a measurement
            self._live.update(Text(plain(line), overflow="ellipsis", no_wrap=True), refresh=True)

    def end(self, found: Round) -> None:
        """What it brought."""
        with suppress(OSError, ValueError):
            self._live.console.print(plain(summary_line(self._title, found)), highlight=False, markup=False)


class Lines:
    """Lines of a log."""

    def __init__(self) -> None:
        self._title = ""
        self._next = 0.0

    def begin(self, title: str) -> None:
        """A round begins."""
        self._title = title
        self._next = time.monotonic() + QUIET_SECONDS

    def snapshot(self, snapshot: Snapshot) -> None:
        """How it goes, not too often."""
        if time.monotonic() >= self._next:
            self._next += QUIET_SECONDS
            _note(line_of(snapshot))

    def end(self, found: Round) -> None:
        """What it brought."""
        _note(summary_line(self._title, found))


def _note(line: str) -> None:
    with suppress(OSError, ValueError):  # progress never ends a measurement
        sys.stderr.write(plain(line) + "\n")


def line_of(snapshot: Snapshot) -> str:
    """Time, requests, rate, latency to first output, errors."""
    parts = [
        f"{snapshot.seconds:5.0f} s",
        f"{snapshot.begun} of {snapshot.planned} sent",
        f"{snapshot.begun - snapshot.ended} open",
        f"{snapshot.rate:.3g}/s done",
    ]
    if snapshot.ttft:
        middle, tail = np.percentile(snapshot.ttft, (50, 99)) * 1e3
        parts.append(f"TTFT p50 {middle:,.0f} p99 {tail:,.0f} ms")
    parts.append(_errors(snapshot.errors))
    return ", ".join(parts)


def summary_line(title: str, found: Round) -> str:
    """A round in a line."""
    summary = found.summary
    parts = [f"{summary.succeeded} of {summary.requests} requests in the window"]
    if (ttft := summary.latency.get("ttft")) is not None:
        percentiles = ttft.percentiles
        parts.append(f"TTFT p50 {percentiles['p50'].value * 1e3:,.0f} p99 {percentiles['p99'].value * 1e3:,.0f} ms")
    if (output := summary.rates.get("output_tokens")) is not None:
        parts.append(f"{output.value:,.1f} output tokens/s")
    if summary.goodput is not None:
        parts.append(f"{percent(summary.goodput.share.value)} within the service level")
    parts.append(_errors(summary.errors))
    if not found.certificate.certified:
        parts.append("NOT CERTIFIED")
    line = ", ".join(parts)
    return f"{title}: {line}" if title else line


def _errors(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(errors.items())) or "no errors"
