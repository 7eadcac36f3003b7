"""``headrace bench serve``: put a load on a server and tell how it bears it."""

from __future__ import annotations

import json
import re
import secrets
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.units import parse_seconds, parse_share
from headrace.errors import InvalidInput

if TYPE_CHECKING:
    from headrace.bench.plan import Closed, Open, Synthetic, Trace
    from headrace.bench.results.schema import Comparison, Result
    from headrace.bench.serve import SearchSettings, Settings

EXIT_NOT_CERTIFIED = 3
DEFAULT_CONCURRENCY = 8
FIRST_RATE = "1"  # where a search begins


class WorkloadKind(StrEnum):
    """What is asked."""

    random = "random"
    shared_prefix = "shared-prefix"
    chat = "chat"
    mooncake = "mooncake"
    azure = "azure"
    agents = "agents"


class ArrivalKind(StrEnum):
    """Laws of the gaps between arrivals."""

    constant = "constant"
    poisson = "poisson"
    gamma = "gamma"
    trace = "trace"


class Api(StrEnum):
    """Endpoints."""

    completions = "completions"
    chat = "chat"


class Prompts(StrEnum):
    """Forms of a prompt."""

    auto = "auto"
    tokens = "tokens"
    text = "text"


TRACES = (WorkloadKind.mooncake, WorkloadKind.azure, WorkloadKind.agents)


def serve(
    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8000",
    # --- the server
    model: Annotated[str | None, typer.Option("--model", "-m", help="By default the server's first.")] = None,
    api: Annotated[Api, typer.Option(help="Endpoint to ask.")] = Api.completions,
    prompts: Annotated[
        Prompts, typer.Option(help="Send prompts as token ids or as text; auto: ids where the server takes them.")
    ] = Prompts.auto,
    tokenizer: Annotated[
        Path | None, typer.Option(exists=True, help="The model's files, for servers that have no /tokenize.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="HEADRACE_API_KEY", help="Key that the server wants.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Header of every request; may be repeated.")
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Fields of every request, such as '{\"top_p\": 0.9}'.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of exactly the length wanted.")] = True,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest time for one request.")] = "600s",
    devices: Annotated[int, typer.Option(min=1, help="Devices of the server, for the rates per device.")] = 1,
    # --- the workload
    workload: Annotated[WorkloadKind, typer.Option(help="What to ask; see docs/workloads.md.")] = WorkloadKind.random,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many; by default 200, or what --duration takes. Not for traces.")
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option(metavar="LAW", help="Of a prompt or user message: 512, uniform:A:B, lognormal:MEDIAN:S, ...")
    ] = "256",
    output_tokens: Annotated[str, typer.Option(metavar="LAW", help="Of an answer.")] = "64",
    system_prompts: Annotated[int, typer.Option(min=1, help="shared-prefix: how many system prompts.")] = 4,
    system_tokens: Annotated[str, typer.Option(metavar="LAW", help="shared-prefix: their length.")] = "512",
    turns: Annotated[str, typer.Option(metavar="LAW", help="shared-prefix, chat: turns of a session.")] = "3",
    think: Annotated[str, typer.Option(metavar="TIME", help="Time between an answer and the next turn.")] = "0s",
    trace: Annotated[Path | None, typer.Option(exists=True, help="File (agents: or folder) of the trace.")] = None,
    scale: Annotated[float, typer.Option(help="Traces: factor of all times; 0.5 replays twice as fast.")] = 1.0,
    shrink: Annotated[float, typer.Option(help="Traces: divisor of all lengths.")] = 1.0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Traces: the first so many requests (agents: files).")
    ] = None,
    # --- the arrivals
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: so many sessions at a time. The default, with 8.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="R|A:B", help="Open loop: requests/s, or a ramp from A to B.")
    ] = None,
    arrivals: Annotated[
        ArrivalKind | None, typer.Option(help="Open loop: law of the gaps; poisson, or the trace's own times.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="gamma: its shape; 1 is poisson, below 1 burstier, above 1 more even.")
    ] = 1.0,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Begin no session after this time.")] = None,
    # --- the measurement
    warmup: Annotated[str, typer.Option(metavar="SHARE|TIME", help="Does not count at the beginning.")] = "10%",
    cooldown: Annotated[str, typer.Option(metavar="SHARE|TIME", help="Does not count at the end.")] = "10%",
    slo: Annotated[
        str | None, typer.Option(metavar="ttft=500ms,tpot=50ms", help="Service level: bounds of ttft, tpot, itl, e2e.")
    ] = None,
    find_max_rate: Annotated[
        bool, typer.Option(help="Search the highest rate that meets --slo, from --rate on.")
    ] = False,
    target_share: Annotated[
        str, typer.Option(metavar="SHARE", help="--find-max-rate: of the requests, how many must meet --slo.")
    ] = "99%",
    tolerance: Annotated[str, typer.Option(metavar="SHARE", help="--find-max-rate: how exact.")] = "3%",
    max_rate: Annotated[float | None, typer.Option(min=0, help="--find-max-rate: try no higher rate.")] = None,
    against: Annotated[str | None, typer.Option(metavar="URL", help="Measure another server in turn.")] = None,
    against_model: Annotated[str | None, typer.Option(help="Its model; by default its first.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Repeat with fresh prompts; by default once, with --against 3 times.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths, tokens and arrivals.")] = 0,
    salt: Annotated[
        str | None, typer.Option(help="Name of the words; the same name repeats them. By default new ones every time.")
    ] = None,
    # --- the output
    json_target: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; - is standard output.")
    ] = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write a page with plots.")] = None,
) -> None:
    """Put a load on an OpenAI-compatible server and measure it.

    Closed loop with --concurrency, open loop with --rate or a trace's own times. Latencies count from when a request
    was due. With --find-max-rate: the highest rate at which enough requests meet --slo. With --against: two servers in
    alternation. Exit status 3: measured, but the generator was the bottleneck or the run was cut short.

    Definitions: docs/measures.md. Workloads: docs/workloads.md.
    """
    from msgspec.structs import replace

    from headrace.bench.load.target import Question
    from headrace.bench.plan import Load
    from headrace.bench.results.measure import parse_margin
    from headrace.bench.results.slo import parse_slo
    from headrace.bench.serve import Bench, Settings, measure, measure_against
    from headrace.bench.serve import find_max_rate as search
    from headrace.cli.bench_output import check_targets, write_outputs
    from headrace.cli.bench_progress import progress

    check_targets(json_target, html)
    if workload in TRACES:
        _refuse({"--requests": requests}, "of traces, --limit says how many")
        asked: Synthetic | Trace = _trace(workload, trace, scale, shrink, limit)
    else:
        _refuse({"--trace": trace, "--limit": limit}, "belongs to the workloads mooncake, azure and agents")
        asked = _synthetic(
            workload,
            requests,
            prompt_tokens,
            output_tokens,
            system_prompts,
            system_tokens,
            turns,
            think,
        )
    load = Load(
        workload=asked,
        arrivals=_arrivals(asked, concurrency, rate, arrivals, burstiness, duration, open_loop=find_max_rate),
        seed=seed,
    )
    settings = Settings(
        load=load,
        question=Question(
            api=api.value,
            prompts=prompts.value,
            ignore_eos=ignore_eos,
            model=model,
            headers=_headers(header or [], api_key),
            extra_body=_object(body),
        ),
        tokenizer=tokenizer,
        warmup=parse_margin(warmup, "warmup"),
        cooldown=parse_margin(cooldown, "cooldown"),
        slo={} if slo is None else parse_slo(slo),
        devices=devices,
        timeout_seconds=parse_seconds(timeout, "--timeout"),
        salt=secrets.token_hex(4) if salt is None else salt,
    )
    wanted = _search(settings, rate, target_share, tolerance, max_rate) if find_max_rate else None
    if wanted is not None:
        _refuse({"--against": against, "--rounds": rounds}, "does not go with --find-max-rate")
    with progress() as show:
        bench = Bench(url, settings, show)
        if wanted is not None:
            found: Result | Comparison = search(bench, wanted)
        elif against is not None:
            other = replace(settings, question=replace(settings.question, model=against_model))
            found = measure_against(bench, Bench(against, other, show), rounds or 3)
        else:
            found = measure(bench, rounds or 1)
    if not write_outputs(found, json_target, html):
        raise typer.Exit(EXIT_NOT_CERTIFIED)


def _refuse(options: dict[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(why, field=name)


def _trace(kind: WorkloadKind, path: Path | None, scale: float, shrink: float, limit: int | None) -> Trace:
    from headrace.bench.plan import Trace
    from headrace.bench.workload.traces import TraceOptions

    if path is None:
        raise InvalidInput(f"the workload {kind} replays a file: name it", field="--trace")
    return Trace(kind=kind.value, path=path, options=TraceOptions(scale=scale, shrink=shrink, limit=limit))


def _synthetic(
    kind: WorkloadKind,
    requests: int | None,
    prompt: str,
    output: str,
    system_prompts: int,
    system: str,
    turns: str,
    think: str,
) -> Synthetic:
    from headrace.bench.plan import Synthetic
    from headrace.bench.workload.lengths import parse_lengths

    return Synthetic(
        kind=kind.value,  # type: ignore[arg-type]
        requests=requests,
        prompt=parse_lengths(prompt, "--prompt-tokens"),
        output=parse_lengths(output, "--output-tokens"),
        system_prompts=system_prompts,
        system=parse_lengths(system, "--system-tokens"),
        turns=parse_lengths(turns, "--turns"),
        think=parse_seconds(think, "--think"),
    )


def _arrivals(
    asked: Synthetic | Trace,
    concurrency: int | None,
    rate: str | None,
    kind: ArrivalKind | None,
    burstiness: float,
    duration: str | None,
    *,
    open_loop: bool,
) -> Closed | Open:
    """Open loop with a rate, a law or a trace's times; closed loop with a concurrency or with nothing said."""
    from headrace.bench.plan import Closed, Open, Trace

    seconds = None if duration is None else parse_seconds(duration, "--duration")
    recorded = isinstance(asked, Trace)
    if concurrency is not None or not (open_loop or rate or kind or recorded):
        _refuse({"--rate": rate, "--arrivals": kind}, "is of an open loop, --concurrency of a closed one: choose")
        if open_loop:
            raise InvalidInput("needs an open loop; leave out --concurrency", field="--find-max-rate")
        return Closed(concurrency=concurrency or DEFAULT_CONCURRENCY, duration=seconds)
    law = kind.value if kind is not None else "trace" if recorded and rate is None else "poisson"
    if rate is None and open_loop and law != "trace":
        rate = FIRST_RATE
    rates = (None, None) if rate is None else _rates(rate)
    return Open(
        kind=law,  # type: ignore[arg-type]
        rate=rates[0],
        end_rate=rates[1],
        burstiness=burstiness,
        duration=seconds,
    )


def _rates(text: str) -> tuple[float, float | None]:
    try:
        rates = [float(part) for part in text.split(":")]
    except ValueError:
        rates = []
    if len(rates) not in (1, 2):
        raise InvalidInput(f"{text!r} is not a rate; write requests a second, such as 4 or 1:20", field="--rate")
    return rates[0], rates[1] if len(rates) == 2 else None


def _search(settings: Settings, rate: str | None, share: str, tolerance: str, limit: float | None) -> SearchSettings:
    from headrace.bench.serve import SearchSettings

    if not settings.slo:
        raise InvalidInput("needs a service level: give --slo ttft=500ms,tpot=50ms", field="--find-max-rate")
    return SearchSettings(
        start=_rates(rate or FIRST_RATE)[0],
        target_share=parse_share(share, "--target-share"),
        tolerance=parse_share(tolerance, "--tolerance"),
        limit=limit,
    )


def _headers(given: list[str], api_key: str | None) -> dict[str, str]:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not value.strip().isprintable():
            raise InvalidInput(f"{line!r} is not a header; write it like 'X-Name: value'", field="--header")
        headers[name] = value.strip()
    return headers


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"is not JSON: {error}", field="--body") from None
    if not isinstance(value, dict):
        raise InvalidInput("must be a JSON object", field="--body")
    return value
