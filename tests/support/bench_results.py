"""Results of a simulated server, for tests of whatever reads them."""

import heapq

import numpy as np
from msgspec.structs import replace

from headrace.bench.results.certify import generator
from headrace.bench.results.compare import compare
from headrace.bench.results.measure import parse_margin, summarize, window
from headrace.bench.results.result_file import to_requests
from headrace.bench.results.samples import UNKNOWN, GeneratorLog, Samples
from headrace.bench.results.schema import (
    RESULT_SCHEMA,
    Certificate,
    Plan,
    Point,
    Result,
    Round,
    Search,
    Sweep,
    Swept,
    Target,
)
from headrace.bench.results.search import outcome
from headrace.bench.results.sweeps import compare_sweeps

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;${x} {{y}} %{z} <!-- @ttft"
SLO = {"ttft": 0.5, "tpot": 0.05}


def simulate(
    *,
    requests=400,
    rate=8.0,
    slots=16,
    output=48,
    gap=0.02,
    shared=0.6,
    stall=None,
    failures=0.0,
    queue=True,
    counts=True,
    seed=0,
):
    """Samples of a server of ``slots`` that serves first come, first served, under Poisson arrivals.

    Prefill takes time by the tokens that are not cached; a gap between tokens grows with the slots in use; nothing
    comes out while the server stalls.

    Args:
        rate: Requests a second.
        output: Mean of the output tokens.
        gap: Seconds between two tokens of a lone request.
        shared: Share of a prompt that the cache holds.
        stall: Begin and seconds of one stall.
        failures: Share of the requests that are refused or cut off.
        queue: The server tells how long a request queued.
        counts: The server tells token counts.
    """
    random = np.random.default_rng(seed)
    due = np.cumsum(random.exponential(1 / rate, requests))
    sent = due + random.exponential(0.0004, requests)
    prompt = np.rint(random.lognormal(5.5, 0.5, requests)).astype(np.int64) + 16
    planned = np.clip(np.rint(random.lognormal(np.log(output), 0.4, requests)), 1, None).astype(np.int64)
    cached = (prompt * shared * random.uniform(0.7, 1.1, requests)).astype(np.int64)
    error = [
        "" if failed > failures else str(random.choice(["http 429", "disconnected"], p=[0.7, 0.3]))
        for failed in random.uniform(size=requests)
    ]
    free = [0.0] * slots
    busy = []
    begun, end, events = np.full(requests, np.nan), np.full(requests, np.nan), []
    for row in range(requests):
        if error[row] == "http 429":
            end[row] = sent[row] + 0.002
            events.append(np.empty(0))
            continue
        begun[row] = max(sent[row], heapq.heappop(free))
        while busy and busy[0] <= begun[row]:
            heapq.heappop(busy)
        first = begun[row] + 0.015 + (prompt[row] - cached[row]) / 6000
        steps = gap * (1 + 0.8 * len(busy) / slots) * random.lognormal(0, 0.15, planned[row] - 1)
        times = first + np.concatenate([[0.0], np.cumsum(steps)])
        if stall is not None:
            times[times >= stall[0]] += max(0.0, stall[1] - max(0.0, begun[row] - stall[0])) * (begun[row] < sum(stall))
        if error[row]:
            times = times[: max(1, len(times) // 2)]
        events.append(times)
        end[row] = times[-1] + 0.0005
        heapq.heappush(free, end[row])
        heapq.heappush(busy, end[row])
    unknown = np.full(requests, UNKNOWN)
    answered = np.array([kind == "" for kind in error])
    return Samples(
        session=np.arange(requests) // 4,
        turn=np.arange(requests) % 4,
        due=due,
        sent=sent,
        end=end,
        planned_prompt=prompt,
        planned_output=planned,
        prompt_tokens=np.where(answered, prompt, UNKNOWN) if counts else unknown,
        output_tokens=np.where(answered, planned, UNKNOWN) if counts else unknown,
        cached_tokens=np.where(answered, cached, UNKNOWN) if counts else unknown,
        queue=np.where(answered, begun - sent, np.nan) if queue else np.full(requests, np.nan),
        error=tuple(error),
        event_times=np.concatenate(events) if events else np.empty(0),
        event_offsets=np.concatenate([[0], np.cumsum([len(times) for times in events])]).astype(np.int64),
    )


def generator_log(samples, seed=0):
    wall = float(np.nanmax(samples.end, initial=1.0))
    lag = np.random.default_rng(seed).exponential(0.0003, 500)
    return GeneratorLog(wall=wall, cpu=0.12 * wall, loop_lag=lag, connections=32, resent=0)


def as_round(samples, *, rate=8.0, slo=SLO, reasons=(), devices=1, margins=("10%", "5%")):
    """A round of these samples; with ``reasons`` it is not certified."""
    span = window(samples, parse_margin(margins[0], "warmup"), parse_margin(margins[1], "cooldown"))
    log = generator_log(samples)
    return Round(
        started="2026-11-29T20:55:12+00:00",
        rate=rate,
        summary=summarize(samples, span, slo, devices),
        generator=generator(samples, log, span),
        certificate=Certificate(not reasons, list(reasons)),
        requests=to_requests(samples),
        messages={
            kind: f"the first {kind}: too many requests, the queue is full; try again later"
            for kind in sorted(set(samples.error) - {""})
        },
    )


def as_result(rounds, *, search=None, model="SmolLM2-135M-Instruct", server="llama-server b7205", port=8080, devices=1):
    return Result(
        schema=RESULT_SCHEMA,
        version="0.1.0",
        machine={"processor": "AMD EPYC 9B14", "cores": 2, "system": "Linux 6.8"},
        target=Target(
            url=f"http://127.0.0.1:{port}",
            model=model,
            api="completions",
            prompts="tokens",
            server=server,
            context_length=2048,
        ),
        plan=Plan(
            workload="shared-prefix",
            parameters={"system_prompts": 4, "system_tokens": 512, "turns": 4, "prompt_tokens": "64", "think": None},
            sessions=100,
            requests=400,
            skipped={"longer than the context": 3},
            ideal_cached_share=0.74,
            arrivals="poisson",
            arrival_parameters={"rate": 8.0},
            seed=0,
            warmup="10%",
            cooldown="5%",
            devices=devices,
        ),
        rounds=rounds,
        search=search,
    )


def result(**how):
    """One round on a server that stalls and fails now and then."""
    return as_result([as_round(simulate(**{"stall": (20.0, 2.0), "failures": 0.02, **how}))])


def search_result(rates=(4, 8, 6, 5, 5.5, 5.5, 6), seconds=60, **how):
    """A search that tried these rates."""
    rounds, points = [], []
    for number, rate in enumerate(rates):
        samples = simulate(requests=max(20, int(rate * seconds)), rate=rate, seed=number, **how)
        rounds.append(as_round(samples, rate=float(rate)))
        points.append(Point(float(rate), number, rounds[-1].summary.goodput.share.value >= 0.99))
    found = outcome([(point.rate, point.met) for point in points])
    search = Search(
        target_share=0.99, tolerance=0.05, max_rate=found.max_rate, failed_rate=found.failed_rate, points=points
    )
    return as_result(rounds, search=search)


def sweep_result(rates=(2, 4, 8, 16), seconds=30, reasons=(), **how):
    """A sweep over these rates; with ``reasons`` its last round is not certified."""
    rounds = []
    for number, rate in enumerate(rates):
        samples = simulate(requests=max(20, int(rate * seconds)), rate=rate, **how)
        rounds.append(as_round(samples, rate=float(rate), reasons=reasons if number == len(rates) - 1 else ()))
    return replace(as_result(rounds), sweep=Sweep(over="rate", loads=[float(rate) for rate in rates]))


def sweeps(count=3, **how):
    """So many sweeps, each of a server with longer gaps than the last."""
    found = [sweep_result(gap=0.015 * (1 + number), seed=number, **how) for number in range(count)]
    return compare_sweeps([Swept(f"server {number}", each) for number, each in enumerate(found)])


def comparison(rounds=3, slower=1.025, failures=0.01):
    """Two servers under the same arrivals, the second with longer gaps and now and then an error."""
    first = [as_round(simulate(seed=seed)) for seed in range(rounds)]
    second = [as_round(simulate(seed=seed, gap=0.02 * slower, failures=failures)) for seed in range(rounds)]
    return compare(as_result(first, server="headrace 0.1.0", port=8000), as_result(second))


def hostile_result():
    """Two rounds in which every text that comes from outside is markup."""
    plain = result(failures=0.1)
    names = {HOSTILE: HOSTILE}
    first = plain.rounds[0]
    bad = replace(
        first,
        started=HOSTILE,
        summary=replace(first.summary, errors={HOSTILE: 3}),
        requests=replace(first.requests, error=[kind and HOSTILE for kind in first.requests.error]),
        certificate=Certificate(certified=False, reasons=[HOSTILE]),
        messages=names,
    )
    target = replace(plain.target, model=HOSTILE, url=HOSTILE, server=HOSTILE)
    plan = replace(
        plain.plan,
        workload=HOSTILE,
        arrivals=HOSTILE,
        parameters=names,
        arrival_parameters=names,
        skipped={HOSTILE: 1},
    )
    return replace(plain, version=HOSTILE, machine=names, target=target, plan=plan, rounds=[bad, bad])
