"""``headrace bench compare``: two results of ``bench serve``, measure by measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    a: Annotated[Path, typer.Argument(help="A result that `bench serve --json` wrote.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the comparison; - is standard output.")
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page with plots.")] = None,
) -> None:
    """Compare two results: ratios with 95 % confidence intervals.

    Where an interval holds 1, no difference is shown. Results with three rounds or more each are compared round by
    round; with fewer, what differs from run to run is not in the interval, and `bench serve --against` is better.
    """
    from headrace.bench.results.compare import compare as compare_results
    from headrace.bench.results.result_file import load_result
    from headrace.cli.bench_output import write_outputs

    write_outputs(compare_results(load_result(a), load_result(b)), json_target, html)
