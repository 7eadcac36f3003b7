"""The result file: what ``--json`` writes and ``bench compare`` reads. docs/measures.md documents every field.

Durations and moments are seconds, rates are per second. A new field with a default keeps the version; anything else
raises it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

RESULT_SCHEMA = "headrace.bench.serve/1"
COMPARISON_SCHEMA = "headrace.bench.compare/1"
SWEEPS_SCHEMA = "headrace.bench.sweeps/1"


Over = Literal["concurrency", "rate"]  # what makes the load of a sweep


class Estimate(msgspec.Struct, frozen=True):
    """A figure and its 95 % confidence interval; null ends where the sample is too small to give one."""

    value: float
    low: float | None = None
    high: float | None = None


class Distribution(msgspec.Struct, frozen=True):
    """A latency over many requests or gaps. ``percentiles`` has ``p50``, ``p90``, ``p95``, ``p99``."""

    count: int
    mean: Estimate
    minimum: float
    maximum: float
    percentiles: dict[str, Estimate]


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met the service level.

    Attributes:
        slo: Bound by measure (``ttft``, ``tpot``, ``itl``, ``e2e``), seconds.
        met: Requests that met all of them, of those due in the window.
        share: Their share of all that were due in the window, failed ones included.
        rate: Such requests a second.
    """

    slo: dict[str, float]
    met: int
    share: Estimate
    rate: Estimate


class Lengths(msgspec.Struct, frozen=True):
    """Whether what was asked for was what was computed, over the requests that succeeded.

    Attributes:
        planned_prompt_tokens: Sum of what was sent, where it is known beforehand.
        prompt_tokens: Sum of what the server counted.
        prompt_differs: Requests whose prompt the server counted otherwise.
        output_tokens: Sum of what the server counted.
        output_differs: Requests that gave another number of tokens than was asked for.
        output_uncounted: Requests whose output tokens the server did not tell.
        tokens_per_event: Output tokens by stream event; above 1 the gaps between tokens are those between groups.
    """

    planned_prompt_tokens: int
    prompt_tokens: int
    prompt_differs: int
    output_tokens: int
    output_differs: int
    output_uncounted: int
    tokens_per_event: float | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured inside the window.

    Attributes:
        window: Begin and end, seconds since the round began. A request counts if it was due inside.
        requests: Due inside the window.
        succeeded: Of these, answered to the end.
        errors: Kind to count, of these.
        latency: ``ttft``, ``tpot``, ``itl``, ``e2e``, ``queue`` (where the server tells it), each over what succeeded.
        rates: ``requests_due``, ``requests_completed``, ``input_tokens``, ``output_tokens``, ``total_tokens``,
            ``cached_tokens``; per second of the window.
        per_device: The same, divided by the number of devices.
        cached_share: Cached tokens by prompt tokens; null where the server does not tell them.
        goodput: Where a service level was given.
        lengths: Planned beside counted.
        user_tokens: Output tokens a second that a user sees, 1 / p50 of ``tpot``; null where that is not known or 0.
    """

    window: tuple[float, float]
    requests: int
    succeeded: int
    errors: dict[str, int]
    latency: dict[str, Distribution]
    rates: dict[str, Estimate]
    per_device: dict[str, float]
    cached_share: float | None
    goodput: Goodput | None
    lengths: Lengths
    user_tokens: Estimate | None = None


class Lag(msgspec.Struct, frozen=True):
    """How late the generator was, seconds."""

    p50: float
    p99: float
    maximum: float


class Generator(msgspec.Struct, frozen=True):
    """The generator itself.

    Attributes:
        cpu_cores: Processor time by wall time: how many cores it kept busy.
        send_lag: From due to written.
        loop_lag: How late its event loop served a timer, which is also how late it may have seen an event.
        connections: Connections opened.
        resent: Requests sent twice; see docs/bench-serve.md.
    """

    cpu_cores: float
    send_lag: Lag
    loop_lag: Lag
    connections: int
    resent: int


class Certificate(msgspec.Struct, frozen=True):
    """Whether the figures are the server's: ``reasons`` says why not, one sentence each."""

    certified: bool
    reasons: list[str]


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Every request of the round, as columns; rows in the order due. Null: never happened, or not told.

    Attributes:
        session: Number of its session.
        turn: Number of the turn in it.
        due: When it was to be sent.
        sent: When it was.
        first: When its first output came.
        end: When its stream ended.
        gaps: Seconds between its output events, in order.
        planned_prompt: Prompt tokens sent.
        planned_output: Tokens asked for.
        prompt_tokens: As the server counts.
        output_tokens: As the server counts.
        cached_tokens: As the server counts.
        queue: Seconds in the server's queue, as it says.
        error: Kind of error; empty if none.
    """

    session: list[int]
    turn: list[int]
    due: list[float]
    sent: list[float | None]
    first: list[float | None]
    end: list[float | None]
    gaps: list[list[float]]
    planned_prompt: list[int | None]
    planned_output: list[int]
    prompt_tokens: list[int | None]
    output_tokens: list[int | None]
    cached_tokens: list[int | None]
    queue: list[float | None]
    error: list[str]


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of load.

    Attributes:
        started: Moment, ISO 8601 with zone.
        rate: Requests a second that were asked for; null for closed loops, traces and ramps.
        summary: What was measured.
        generator: The generator itself.
        certificate: Whether the figures are the server's.
        requests: Every request.
        messages: Kind of error to what was said the first time it happened.
    """

    started: str
    rate: float | None
    summary: Summary
    generator: Generator
    certificate: Certificate
    requests: Requests
    messages: dict[str, str] = {}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The server.

    Attributes:
        url: Where it listens.
        model: The name asked for.
        api: Which endpoint.
        prompts: Sent as token ids, or as text.
        server: What it calls itself, or null.
        context_length: Most tokens of a sequence, or null if it does not tell.
        notes: What it does not take, one sentence each.
    """

    url: str
    model: str
    api: Literal["completions", "chat"]
    prompts: Literal["tokens", "text"]
    server: str | None
    context_length: int | None
    notes: list[str] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The load that was asked for.

    Attributes:
        workload: Its name.
        parameters: What the workload was made from.
        sessions: How many.
        requests: How many, over all sessions.
        skipped: Requests left out of a trace: reason to count.
        ideal_cached_share: Share of the prompt tokens that a prefix cache without limits would find.
        arrivals: ``closed``, ``constant``, ``poisson``, ``gamma`` or ``trace``.
        arrival_parameters: Concurrency, rate, burstiness, time scale.
        seed: Of every draw.
        warmup: Seconds or share at the beginning that do not count, as given.
        cooldown: The same at the end.
        devices: Devices of the server.
        salt: What the words were drawn from beside the seed; another one gives other words of the same lengths.
    """

    workload: str
    parameters: dict[str, str | int | float | None]
    sessions: int
    requests: int
    skipped: dict[str, int]
    ideal_cached_share: float
    arrivals: str
    arrival_parameters: dict[str, str | int | float | None]
    seed: int
    warmup: str
    cooldown: str
    devices: int
    salt: str = ""


class Point(msgspec.Struct, frozen=True):
    """A rate that was tried: index of its round, and whether enough requests met the service level."""

    rate: float
    round: int
    met: bool


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the highest rate.

    Attributes:
        target_share: Share of requests that must meet the service level.
        tolerance: Relative width at which the search stops.
        max_rate: Highest rate that met it, requests a second; null if none did.
        failed_rate: Lowest rate that did not; null if none was seen to fail: the true maximum may be higher.
        points: Every rate tried, in the order tried.
    """

    target_share: float
    tolerance: float
    max_rate: float | None
    failed_rate: float | None
    points: list[Point]


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """One load after the other, each for a round.

    Attributes:
        over: What makes the load: ``concurrency``, sessions at a time, or ``rate``, requests a second.
        loads: Of each round, ascending.
    """

    over: Over
    loads: list[float]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured of one server.

    Attributes:
        schema: ``RESULT_SCHEMA``.
        version: Of headrace.
        machine: Of the generator: processor, cores, system.
        target: The server.
        plan: The load.
        rounds: At least one.
        search: With ``--find-max-rate``; its rounds are the trials.
        sweep: With several loads; each is a round.
    """

    schema: str
    version: str
    machine: dict[str, str | int]
    target: Target
    plan: Plan
    rounds: list[Round]
    search: Search | None = None
    sweep: Sweep | None = None


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A measure of both servers.

    Attributes:
        measure: Such as ``ttft.p99`` or ``rates.output_tokens``.
        better: Which direction is better.
        a: Of the first.
        b: Of the second.
        ratio: First by second.
        verdict: ``a`` or ``b`` is better, or ``none``: no difference shown.
    """

    measure: str
    better: Literal["lower", "higher"]
    a: float
    b: float
    ratio: Estimate
    verdict: Literal["a", "b", "none"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two results, measure by measure.

    Attributes:
        schema: ``COMPARISON_SCHEMA``.
        method: How the intervals were found, one sentence.
        warnings: Why the two may not be comparable: other workloads, uncertified rounds.
        ratios: One a measure.
        a: The first result.
        b: The second.
    """

    schema: str
    method: str
    warnings: list[str]
    ratios: list[Ratio]
    a: Result
    b: Result


class Swept(msgspec.Struct, frozen=True):
    """One of several sweeps: what to call it, and the result."""

    name: str
    result: Result


class Sweeps(msgspec.Struct, frozen=True, kw_only=True):
    """Sweeps beside each other: one server's settings, or several servers.

    Attributes:
        schema: ``SWEEPS_SCHEMA``.
        warnings: Why they may not be comparable.
        sweeps: At least two.
    """

    schema: str
    warnings: list[str]
    sweeps: list[Swept]


Document = Result | Comparison | Sweeps


def results_of(document: Document) -> list[Result]:
    """The results that a document holds."""
    match document:
        case Result():
            return [document]
        case Comparison():
            return [document.a, document.b]
        case Sweeps():
            return [each.result for each in document.sweeps]
