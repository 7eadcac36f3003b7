"""``headrace tune``: search for the schedule that runs a model fastest on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_RECIPE,
    MODEL_HELP,
    JsonOption,
    Numerics,
    NumericsOption,
    RecipeOption,
    ThreadsOption,
)

if TYPE_CHECKING:
    from headrace.compiler.search.bound import Rates
    from headrace.compiler.search.trials import Progress
    from headrace.runtime.tuning.report import TuneReport
    from headrace.runtime.tuning.tune import Report


class Purpose(StrEnum):
    """What a model is tuned for."""

    balanced = "balanced"
    decode = "decode"
    prefill = "prefill"


def tune(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    seconds: Annotated[float, typer.Option(min=1, help="What all of it may take.")] = 240.0,
    purpose: Annotated[Purpose, typer.Option("--for", help="What counts: decode and prefill, or one of them.")] = (
        Purpose.balanced
    ),
    recipe: RecipeOption = DEFAULT_RECIPE,
    numerics: NumericsOption = Numerics.invariant,
    threads: ThreadsOption = None,
    seed: Annotated[int, typer.Option(help="Of all chance in the search.")] = 0,
    record: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the search here; by default into the cache.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Repeat the decisions of this record; measure nothing.")
    ] = None,
    json_target: JsonOption = None,
) -> None:
    """Search for the fastest way to run a model on this machine.

    What is found is kept, and the next start uses it. Candidates are compiled, run in a process of their own, and timed
    in the whole step on the model's own weights. What is computed stays the same, bit by bit. Ctrl-C ends the search
    with the best so far.
    """
    from headrace.cli.output import write_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve
    from headrace.models.opening import open_checkpoint
    from headrace.models.registry import load_spec
    from headrace.quant.recipes import recipe_named
    from headrace.runtime.tuning.tune import TuneOptions, replay_search
    from headrace.runtime.tuning.tune import tune as search

    numbers = recipe_named(recipe, numerics.value)
    options = TuneOptions(seconds=seconds, purpose=purpose.value, threads=threads, seed=seed, record=record)
    with pull_progress() as progress:
        checkpoint = open_checkpoint(resolve(model, progress))
    spec = load_spec(checkpoint, model)
    if replay is not None:
        found = replay_search(checkpoint, spec, numbers, replay)
    else:
        with _reporting(seconds) as report:
            report("measuring the limits of this machine", None)
            found = search(checkpoint, spec, numbers, options, _rates, report)
    if json_target != "-":
        _print(model, found)
    if json_target is not None:
        write_json(as_object(model, numbers.name, found), json_target)


def _rates() -> Rates:
    from headrace.bench.limits import measure_limits
    from headrace.compiler.search.bound import rates_of

    limits = measure_limits()
    return rates_of(
        {
            "memory": limits.memory_read_gb_s,
            "int8": limits.int8_gop_s,
            "bf16": limits.bf16_gflop_s,
            "float32": limits.float32_gflop_s,
        }
    )


@contextmanager
def _reporting(seconds: float) -> Iterator[Report]:
    """A bar for whoever sits before a terminal; lines for whoever reads a log."""
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds)

        def report(what: str, progress: Progress | None) -> None:
            bar.update(task, description=_words(what, progress), completed=progress.seconds if progress else None)

        yield report


def _line(what: str, progress: Progress | None) -> None:
    sys.stderr.write(f"{_words(what, progress)}\n")


def _words(what: str, progress: Progress | None) -> str:
    if progress is None:
        return what
    refused = f", {progress.rejected} rejected" if progress.rejected else ""
    return (
        f"{what}: generation {progress.generation}, {progress.tried} tried, {progress.pruned} pruned{refused}, "
        f"time x {progress.ratio:.3f}"
    )


def _print(model: str, found: TuneReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "default", "tuned", "ratio", "of the limit", title=f"{model}: tokens/s", box=None)
    for load in found.workloads:
        table.add_row(
            load.name,
            f"{load.tokens / load.default:,.1f}",
            f"{load.tokens / load.tuned:,.1f}",
            f"{load.default / load.tuned:.3f}",
            f"{load.limit / load.tuned:.0%}" if load.limit else "-",
        )
    console = Console()
    console.print(table)
    result = found.result
    console.print(
        f"{result.generations} generations, {result.tried} choices tried, {result.rejected} rejected, {result.pruned} "
        f"pruned; {result.ended}",
        highlight=False,
    )
    if not found.choices:
        console.print("the defaults stay: nothing is faster by more than the noise", highlight=False)
    for choice in found.choices:
        console.print(f"  {choice}", highlight=False, markup=False)
    if found.kept:
        console.print(f"kept in {found.kept}; the next start uses it", highlight=False, soft_wrap=True)
    if found.record:
        console.print(f"record: {found.record}", highlight=False, soft_wrap=True)


def as_object(model: str, recipe: str, found: TuneReport) -> dict[str, object]:
    """A report as JSON has it."""
    from headrace import __version__

    result = found.result
    return {
        "model": model,
        "recipe": recipe,
        "workloads": {
            load.name: {
                "tokens": load.tokens,
                "default_seconds": load.default,
                "tuned_seconds": load.tuned,
                "limit_seconds": load.limit or None,
            }
            for load in found.workloads
        },
        "genome": found.genome.as_dict(),
        "fingerprint": found.genome.fingerprint if found.genome.values else None,
        "choices": list(found.choices),
        "generations": result.generations,
        "tried": result.tried,
        "rejected": result.rejected,
        "pruned": result.pruned,
        "ended": result.ended,
        "kept": found.kept or None,
        "record": found.record or None,
        "version": __version__,
    }
