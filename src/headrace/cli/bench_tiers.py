"""``headrace bench tiers``: how fast stored state comes back."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import MODEL_HELP, JsonOption

if TYPE_CHECKING:
    from headrace.bench.resumption import FirstTokens
    from headrace.bench.tiers import TierRates


def tiers(
    folder: Annotated[
        Path, typer.Argument(help="A folder on the disk to measure.", exists=True, file_okay=False)
    ] = Path(),
    json_target: JsonOption = None,
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of the prefix.")] = 4000,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each kind; the median counts.")] = 5,
    model: Annotated[str | None, typer.Option(help="Measure the time to the first token, too: " + MODEL_HELP)] = None,
) -> None:
    """Measure how fast stored state comes back.

    A prefix of SmolLM2-135M, 16 bits an element, goes from an arena to host memory and to files and back, beside a
    plain copy and a plain read of as many bytes. cold: after the system has dropped the files. With --model, then, how
    soon the first token of a prompt comes whose prefix is nowhere, in the arena, in host memory, or on disk.
    """
    import msgspec

    from headrace.bench.resumption import first_tokens
    from headrace.bench.tiers import measure_tiers
    from headrace.cli.output import write_json
    from headrace.models.hub import resolve

    found = measure_tiers(
        folder, tokens=tokens, repeat=repeat, report=lambda what: print(what, file=sys.stderr, flush=True)
    )
    first = None
    if model is not None:
        with TemporaryDirectory(dir=folder) as disk:
            path = str(resolve(model, lambda *_: None))
            first = first_tokens(path, Path(disk), tokens=tokens, repeat=repeat)
    if json_target != "-":
        _print(found)
        if first is not None:
            _print_first(first)
    if json_target is not None:
        about = {} if first is None else {"first_token": msgspec.to_builtins(first)}
        write_json(msgspec.to_builtins(found) | about, json_target)


def _print_first(found: FirstTokens) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("prefix", "first token, ms", "computed / it", title=f"{found.tokens:,} tokens", box=None)
    for name in ("computed", "arena", "host", "disk"):
        seconds = getattr(found, name)
        table.add_row(name, f"{seconds * 1e3:,.0f}", f"{found.computed / seconds:,.1f}")
    Console().print(table)


def _print(found: TierRates) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{found.tokens:,} tokens, {found.nbytes / 1e6:,.1f} MB"
    table = Table("", "ms", "GB/s", "beside", title=title, box=None)
    rows = (
        ("copy of memory", found.copy, None, ""),
        ("arena to host memory", found.store, found.copy, "copy"),
        ("host memory to arena", found.load_host, found.copy, "copy"),
        ("read of files, cold", found.read_cold, None, ""),
        ("disk to arena, cold", found.load_cold, found.read_cold, "read"),
        ("read of files, warm", found.read_warm, None, ""),
        ("disk to arena, warm", found.load_warm, found.read_warm, "read"),
        ("host memory to disk", found.save, None, ""),
    )
    for name, seconds, peer, what in rows:
        ratio = "" if peer is None else f"{seconds / peer:.2f} x {what}"
        table.add_row(name, f"{seconds * 1e3:,.1f}", f"{found.nbytes / seconds / 1e9:.2f}", ratio)
    Console().print(table)
