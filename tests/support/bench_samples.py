"""Samples for tests of the load generator's results: by hand, at random, and as a strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from headrace.bench.results.certify import certify, generator
from headrace.bench.results.measure import Window, summarize
from headrace.bench.results.result_file import to_requests
from headrace.bench.results.samples import UNKNOWN, GeneratorLog, Samples
from headrace.bench.results.schema import RESULT_SCHEMA, Plan, Result, Round, Target


@dataclass
class Row:
    """A request; what is not given never happened, or is not known."""

    due: float = 0.0
    sent: float = math.nan
    end: float = math.nan
    events: list[float] = field(default_factory=list)
    output_tokens: int = UNKNOWN
    prompt_tokens: int = UNKNOWN
    cached_tokens: int = UNKNOWN
    planned_prompt: int = UNKNOWN
    planned_output: int = 1
    queue: float = math.nan
    error: str = ""


def gather(rows: list[Row]) -> Samples:
    def ints(name):
        return np.array([getattr(row, name) for row in rows], np.int64)

    def floats(name):
        return np.array([getattr(row, name) for row in rows], np.float64)

    return Samples(
        session=np.arange(len(rows)),
        turn=np.zeros(len(rows), np.int64),
        due=floats("due"),
        sent=floats("sent"),
        end=floats("end"),
        planned_prompt=ints("planned_prompt"),
        planned_output=ints("planned_output"),
        prompt_tokens=ints("prompt_tokens"),
        output_tokens=ints("output_tokens"),
        cached_tokens=ints("cached_tokens"),
        queue=floats("queue"),
        error=tuple(row.error for row in rows),
        event_times=np.array([moment for row in rows for moment in row.events], np.float64),
        event_offsets=np.cumsum([0, *(len(row.events) for row in rows)]).astype(np.int64),
    )


def answered(due: float, ttft: float, gaps: list[float] = (), **given) -> Row:
    """A request that went well, one token an event."""
    events = [due + ttft]
    for gap in gaps:
        events.append(events[-1] + gap)
    counts = {"output_tokens": len(events), "planned_output": len(events), "prompt_tokens": 10, "planned_prompt": 10}
    return Row(due, due, **{"end": events[-1], "events": events, **counts, **given})


def random_samples(
    rng: np.random.Generator,
    requests: int,
    *,
    tokens: int = 8,
    ttft: float = 0.2,
    gap: float = 0.02,
    every: float = 0.1,
    correlation: float = 0.5,
    failed: float = 0.0,
) -> Samples:
    """A server whose latencies are lognormal and, from one request to the next, autoregressive."""
    slow = np.exp(0.4 * autoregressive(rng, requests, correlation))
    rows = []
    for index in range(requests):
        gaps = gap * slow[index] * rng.lognormal(0, 0.3, tokens - 1)
        row = answered(index * every, ttft * slow[index] * rng.lognormal(0, 0.2), list(gaps))
        row.cached_tokens = int(rng.integers(0, 8))
        if rng.random() < failed:
            row = Row(row.due, row.due, row.end, row.events[:2], error="disconnected", planned_output=tokens)
        rows.append(row)
    return gather(rows)


def autoregressive(rng: np.random.Generator, length: int, correlation: float) -> np.ndarray:
    """Standard normal values whose neighbours correlate so much."""
    noise = rng.normal(size=length) * math.sqrt(1 - correlation**2)
    values = np.empty(length)
    values[0] = rng.normal()
    for index in range(1, length):
        values[index] = correlation * values[index - 1] + noise[index]
    return values


def round_of(samples: Samples, slo: dict[str, float] | None = None, rate: float | None = None) -> Round:
    within = Window(0.0, float(samples.due[-1]) if len(samples) else 0.0)
    log = GeneratorLog(60.0, 6.0, np.full(1000, 0.0004), 8, 0)
    return Round(
        started="2026-01-01T00:00:00Z",
        rate=rate,
        summary=summarize(samples, within, slo),
        generator=generator(samples, log),
        certificate=certify(samples, log, within),
        requests=to_requests(samples),
    )


def result_of(rounds: list[Round], **given) -> Result:
    target = Target(
        url="http://127.0.0.1:8000",
        model="m",
        api="completions",
        prompts="tokens",
        server="headrace/0.1",
        context_length=2048,
    )
    plan = Plan(
        workload="fixed",
        parameters={"prompt": 10},
        sessions=8,
        requests=8,
        skipped={},
        ideal_cached_share=0.0,
        arrivals="poisson",
        arrival_parameters={"rate": 10.0},
        seed=0,
        warmup="0",
        cooldown="0",
        devices=1,
    )
    return Result(
        **{
            "schema": RESULT_SCHEMA,
            "version": "0.1.0",
            "machine": {"cores": 2},
            "target": target,
            "plan": plan,
            "rounds": rounds,
            **given,
        }
    )


@st.composite
def rows(draw):
    """Any request that the records allow: answered, failed at any stage, never sent, never ended."""
    step = st.floats(0, 3)
    count = st.integers(0, 40)
    told = st.one_of(st.just(UNKNOWN), count)
    row = Row(due=draw(step), error=draw(st.sampled_from(["", "", "", "timeout", "http 429"])))
    row.planned_prompt, row.planned_output = draw(told), draw(count)
    row.prompt_tokens, row.output_tokens, row.cached_tokens = draw(told), draw(told), draw(told)
    row.queue = draw(st.one_of(st.just(math.nan), step))
    last = row.due
    if draw(st.integers(0, 9)):
        last = row.sent = row.due + draw(step)
        for _ in range(draw(st.integers(0, 5))):
            last += draw(step)
            row.events.append(last)
    if draw(st.integers(0, 9)):
        row.end = last + draw(step)
    return row


def samples_of_any_kind(most: int = 12) -> st.SearchStrategy[Samples]:
    return st.lists(rows(), max_size=most).map(lambda found: gather(sorted(found, key=lambda row: row.due)))
