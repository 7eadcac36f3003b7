"""``headrace bench memory``: how full the arena gets, and what runs in it beside other schemes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import JsonOption

if TYPE_CHECKING:
    from headrace.bench.memory import Concurrency, FullArena


def memory(
    only: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="Just this, e.g. gemma-3-4b; may be repeated.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Steps until the arena is full and requests come and go.")] = 1500,
    steps: Annotated[int, typer.Option(min=1, help="Steps that count.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the requests.")] = 0,
    json_target: JsonOption = None,
) -> None:
    """Measure how full the memory for state gets.

    The scheduler plans steps for requests of several models' dimensions; nothing is computed. Shows what the arena
    holds when a request must wait, how many requests run at once, beside a fixed split and pages of one size, and what
    moving pages costs. Takes minutes.
    """
    import msgspec

    from headrace.bench.memory import measure_concurrency, measure_full_arena
    from headrace.bench.memory_schemes import MODELS
    from headrace.cli.output import write_json
    from headrace.errors import InvalidInput

    for name in only or ():
        if name not in MODELS:
            raise InvalidInput(f"{name!r} is none of {', '.join(MODELS)}", field="only")
    models = [model for name, model in MODELS.items() if name in (only or MODELS)]
    arenas, schemes = [], []
    for model in models:
        _say(f"{model.name}, full arena")
        arenas.append(measure_full_arena(model, warmup, steps, seed))
        schemes += measure_concurrency(model, warmup, steps, _say, seed)
    for arena in arenas:
        if not arena.moments:
            _say(f"{arena.model}: the arena was never full, so nothing of it counts; take more steps")
    if json_target != "-":
        _print(arenas, schemes)
    if json_target is not None:
        write_json(
            {"full_arena": msgspec.to_builtins(arenas), "concurrency": msgspec.to_builtins(schemes)}, json_target
        )


def _print(arenas: list[FullArena], schemes: list[Concurrency]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(arena.model for arena in arenas), title="when a request must wait", box=None)
    table.add_row("useful, least", *(f"{arena.least:.1%}" for arena in arenas))
    table.add_row("useful, mean", *(f"{arena.mean:.1%}" for arena in arenas))
    for reason in dict.fromkeys(reason for arena in arenas for reason in arena.lost):
        table.add_row(reason, *(f"{arena.lost.get(reason, 0):.2%}" for arena in arenas))
    table.add_row("steps", *(str(arena.moments) for arena in arenas))
    table.add_row("running at once", *(f"{arena.running:.0f}" for arena in arenas))
    table.add_row("finished", *(str(arena.finished) for arena in arenas))
    table.add_row("preempted", *(str(arena.preemptions) for arena in arenas))
    table.add_row("mean step", *(f"{arena.step_ms:.1f} ms" for arena in arenas))
    table.add_row("moved in it", *(f"{arena.moved / 1e6:.2f} MB" for arena in arenas))
    table.add_row("moving, of the mean step", *(f"{arena.cost:.2%}" for arena in arenas))
    table.add_row("moving, p99 of p99", *(f"{arena.cost_p99:.2%}" for arena in arenas))
    Console().print(table)
    table = Table("", "scheme", "running", "ours is", "finished", "preempted", title="requests at once", box=None)
    for row in schemes:
        (best,) = [other.running for other in schemes if (other.model, other.scheme) == (row.model, "ours")]
        cells = f"{row.running:.1f}", f"x{best / row.running:.2f}", str(row.finished), str(row.preemptions)
        table.add_row(row.model, row.scheme, *cells)
    Console().print(table)


def _say(what: str) -> None:
    sys.stderr.write(f"measuring {what}\n")
