"""``headrace bench cache``: what the prefix cache finds of a trace, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import JsonOption

if TYPE_CHECKING:
    from headrace.bench.cache import HitRates
    from headrace.bench.cache_cost import Times


def cache(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TRACE...", help="Mooncake's *.jsonl, or a file or folder of agents' sessions."),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="PERCENT", help="Size of the cache, of all different pages; may be repeated."),
    ] = None,
    active: Annotated[int, typer.Option(min=1, help="Sessions of agents under way at once, on average.")] = 14,
    seed: Annotated[int, typer.Option(help="Of the agents' order and starts.")] = 0,
    cost: Annotated[bool, typer.Option("--cost", help="Time the tree's operations at 10 million tokens.")] = False,
    json_target: JsonOption = None,
) -> None:
    """Replay traces through the prefix tree: shares of prompt tokens that are found.

    Beside each other: giving up what was not used for longest (LRU), what is worth least (value), and the page whose
    next use is farthest, which takes foresight (Belady).
    """
    import msgspec

    from headrace.bench.cache import measure_hits
    from headrace.bench.cache_cost import measure_costs
    from headrace.cli.output import write_json
    from headrace.cli.units import parse_share

    if not traces and not cost:
        raise typer.BadParameter("a trace, or --cost, is needed", param_hint="TRACE")
    shares = [parse_share(text, "--share") for text in share or ("2%", "5%", "10%", "20%", "40%")]
    hits = [found for trace in traces or () for found in measure_hits(trace, shares, active=active, seed=seed)]
    costs = measure_costs() if cost else []
    if json_target != "-":
        _print_hits(hits)
        _print_costs(costs)
    if json_target is not None:
        rates = [{**msgspec.to_builtins(found), "gap_closed": found.gap_closed} for found in hits]
        write_json({"hits": rates, "costs": msgspec.to_builtins(costs)}, json_target)


def _print_hits(hits: list[HitRates]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("trace", "cache", "pages", "LRU", "value", "Belady", "gap closed", box=None)
    for found in hits:
        rates = (f"{rate:.2%}" for rate in (found.lru, found.value, found.belady))
        table.add_row(found.trace, f"{found.share:.3g}", f"{found.pages:,}", *rates, f"{found.gap_closed:.1%}")
    if hits:
        Console().print(table)


def _print_costs(costs: list[Times]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("groups", "operation", "p50, ms", "p99, ms", "wall p50", "wall p99", box=None)
    for found in costs:
        seconds = (found.p50, found.p99, found.wall_p50, found.wall_p99)
        table.add_row(found.groups, found.operation, *(f"{s * 1e3:.2f}" for s in seconds))
    if costs:
        Console().print(table)
