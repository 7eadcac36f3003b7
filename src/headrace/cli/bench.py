"""``headrace bench``: how fast a server is, how fast the engine is, and how fast this machine could be."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.bench_cache import cache
from headrace.cli.bench_compare import compare
from headrace.cli.bench_grammar import grammar
from headrace.cli.bench_memory import memory
from headrace.cli.bench_overhead import overhead
from headrace.cli.bench_quality import quality
from headrace.cli.bench_serve import serve
from headrace.cli.bench_tiers import tiers
from headrace.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_RECIPE,
    MODEL_HELP,
    DType,
    DTypeOption,
    ExecutorChoice,
    ExecutorOption,
    JsonOption,
    Numerics,
    NumericsOption,
    RecipeOption,
    ThreadsOption,
)

if TYPE_CHECKING:
    from headrace.bench.engine import EngineRates
    from headrace.bench.limits import Limits

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Measure servers, the engine, and the limits of this machine.",
)
app.command()(serve)
app.command()(compare)
app.command()(quality)
app.command()(overhead)
app.command()(memory)
app.command()(tiers)
app.command()(cache)
app.command()(grammar)


@app.command()
def engine(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    json_target: JsonOption = None,
    executor: ExecutorOption = ExecutorChoice.auto,
    recipe: RecipeOption = DEFAULT_RECIPE,
    numerics: NumericsOption = Numerics.invariant,
    dtype: DTypeOption = DType.float32,
    threads: ThreadsOption = None,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a step.")] = 512,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each kind; the best counts.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Measure just this, e.g. decode_b8; may be repeated.")
    ] = None,
) -> None:
    """Measure prefill and decode in tokens/s.

    Random token prompts, through scheduler and sampler, without prefix reuse. prefill_N: a prompt of N tokens.
    decode_bN: N sequences at once, 64 tokens each after a prompt of 128. With --json - the last line on standard
    output is the JSON object; the keys are those of the table.
    """
    from headrace.bench.engine import bench_engine
    from headrace.cli.output import write_json
    from headrace.cli.progress import pull_progress
    from headrace.models.hub import resolve

    with pull_progress() as progress:
        path = resolve(model, progress)

    def report(key: str, rate: float) -> None:
        sys.stderr.write(f"{key:13} {rate:10.1f} tokens/s\n")

    rates = bench_engine(
        str(path),
        model,
        executor=executor.value,
        recipe=recipe,
        numerics=numerics.value,
        dtype=dtype.value,
        threads=threads,
        max_batch_tokens=max_batch_tokens,
        repeat=repeat,
        only=only or (),
        report=report,
    )
    if json_target != "-":
        _print_rates(rates)
    if json_target is not None:
        write_json(_rates_object(rates, repeat, max_batch_tokens), json_target)


@app.command()
def limits(json_target: JsonOption = None) -> None:
    """Measure memory reads and register-only arithmetic.

    Memory reads with one thread and with all; int8, bf16 and float32 multiply-adds on all threads, each by the
    instruction of this CPU that does most. Needs a C compiler; without one, only memory is measured.
    """
    import msgspec

    from headrace.bench.limits import measure_limits
    from headrace.cli.output import write_json

    found = measure_limits(_say)
    if json_target != "-":
        _print_limits(found)
    if json_target is not None:
        write_json(msgspec.to_builtins(found), json_target)


def _rates_object(rates: EngineRates, repeat: int, max_batch_tokens: int) -> dict[str, object]:
    from headrace import __version__

    info = rates.info
    return {
        **{key: round(rate, 2) for key, rate in rates.rates.items()},
        "outside_executor": {key: round(share, 4) for key, share in rates.outside_executor.items()},
        "skipped": rates.skipped,
        "model": info.model,
        "executor": info.executor,
        "threads": info.threads,
        "max_batch_tokens": max_batch_tokens,
        "repeat": repeat,
        "version": __version__,
    }


def _print_rates(rates: EngineRates) -> None:
    from rich.console import Console
    from rich.table import Table

    info = rates.info
    table = Table(
        "", "tokens/s", "outside the executor", title=f"{info.model}: {info.executor}, {info.threads} threads", box=None
    )
    for key, rate in rates.rates.items():
        table.add_row(key, f"{rate:,.1f}", f"{rates.outside_executor[key]:.1%}")
    for key, why in rates.skipped.items():
        table.add_row(key, "-", why)
    Console().print(table)


def _print_limits(found: Limits) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", "by", title=f"limits of this machine, {found.threads} threads", box=None)
    how = found.instructions["memory_read"]
    table.add_row("memory read, 1 thread", f"{found.memory_read_1_thread_gb_s:,.1f} GB/s", how)
    table.add_row("memory read", f"{found.memory_read_gb_s:,.1f} GB/s", how)
    figures = {"int8": found.int8_gop_s, "bf16": found.bf16_gflop_s, "float32": found.float32_gflop_s}
    for kind, rate in figures.items():
        if rate is None:
            table.add_row(kind, "-", found.reasons[kind])
        else:
            unit = "GOP/s" if kind == "int8" else "GFLOP/s"
            table.add_row(kind, f"{rate:,.0f} {unit}", found.instructions[kind])
    Console().print(table)


def _say(what: str) -> None:
    sys.stderr.write(f"measuring {what}\n")
