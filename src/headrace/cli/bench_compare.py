"""``headrace bench compare``: two results of ``bench serve``, measure by measure, or the curves of several sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.errors import InvalidInput


def compare(
    files: Annotated[
        list[Path], typer.Argument(help="Two results that `bench serve --json` wrote; of sweeps two or more.")
    ],
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the comparison; - is standard output.")
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page with plots.")] = None,
) -> None:
    """Compare two results: ratios with 95 % confidence intervals.

    Where an interval holds 1, no difference is shown. Results with three rounds or more each are compared round by
    round; with fewer, what differs from run to run is not in the interval, and `bench serve --against` is better.

    Sweeps over loads, any number of them, are put beside each other as curves, each named as its file.
    """
    from headrace.bench.results.compare import compare as compare_results
    from headrace.bench.results.result_file import load_result
    from headrace.bench.results.schema import Swept
    from headrace.bench.results.sweeps import compare_sweeps
    from headrace.cli.bench_output import write_outputs

    results = [load_result(file) for file in files]
    if any(result.sweep is not None for result in results):
        names = [file.stem for file in files]
        if len(set(names)) < len(names):
            names = [str(file) for file in files]
        sweeps = [Swept(name, result) for name, result in zip(names, results, strict=True)]
        write_outputs(compare_sweeps(sweeps), json_target, html)
        return
    if len(results) != 2:
        raise InvalidInput(f"two results are compared, not {len(results)}; only of sweeps may there be more")
    write_outputs(compare_results(*results), json_target, html)
