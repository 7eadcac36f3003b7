"""``headrace bench serve``: put a load on a server and tell how it bears it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.units import parse_share
from headrace.errors import InvalidInput

if TYPE_CHECKING:
    from headrace.bench.load.target import Question
    from headrace.bench.plan import Closed, Open, Synthetic, Trace
    from headrace.bench.results.schema import Document
    from headrace.bench.serve import SearchSettings, Settings

EXIT_NOT_CERTIFIED = 3
DEFAULT_CONCURRENCY = "8"
ROUNDS_AGAINST = 3
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


FRAMING = (
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "x-request-id",
    "accept-encoding",
)
RESERVED = ("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options")
# What the parts that read them call some options.
OPTIONS = {
    field: "--" + field.replace("_", "-")
    for field in (
        *("arrivals", "burstiness", "concurrency", "cooldown", "duration", "limit", "prompt_tokens", "rate", "scale"),
        *("seed", "shrink", "slo", "think", "tokenizer", "turns", "warmup"),
    )
} | {"end_rate": "--rate", "sessions": "--requests", "url": "URL"}
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
        int | None,
        typer.Option(
            min=1, help="How many; by default 200, or 10 by --concurrency, or what --duration takes. Not for traces."
        ),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="LAW", help="Of a prompt or user message: 512, uniform:A:B, lognormal:MEDIAN:S, ... Default 256."
        ),
    ] = None,
    output_tokens: Annotated[str | None, typer.Option(metavar="LAW", help="Of an answer. Default 64.")] = None,
    system_prompts: Annotated[
        int | None, typer.Option(min=1, help="shared-prefix: how many system prompts. Default 4.")
    ] = None,
    system_tokens: Annotated[
        str | None, typer.Option(metavar="LAW", help="shared-prefix: their length. Default 512.")
    ] = None,
    turns: Annotated[
        str | None, typer.Option(metavar="LAW", help="shared-prefix, chat: turns of a session. Default 3.")
    ] = None,
    think: Annotated[
        str | None, typer.Option(metavar="TIME", help="shared-prefix, chat: between an answer and the next turn.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(exists=True, help="File (agents: or folder) of the trace.")] = None,
    scale: Annotated[float | None, typer.Option(help="Traces: factor of all times; 0.5 replays twice as fast.")] = None,
    shrink: Annotated[float | None, typer.Option(help="Traces: divisor of all lengths.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Traces: the first so many requests (agents: files).")
    ] = None,
    # --- the arrivals
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N,...", help="Closed loop: so many sessions at a time. The default, with 8. A list is a sweep."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R|A:B|R,R,...", help="Open loop: requests/s, or a ramp from A to B. A list is a sweep."),
    ] = None,
    arrivals: Annotated[
        ArrivalKind | None, typer.Option(help="Open loop: law of the gaps; poisson, or the trace's own times.")
    ] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="gamma: its shape; 1 is poisson, below 1 burstier, above 1 more even.")
    ] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help="Begin no session after this time.")] = None,
    # --- the measurement
    warmup: Annotated[str, typer.Option(metavar="SHARE|TIME", help="Does not count at the beginning.")] = "10%",
    cooldown: Annotated[str, typer.Option(metavar="SHARE|TIME", help="Does not count at the end.")] = "10%",
    slo: Annotated[
        str | None, typer.Option(metavar="ttft=500ms,tpot=50ms", help="Service level: bounds of ttft, tpot, itl, e2e.")
    ] = None,
    find_max_rate: Annotated[
        bool, typer.Option("--find-max-rate", help="Search the highest rate that meets --slo, from --rate on.")
    ] = False,
    target_share: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Its requests that must meet --slo. Default 99%.")
    ] = None,
    tolerance: Annotated[str | None, typer.Option(metavar="SHARE", help="How exact it is. Default 3%.")] = None,
    max_rate: Annotated[float | None, typer.Option(min=0, help="It tries no higher rate.")] = None,
    against: Annotated[str | None, typer.Option(metavar="URL", help="Measure another server in turn.")] = None,
    against_model: Annotated[str | None, typer.Option(help="Its model; by default its first.")] = None,
    against_api_key: Annotated[str | None, typer.Option(help="Its key; it is shown no other.")] = None,
    against_header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Header for it; may be repeated.")
    ] = None,
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
    was due. With a list of loads: one after the other, as a curve of throughput against latency. With --find-max-rate:
    the highest rate at which enough requests meet --slo. With --against: two servers in alternation. Exit status 3:
    measured, but the generator was the bottleneck or the run was cut short.

    Definitions: docs/measures.md. Workloads: docs/workloads.md.
    """
    from headrace.bench.sweep import check_sweep
    from headrace.cli.bench_output import check_targets

    with _named_as_options():
        check_targets(json_target, html)
        for name, said in {"--model": model, "--against-model": against_model, "--salt": salt}.items():
            if said is not None and not (said and said.isprintable()):
                raise InvalidInput("must be printable text", field=name)
        drawn = {"--requests": requests, "--prompt-tokens": prompt_tokens, "--output-tokens": output_tokens}
        several = {"--turns": turns, "--think": think}
        systems = {"--system-prompts": system_prompts, "--system-tokens": system_tokens}
        recorded = {"--trace": trace, "--scale": scale, "--shrink": shrink, "--limit": limit}
        _refuse_strangers(workload, drawn, several, systems, recorded)
        searching = {"--target-share": target_share, "--tolerance": tolerance, "--max-rate": max_rate}
        another = {"--against-model": against_model, "--against-api-key": against_api_key}
        if not find_max_rate:
            _refuse(searching, "is of --find-max-rate")
        if against is None:
            _refuse({**another, "--against-header": against_header}, "is of --against")
        if api is Api.chat and prompts is Prompts.tokens:
            raise InvalidInput("a chat is sent as text; leave it out, or use --api completions", field="--prompts")
        asked = (
            _trace(workload, trace, scale, shrink, limit)
            if workload in TRACES
            else _synthetic(
                workload, requests, prompt_tokens, output_tokens, system_prompts, system_tokens, turns, think
            )
        )
        loads = [
            _arrivals(asked, many, often, arrivals, burstiness, duration, open_loop=find_max_rate)
            for many in _listed(concurrency)
            for often in _listed(rate)
        ]
        headers = _headers(header, api_key, "--")
        question = _question(api, prompts, model, headers, body, ignore_eos=ignore_eos)
        settings = _settings(asked, loads[0], seed, question, tokenizer, warmup, cooldown, slo, devices, timeout, salt)
        search = None
        if len(loads) > 1:
            _refuse({"--rounds": rounds}, "does not go with a list of loads: each is measured once")
            if find_max_rate:
                raise InvalidInput("begins at one rate and finds the others; give one", field="--rate")
            check_sweep(loads)
        if find_max_rate:
            _refuse({"--against": against, "--rounds": rounds}, "does not go with --find-max-rate")
            search = _search(settings, rate, target_share, tolerance, max_rate)
        other = None
        if against is not None:
            headers = _headers(against_header, against_api_key, "--against-")
            other = against, _other(settings, against_model, headers)
        _measure((url, settings), other, search, loads, rounds, json_target, html)


def _question(
    api: Api, prompts: Prompts, model: str | None, headers: dict[str, str], body: str | None, *, ignore_eos: bool
) -> Question:
    from headrace.bench.load.target import Question

    return Question(
        api=api.value,
        prompts=prompts.value,
        ignore_eos=ignore_eos,
        model=model,
        headers=headers,
        extra_body=_object(body),
    )


def _settings(
    workload: Synthetic | Trace,
    arrivals: Closed | Open,
    seed: int,
    question: Question,
    tokenizer: Path | None,
    warmup: str,
    cooldown: str,
    slo: str | None,
    devices: int,
    timeout: str,
    salt: str | None,
) -> Settings:
    from headrace.bench.plan import Load
    from headrace.bench.results.measure import parse_margin
    from headrace.bench.results.slo import parse_duration, parse_slo
    from headrace.bench.serve import Settings

    return Settings(
        load=Load(workload=workload, arrivals=arrivals, seed=seed),
        question=question,
        tokenizer=tokenizer,
        warmup=parse_margin(warmup, "warmup"),
        cooldown=parse_margin(cooldown, "cooldown"),
        slo={} if slo is None else parse_slo(slo),
        devices=devices,
        timeout_seconds=_positive(parse_duration(timeout, "--timeout"), "--timeout"),
        salt=secrets.token_hex(4) if salt is None else salt,
    )


def _measure(
    first: tuple[str, Settings],
    second: tuple[str, Settings] | None,
    search: SearchSettings | None,
    loads: Sequence[Closed | Open],
    rounds: int | None,
    json_target: str | None,
    html: Path | None,
) -> None:
    from headrace.bench.serve import Bench, find_max_rate, measure, measure_against, undisturbed
    from headrace.bench.sweep import sweep, sweep_against
    from headrace.cli.bench_output import write_outputs
    from headrace.cli.bench_progress import progress

    with progress() as show:
        bench = Bench(*first, show)
        if search is not None:
            found: Document = find_max_rate(bench, search)
        elif second is not None:
            another = Bench(*second, show)
            if len(loads) > 1:
                found = sweep_against(bench, another, loads)
            else:
                found = measure_against(bench, another, rounds or ROUNDS_AGAINST)
        elif len(loads) > 1:
            found = sweep(bench, loads)
        else:
            found = measure(bench, rounds or 1)
    with undisturbed():
        certified = write_outputs(found, json_target, html)
    if not certified or bench.interrupted:
        raise typer.Exit(EXIT_NOT_CERTIFIED)


@contextmanager
def _named_as_options() -> Iterator[None]:
    """Errors name the option that they are about."""
    try:
        yield
    except InvalidInput as error:
        option = OPTIONS.get(error.field or "")
        raise (error if option is None else error.renamed(option)) from None


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(why, field=name)


def _refuse_strangers(
    kind: WorkloadKind,
    drawn: Mapping[str, object],
    several: Mapping[str, object],
    systems: Mapping[str, object],
    recorded: Mapping[str, object],
) -> None:
    """Refuse options of other workloads: ignored ones would mislead."""
    if kind in TRACES:
        _refuse({**drawn, **several, **systems}, f"does not go with {kind}: a trace says it; see --shrink and --limit")
        return
    _refuse(recorded, "is of the workloads mooncake, azure and agents")
    if kind is not WorkloadKind.shared_prefix:
        _refuse(systems, "is of the workload shared-prefix")
    if kind is WorkloadKind.random:
        _refuse(several, "is of the workloads shared-prefix and chat")


def _trace(
    kind: WorkloadKind, path: Path | None, scale: float | None, shrink: float | None, limit: int | None
) -> Trace:
    from headrace.bench.plan import Trace
    from headrace.bench.workload.traces import TraceOptions

    if path is None:
        raise InvalidInput(f"the workload {kind} replays a file: name it", field="--trace")
    options = TraceOptions(scale=1.0 if scale is None else scale, shrink=1.0 if shrink is None else shrink, limit=limit)
    return Trace(kind=kind.value, path=path, options=options)


def _synthetic(
    kind: WorkloadKind,
    requests: int | None,
    prompt: str | None,
    output: str | None,
    system_prompts: int | None,
    system: str | None,
    turns: str | None,
    think: str | None,
) -> Synthetic:
    from headrace.bench.plan import Synthetic
    from headrace.bench.results.slo import parse_duration
    from headrace.bench.workload.lengths import parse_lengths

    return Synthetic(
        kind=kind.value,  # type: ignore[arg-type]
        requests=requests,
        prompt=parse_lengths(prompt or "256", "--prompt-tokens"),
        output=parse_lengths(output or "64", "--output-tokens"),
        system_prompts=system_prompts or 4,
        system=parse_lengths(system or "512", "--system-tokens"),
        turns=parse_lengths(turns or "3", "--turns"),
        think=parse_duration(think or "0s", "--think"),
    )


def _listed(loads: str | None) -> Sequence[str | None]:
    """The loads of a sweep; a single one, or that none was given, as it is."""
    return [None] if loads is None else loads.split(",")


def _arrivals(
    asked: Synthetic | Trace,
    concurrency: str | None,
    rate: str | None,
    kind: ArrivalKind | None,
    burstiness: float | None,
    duration: str | None,
    *,
    open_loop: bool,
) -> Closed | Open:
    """Open loop with a rate, a law or a trace's times; closed loop with a concurrency or with nothing said."""
    from headrace.bench.plan import Closed, Open, Trace
    from headrace.bench.results.slo import parse_duration

    seconds = None if duration is None else parse_duration(duration, "--duration")
    recorded = isinstance(asked, Trace)
    if kind is not ArrivalKind.gamma:
        _refuse({"--burstiness": burstiness}, "is of --arrivals gamma")
    if concurrency is not None or not (open_loop or rate is not None or kind or recorded):
        _refuse({"--rate": rate, "--arrivals": kind}, "is of an open loop, --concurrency of a closed one: choose")
        if open_loop:
            raise InvalidInput("needs an open loop; leave out --concurrency", field="--find-max-rate")
        return Closed(
            concurrency=_sessions(DEFAULT_CONCURRENCY if concurrency is None else concurrency), duration=seconds
        )
    law = kind.value if kind is not None else "trace" if recorded and rate is None else "poisson"
    if rate is None and open_loop and law != "trace":
        rate = FIRST_RATE
    first, last = (None, None) if rate is None else _rates(rate)
    return Open(
        kind=law,  # type: ignore[arg-type]
        rate=first,
        end_rate=last,
        burstiness=1.0 if burstiness is None else burstiness,
        duration=seconds,
    )


def _sessions(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise InvalidInput(f"{text!r} is not how many sessions at a time, such as 8", field="--concurrency")
    return int(text)


def _rates(text: str) -> tuple[float, float | None]:
    try:
        rates = [float(part) for part in text.split(":")]
    except ValueError:
        rates = []
    if len(rates) not in (1, 2):
        raise InvalidInput(f"{text!r} is not a rate; write requests a second, such as 4 or 1:20", field="--rate")
    return rates[0], rates[1] if len(rates) == 2 else None


def _positive(seconds: float, option: str) -> float:
    if seconds <= 0:
        raise InvalidInput("must be above 0", field=option)
    return seconds


def _search(
    settings: Settings, rate: str | None, share: str | None, tolerance: str | None, limit: float | None
) -> SearchSettings:
    from headrace.bench.results.search import LEAST_TOLERANCE
    from headrace.bench.serve import SearchSettings

    if not settings.slo:
        raise InvalidInput("needs a service level: give --slo ttft=500ms,tpot=50ms", field="--find-max-rate")
    width = parse_share(tolerance or "3%", "--tolerance")
    if width < LEAST_TOLERANCE:
        raise InvalidInput(f"must be at least {LEAST_TOLERANCE:.1%}: no search is finer", field="--tolerance")
    return SearchSettings(
        start=_rates(rate or FIRST_RATE)[0],
        target_share=parse_share(share or "99%", "--target-share"),
        tolerance=width,
        limit=limit,
    )


def _other(settings: Settings, model: str | None, headers: dict[str, str]) -> Settings:
    """How to measure the second server: the same lengths and moments, its own words, model and secrets."""
    from msgspec.structs import replace

    question = replace(settings.question, model=model, headers=headers)
    return replace(settings, question=question, salt=f"{settings.salt} B")


def _headers(given: list[str] | None, api_key: str | None, prefix: str) -> dict[str, str]:
    headers = {}
    for line in [*(given or []), *([f"Authorization: Bearer {api_key}"] if api_key else [])]:
        name, colon, value = line.partition(":")
        value = value.strip()
        if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or not _is_plain(value):
            if api_key is not None and line.endswith(api_key):
                raise InvalidInput("must be printable ASCII text", field=f"{prefix}api-key")
            raise InvalidInput(f"{line!r} is not a header; write it like 'X-Name: value'", field=f"{prefix}header")
        if name.lower() in FRAMING:
            raise InvalidInput(f"{name} is for this program to say", field=f"{prefix}header")
        headers[name] = value
    return headers


def _is_plain(value: str) -> bool:
    return bool(value) and value.isascii() and value.isprintable()


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # no NaN, no half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", field="--body") from None
    if not isinstance(value, dict):
        raise InvalidInput("must be a JSON object", field="--body")
    for name in RESERVED:
        if name in value:
            raise InvalidInput(f"{name} is for this program to say", field="--body")
    return value
