"""``headrace models``: what can be run."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the models that are here, and those known by name.

    Any .gguf file, folder of safetensors, or org/name on the Hugging Face hub runs too.
    """
    from headrace.cli.output import print_json

    rows = _rows()
    if as_json:
        print_json({"models": rows})
        return
    from rich.console import Console
    from rich.table import Table

    from headrace.cli.output import human_bytes

    table = Table("model", "format", "size", "licence", "path", box=None)
    for row in rows:
        path = row["path"] or f"not here yet: headrace pull {row['name']}"
        table.add_row(row["name"], row["format"], human_bytes(row["bytes"]), row["licence"] or "", path)
    # Wider than any terminal: a path is for copying, so it runs on into the next line rather than being cut.
    Console(width=10_000).print(table)


def _rows() -> list[dict[str, Any]]:
    from headrace.models.hub import CATALOGUE, cached_models

    rows = {
        name: {"name": name, "format": "gguf", "bytes": entry.size, "licence": entry.licence, "path": None}
        for name, entry in CATALOGUE.items()
    }
    for found in cached_models():
        known = rows.get(found.name, {"licence": None})
        rows[found.name] = {
            "name": found.name,
            "format": found.format,
            "bytes": found.size,
            "licence": known["licence"],
            "path": str(found.path),
        }
    return list(rows.values())
