"""Progress on standard error, for people: nothing where it is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PullProgress = Callable[[str, int, int], None]
LoadProgress = Callable[[int, int], None]


@contextmanager
def pull_progress() -> Iterator[PullProgress | None]:
    """A bar for ``models.hub.resolve``: called with what is being done, bytes so far, bytes in all (0: unknown)."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield report


@contextmanager
def load_progress() -> Iterator[LoadProgress | None]:
    """A bar that is gone when the model is loaded: called with weights loaded, weights in all."""
    with _counting("loading", transient=True) as report:
        yield report


@contextmanager
def prompt_progress(enabled: bool) -> Iterator[LoadProgress | None]:
    """A bar over prompts: called with prompts done, prompts in all."""
    if not enabled:
        yield None
        return
    with _counting("prompts", transient=False) as report:
        yield report


@contextmanager
def _counting(what: str, *, transient: bool) -> Iterator[LoadProgress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
