"""``headrace pull``: fetch a model."""

from __future__ import annotations

from typing import Annotated

import typer


def pull(
    name: Annotated[
        str,
        typer.Argument(help="A known name such as smollm2-135m, or org/name or org/name/file.gguf on the hub."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the path.")] = False,
) -> None:
    """Fetch a model into this machine's cache and print its path.

    What is there already is not fetched again. HEADRACE_CACHE names another cache folder.
    """
    from headrace.cli.output import print_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve

    with pull_progress() as report:
        path = resolve(name, report)
    if as_json:
        print_json({"model": name, "path": str(path)})
    else:
        typer.echo(str(path))
