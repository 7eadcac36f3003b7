"""``headrace bench overhead``: what a step costs beside the forward pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import DEFAULT_MODEL, MODEL_HELP, JsonOption, ThreadsOption

if TYPE_CHECKING:
    from headrace.bench.overhead import StepCosts

NONE = ((1, 512), (1, 32_000), (64, 512), (64, 32_000))  # sequences, tokens of each
ASIDE = ((1, 512, 0.002), (64, 32_000, 0.010))  # and seconds of its forward pass
COMPILED = ((1, 512), (8, 512), (32, 256))


def overhead(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    steps: Annotated[int, typer.Option(min=10, help="Steps of each kind, and round.")] = 300,
    threads: ThreadsOption = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds of the compiled kind.")] = 3,
    json_target: JsonOption = None,
) -> None:
    """Measure what planning costs, and how much of it the forward pass hides.

    Decode steps with no forward pass (none), with one that leaves the cores free (aside), and with the model's
    compiled one. Shown: the part of the host's time by which a step is longer than the same batches without an engine.
    """
    import msgspec
    from rich.console import Console
    from rich.progress import track

    from headrace.bench.overhead import aside_costs, compiled_costs
    from headrace.cli.output import write_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve

    with pull_progress() as progress:
        path = str(resolve(model, progress))
    runs = [
        *(partial(aside_costs, batch, context, steps, 0.0) for batch, context in NONE),
        *(partial(aside_costs, batch, context, steps, seconds) for batch, context, seconds in ASIDE),
        *(partial(compiled_costs, path, batch, context, steps, threads, repeat) for batch, context in COMPILED),
    ]
    found = [run() for run in track(runs, "measuring", transient=True, console=Console(stderr=True))]
    if json_target != "-":
        _print(found)
    if json_target is not None:
        write_json({"steps": [msgspec.to_builtins(costs) for costs in found]}, json_target)


def _print(found: list[StepCosts]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "executor", "sequences", "tokens each", "step, µs", "p99", "host", "without an engine", "p99", "shown", box=None
    )
    for costs in found:
        bare = (f"{costs.bare * 1e6:,.0f}", f"{costs.bare_p99 * 1e6:,.0f}") if costs.bare else ("", "")
        shown = f"{costs.shown:.0%}" if costs.bare else ""
        figures = (f"{x * 1e6:,.0f}" for x in (costs.step, costs.step_p99, costs.host))
        table.add_row(costs.executor, str(costs.batch), f"{costs.context:,}", *figures, *bare, shown)
    Console().print(table)
