"""``headrace bench quality``: what a recipe loses, beside PyTorch in float32."""

from __future__ import annotations

import sys
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
    from headrace.bench.quality import QualityResult

LOST_TOO_MUCH = 1


def quality(
    text: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A text file, such as WikiText-2's test.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    recipe: RecipeOption = DEFAULT_RECIPE,
    numerics: NumericsOption = Numerics.invariant,
    tokens: Annotated[int, typer.Option(min=4, help="Tokens of the text to compute.")] = 20_000,
    context: Annotated[int, typer.Option(min=4, help="Tokens of a piece; its second half counts.")] = 512,
    threads: ThreadsOption = None,
    json_target: JsonOption = None,
) -> None:
    """Measure what a recipe loses beside PyTorch in float32.

    On a text: KL divergence, agreement of the best token and change of perplexity, defined as by llama.cpp's
    llama-perplexity --kl-divergence. The exit status is 1 if the recipe loses more than its gate allows.
    """
    import msgspec
    from rich.progress import Progress

    from headrace.bench.quality import measure_quality
    from headrace.cli.output import write_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve

    with pull_progress() as report:
        path = resolve(model, report)
    with Progress(transient=True) as bar:
        task = bar.add_task("comparing", total=None)
        found = measure_quality(
            str(path),
            text.read_text(encoding="utf-8", errors="replace"),
            recipe=recipe,
            numerics=numerics.value,
            tokens=tokens,
            context=context,
            threads=threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if json_target != "-":
        _print(found)
    if json_target is not None:
        write_json(msgspec.to_builtins(found), json_target)
    if found.failures:
        sys.stderr.write("".join(f"too much is lost: {failure}\n" for failure in found.failures))
        raise typer.Exit(LOST_TOO_MUCH)


def _print(found: QualityResult) -> None:
    from rich.console import Console
    from rich.table import Table

    q = found.quality
    table = Table("", "", title=f"{found.recipe} ({found.numerics}), {q.positions:,} positions", box=None)
    table.add_row("KL divergence", f"{q.kl.mean:.2e} ± {q.kl.error:.0e} (p99 {q.kl_p99:.1e})")
    table.add_row("best token agrees", f"{q.agreement.mean:.2%} ± {q.agreement.error:.2%}")
    table.add_row("perplexity", f"{q.perplexity:.3f} for {q.reference_perplexity:.3f}")
    table.add_row("its change", f"{q.perplexity_change.mean:+.2%} ± {q.perplexity_change.error:.2%}")
    table.add_row("largest difference of a logit", f"{q.logit_difference:.2e}")
    table.add_row("aim", "met" if not found.aim else "; ".join(found.aim))
    Console().print(table)
