"""``headrace serve``: load a model and answer requests over HTTP."""

from __future__ import annotations

import logging
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from headrace.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_RECIPE,
    MODEL_HELP,
    DType,
    DTypeOption,
    ExecutorChoice,
    ExecutorOption,
    Numerics,
    NumericsOption,
    RecipeOption,
)
from headrace.cli.units import parse_bytes
from headrace.errors import InvalidInput

if TYPE_CHECKING:
    from headrace.engine.messages import ReplicaInfo
    from headrace.gateway.config import ApiKey

log = logging.getLogger(__name__)


class LogFormat(StrEnum):
    """Styles of the log."""

    text = "text"
    json = "json"


class Objective(StrEnum):
    """What to run for."""

    throughput = "throughput"
    latency = "latency"
    slo = "slo"


class Policy(StrEnum):
    """Who comes first."""

    fcfs = "fcfs"
    longest_prefix = "longest-prefix"
    slo = "slo"
    fair = "fair"


def serve(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Name that clients ask for; by default the model's own.")] = None,
    executor: ExecutorOption = ExecutorChoice.auto,
    recipe: RecipeOption = DEFAULT_RECIPE,
    numerics: NumericsOption = Numerics.invariant,
    dtype: DTypeOption = DType.float32,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the executor; by default one a core.")] = None,
    context_length: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of a sequence; by default what model and memory allow.")
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="KV memory, such as 2GiB; by default a quarter of the free memory, up to 4GiB.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, help="Samples that run at once.")] = 64,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a step.")] = 512,
    objective: Annotated[
        Objective, typer.Option(help="Long steps, even gaps between tokens, or first tokens in time.")
    ] = Objective.throughput,
    slo_ttft_ms: Annotated[float, typer.Option(min=1, help="Service level: to the first token.")] = 1000.0,
    slo_itl_ms: Annotated[float, typer.Option(min=1, help="Service level: between two tokens.")] = 100.0,
    policy: Annotated[
        Policy | None, typer.Option(help="Who comes first, of equal priority; by default what the objective asks for.")
    ] = None,
    tenant_weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WEIGHT", help="Share of a tenant, for the policy fair; may be repeated."),
    ] = None,
    max_step_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Longest step while answers are being written; 0 bounds by tokens alone; else the objective's.",
        ),
    ] = None,
    prefix_cache: Annotated[bool, typer.Option(help="Reuse computed prefixes.")] = True,
    host_tier: Annotated[
        str, typer.Option(help="Host memory for prefixes that the KV memory gives up, such as 2GiB.")
    ] = "0",
    disk_tier: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for them; a restarted server finds them there.")
    ] = None,
    disk_tier_size: Annotated[str, typer.Option(help="Most that files take there.")] = "10GiB",
    max_queue: Annotated[int, typer.Option(min=0, help="Samples that may wait; more are answered with 429.")] = 512,
    max_body: Annotated[str, typer.Option(help="Largest request body.")] = "8MiB",
    response_store: Annotated[
        str, typer.Option(help="Memory for responses that may be continued; 0: none.")
    ] = "256MiB",
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            envvar="HEADRACE_API_KEY",
            help="Key that callers must show, and behind a blank the tenant's name; may be repeated.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File of keys, one a line, as in --api-key.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Origin whose pages may call, or *; may be repeated.")
    ] = None,
    lenient: Annotated[bool, typer.Option(help="Ignore unknown request fields, with a warning header.")] = False,
    heartbeat_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds of silence after which the engine is replaced.")
    ] = 5.0,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests get when the server is ended.")
    ] = 30.0,
    log_format: Annotated[LogFormat, typer.Option(help="Style of the log on standard error.")] = LogFormat.text,
    tool_format: Annotated[
        str | None,
        typer.Option(
            help="How the model writes tool calls: a format's name or file; by default as its template shows."
        ),
    ] = None,
    step_log: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Append each step to this file, a trace for ui.perfetto.dev.")
    ] = None,
    debug: Annotated[bool, typer.Option(help="Poison freed pages and check invariants when idle.")] = False,
) -> None:
    """Serve a model over HTTP: the APIs of OpenAI and Anthropic, metrics, and documentation at /docs."""
    # Imported late, so that `headrace --help` does not wait for a web server.
    from headrace.cli.progress import pull_progress
    from headrace.fleet.launcher import ReplicaLauncher
    from headrace.fleet.options import EngineOptions
    from headrace.gateway.app import build_services
    from headrace.gateway.config import GatewayConfig
    from headrace.gateway.server import serve as serve_forever
    from headrace.logs import set_up_logs
    from headrace.models.hub import resolve
    from headrace.models.opening import open_checkpoint
    from headrace.models.registry import load_spec
    from headrace.text.model_text import model_text
    from headrace.text.tokenizer import load_tokenizer

    config = GatewayConfig(
        api_keys=_keys(api_key or [], api_key_file),
        cors_origins=tuple(cors_origin or ()),
        max_body_bytes=parse_bytes(max_body, "max_body"),
        max_queue=max_queue,
        store_bytes=parse_bytes(response_store, "response_store"),
        lenient=lenient,
        heartbeat_timeout=heartbeat_timeout,
        drain_timeout=drain_timeout,
    )
    with pull_progress() as progress:
        path = resolve(model, progress)
    options = EngineOptions(
        path=str(path),
        name=name or _own_name(model, path),
        executor=executor.value,
        recipe=recipe,
        numerics=numerics.value,
        dtype=dtype.value,
        threads=threads,
        context_length=context_length,
        kv_memory=None if kv_memory is None else parse_bytes(kv_memory, "kv_memory"),
        max_running=max_running,
        max_batch_tokens=max_batch_tokens,
        objective=objective.value,
        slo_ttft_ms=slo_ttft_ms,
        slo_itl_ms=slo_itl_ms,
        policy=None if policy is None else policy.value,
        tenant_weights=_weights(tenant_weight or []),
        max_step_ms=max_step_ms,
        prefix_cache=prefix_cache,
        host_tier=parse_bytes(host_tier, "host_tier"),
        disk_tier=None if disk_tier is None else str(disk_tier),
        disk_tier_size=parse_bytes(disk_tier_size, "disk_tier_size"),
        tool_format=tool_format,
        step_log=None if step_log is None else str(step_log),
        debug=debug,
    )
    checkpoint = open_checkpoint(path)
    load_spec(checkpoint, options.name)  # a file that cannot be served is refused here, before a process is started
    text = model_text(load_tokenizer(checkpoint.tokenizer), tool_format)
    set_up_logs(log_format.value)
    services = build_services(options.name, text, ReplicaLauncher(options, log_format.value), config)

    def announce(info: ReplicaInfo, seconds: float, port: int) -> None:
        if log_format is LogFormat.json:
            log.info("ready", extra={"replica": msgspec.to_builtins(info), "seconds": round(seconds, 3), "port": port})
            return
        address = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"{_banner(info, seconds)}\nlistening on http://{address}:{port} (documentation at /docs)\n")
        sys.stderr.flush()

    serve_forever(services, host, port, on_ready=announce)


def _banner(info: ReplicaInfo, seconds: float) -> str:
    threads = f"{info.threads} thread{'' if info.threads == 1 else 's'}"
    return (
        f"{info.model}: {info.executor}, {threads}, context {info.context_length:,} tokens, "
        f"KV memory {info.kv_tokens:,} tokens, {info.max_running} at once; ready in {seconds:.1f} s"
    )


def _own_name(model: str, path: Path) -> str:
    """What to call a model that was given as a path: the file's or folder's name."""
    return path.stem if path.suffix == ".gguf" and Path(model).exists() else model.rstrip("/").rpartition("/")[2]


def _keys(given: list[str], file: Path | None) -> tuple[ApiKey, ...]:
    from headrace.gateway.config import ApiKey

    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    if any(not key.strip() or key[0].isspace() for key in given):
        raise InvalidInput("must begin with the key", field="api_key")
    if file is not None and not any(line.strip() for line in lines):
        raise InvalidInput("no key in it; one key a line is expected", field="api_key_file")
    keys = tuple(ApiKey.parse(key) for key in (*given, *lines) if key.strip())
    tenants: dict[str, str] = {}
    for key in keys:
        if tenants.setdefault(key.secret, key.tenant) != key.tenant:
            raise InvalidInput(f"{tenants[key.secret]} and {key.tenant} have the same key", field="api_key")
    return keys


def _weights(given: list[str]) -> dict[str, float]:
    weights = {}
    for text in given:
        name, _, weight = text.rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = math.nan
        if not name or not 0 < value < math.inf:
            raise InvalidInput(f"must be like NAME=2, got {text!r:.80}", field="tenant_weight")
        if name in weights:
            raise InvalidInput(f"{name!r:.80} has two weights", field="tenant_weight")
        weights[name] = value
    return weights
