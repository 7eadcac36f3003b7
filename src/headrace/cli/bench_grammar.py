"""``headrace bench grammar``: what constrained generation costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import DEFAULT_MODEL, MODEL_HELP, JsonOption

if TYPE_CHECKING:
    from headrace.bench.grammar import GrammarCosts


def grammar(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="JSON Schemas: *.json, or *.jsonl with one a line.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the choice of tokens.")] = 0,
    json_target: JsonOption = None,
) -> None:
    """Measure what grammars cost: to make one of a schema, to compile it, and a mask for each token.

    One text is followed in the grammar of each schema, of tokens drawn from its masks.
    """
    import msgspec

    from headrace.bench.grammar import measure_grammars, read_schemas
    from headrace.cli.output import write_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve
    from headrace.models.opening import open_checkpoint
    from headrace.text import load_tokenizer

    schemas = list(read_schemas(folder))
    with pull_progress() as progress:
        path = resolve(model, progress)
    costs = measure_grammars(schemas, load_tokenizer(open_checkpoint(path).tokenizer), tokens=tokens, seed=seed)
    if json_target != "-":
        _print(costs)
    if json_target is not None:
        write_json(msgspec.to_builtins(costs), json_target)


def _print(costs: GrammarCosts) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "count", "p50, µs", "p99", "max", box=None)
    rows = {
        "schema to source": costs.source,
        "source to grammar": costs.compile,
        "both": costs.both,
        "first mask": costs.first_mask,
        "mask": costs.mask,
        "accept": costs.accept,
    }
    for name, spread in rows.items():
        table.add_row(name, f"{spread.count:,}", *(f"{x * 1e6:,.1f}" for x in (spread.p50, spread.p99, spread.max)))
    console = Console()
    console.print(table)
    console.print(
        f"{costs.vocab_size:,} tokens; {costs.schemas} schemas, {costs.refused} refused; {costs.ended} texts ended"
    )
