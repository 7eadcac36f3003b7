"""Progress on standard error, for people: nothing where it is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with what is being done, how much of it is done, and how much there is (0: nobody knows).
StageProgress = Callable[[str, int, int], None]
Count = Callable[[int, int], None]


@contextmanager
def pull_progress() -> Iterator[StageProgress | None]:
    """A bar for ``models.hub.resolve``, in bytes."""
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
def load_progress() -> Iterator[StageProgress | None]:
    """A bar for whatever loads a model; it is gone when that is done."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total or None)


@contextmanager
def prompt_progress(enabled: bool) -> Iterator[Count | None]:
    """A bar over prompts: called with prompts done, prompts in all."""
    if not (enabled and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task("prompts", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
