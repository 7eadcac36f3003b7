"""What the load generator promises, measured against servers whose behaviour is known: exactness, cost, the search."""

import time

import numpy as np
import pytest
from scripted_server import scripted, tokens_of
from service_law import Script, replay

from headrace.bench.load.collect import to_samples
from headrace.bench.load.compose import Composer
from headrace.bench.load.driver import run_round
from headrace.bench.load.pace import ClosedLoop
from headrace.bench.load.target import Inquirer, Question, inquire
from headrace.bench.plan import Load, Open, Synthetic, arrange
from headrace.bench.results.certify import certify
from headrace.bench.results.measure import parse_margin, summarize, window
from headrace.bench.serve import Bench, SearchSettings, Settings, at_rate, find_max_rate
from headrace.bench.workload.lengths import parse_lengths
from headrace.bench.workload.prompts import build_lexicon

pytestmark = pytest.mark.bars
PERCENTILES = (50, 90, 95, 99)


class Silent:
    def begin(self, title):
        pass

    def snapshot(self, snapshot):
        pass

    def end(self, found):
        pass


def load_of(requests, rate, output="20", kind="poisson", seed=1):
    one = parse_lengths("1", "system")
    workload = Synthetic(
        kind="random",
        requests=requests,
        prompt=parse_lengths("32", "prompt"),
        output=parse_lengths(output, "output"),
        system_prompts=1,
        system=one,
        turns=one,
        think=0.0,
    )
    return Load(workload=workload, arrivals=Open(kind=kind, rate=rate), seed=seed)


def measured(url, load, schedule=None, watch=lambda snapshot: None):
    inquirer = Inquirer(url, {})
    lexicon = build_lexicon(tokens_of)
    server = inquire(inquirer, Question(), inquirer.model(None), lexicon)
    inquirer.close()
    arranged = arrange(load, None)
    composer = Composer(server, lexicon, 0, "0")
    outcome = run_round(
        composer, arranged.workload.sessions, schedule or arranged.schedule, timeout_seconds=60, watch=watch
    )
    samples = to_samples(outcome.exchanges, outcome.zero)
    inside = window(samples, parse_margin("10%", "warmup"), parse_margin("10%", "cooldown"))
    return samples, summarize(samples, inside, None, 1), certify(samples, outcome.log, inside), outcome


def truth_of(script, samples, inside):
    """Latencies, in seconds, of an ideal client, from the law alone: what NumPy makes of them is the truth."""
    first = samples.due[0]  # the server's clock starts with it
    rows = [
        (start + first, [moment + first for moment in events])
        for start, events in replay(script, samples.due - first, samples.planned_output)
    ]
    found = {"ttft": [], "tpot": [], "e2e": [], "itl": []}
    for i, (_, events) in enumerate(rows):
        if not (inside[0] <= samples.due[i] <= inside[1]) or script.fault(i)[0] is not None:
            continue
        found["ttft"].append(events[0] - samples.due[i])
        found["e2e"].append(events[-1] - samples.due[i])
        if samples.planned_output[i] > 1:
            found["tpot"].append((events[-1] - events[0]) / (samples.planned_output[i] - 1))
        found["itl"] += list(np.diff(events))
    return {name: np.array(values) for name, values in found.items()}


def assert_exact(summary, truth):
    for name, values in truth.items():
        reported = summary.latency[name]
        assert reported.count == len(values), name
        pairs = {f"p{q}": np.percentile(values, q) for q in PERCENTILES} | {"mean": values.mean()}
        for which, true in pairs.items():
            found = reported.mean.value if which == "mean" else reported.percentiles[which].value
            print(f"{name} {which}: {found * 1e3:.2f} ms, true {true * 1e3:.2f} ms")
            assert abs(found - true) <= max(0.02 * true, 0.002), (name, which)


@pytest.mark.parametrize(
    "script",
    [
        Script(ttft=0.05, gap=0.02),
        Script(ttft=0.2, gap=0.005, tokens_per_event=3),
        Script(ttft=0.03, gap=0.01, slots=12),
        Script(ttft=0.05, gap=0.01, stalls=[(6.0, 2.0)]),
        Script(ttft=0.05, gap=0.01, faults={"http": (7, 0), "disconnect": (11, 3), "event": (13, 4)}),
    ],
    ids=["steady", "groups", "queue", "stall", "faults"],
)
def test_every_percentile_is_true(script):
    with scripted(script) as url:
        samples, summary, _, _ = measured(url, load_of(600, 40, "lognormal:20:0.5:100"))
    assert_exact(summary, truth_of(script, samples, summary.window))
    inside = [i for i, due in enumerate(samples.due) if summary.window[0] <= due <= summary.window[1]]
    kinds = {"http": "http 429", "disconnect": "disconnected", "event": "error in stream"}
    faults = [kinds[kind] for i in inside if (kind := script.fault(i)[0])]
    assert summary.errors == {kind: faults.count(kind) for kind in set(faults)}


def test_a_stall_shows_in_an_open_loop_and_not_in_a_closed_one():
    script = Script(ttft=0.02, gap=0.005, stalls=[(10.0, 2.0)])
    load = load_of(1000, 50, "10", kind="constant")
    with scripted(script) as url:
        _, opened, _, _ = measured(url, load)
    with scripted(script) as url:  # about as many requests a second: 3 at a time, 65 ms each
        _, closed, _, _ = measured(url, load, ClosedLoop(3))
    seen, missed = (summary.latency["ttft"].percentiles["p99"].value for summary in (opened, closed))
    print(f"TTFT p99 with a stall of 2 s: open loop {seen * 1e3:.0f} ms, closed loop {missed * 1e3:.0f} ms")
    assert seen > 1.5
    assert missed < 0.1


def test_the_cost_of_400_streams():
    spent = []

    def watch(snapshot):
        spent.append((snapshot.seconds, snapshot.begun - snapshot.ended, time.process_time(), time.monotonic()))

    load = load_of(1400, 40, "500", kind="constant")
    with scripted(Script(ttft=0.02, gap=0.02)) as url:
        samples, summary, certificate, outcome = measured(url, load, watch=watch)
    full = [entry for entry in spent if entry[1] >= 395]
    assert len(full) > 30, "400 streams for 15 seconds"
    cores = (full[-1][2] - full[0][2]) / (full[-1][3] - full[0][3])
    events = ((samples.event_times > full[0][0]) & (samples.event_times < full[-1][0])).sum()
    rate = events / (full[-1][0] - full[0][0])
    lag = np.percentile(samples.sent - samples.due, 99), np.percentile(outcome.log.loop_lag, 99)
    print(f"{rate:,.0f} events/s: {cores:.3f} cores; send lag p99 {lag[0] * 1e3:.2f} ms, loop {lag[1] * 1e3:.2f} ms")
    print(f"TPOT p50 {summary.latency['tpot'].percentiles['p50'].value * 1e3:.3f} ms")
    assert rate > 19_000
    assert cores < 0.5
    assert max(lag) < 0.005
    assert certificate.certified, certificate.reasons


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_highest_rate_is_that_of_the_law(seed):
    script = Script(ttft=0.01, gap=0.002, slots=8)  # 28 ms for 10 tokens: 285 requests a second at most
    bound, share = 0.1, 0.99
    load = load_of(1000, 1, "uniform:5:15", seed=seed)
    margins = parse_margin("10%", "warmup"), parse_margin("10%", "cooldown")
    settings = Settings(load=load, warmup=margins[0], cooldown=margins[1], slo={"ttft": bound}, salt="bars")
    with scripted(script) as url:
        bench = Bench(url, settings, Silent())
        found = find_max_rate(bench, SearchSettings(start=50, target_share=share, tolerance=0.02)).search
    truth = true_max_rate(script, load, bound, share)
    print(f"found {found.max_rate:.1f}/s, true {truth:.1f}/s: {found.max_rate / truth - 1:+.1%}")
    assert found.failed_rate is not None
    assert found.max_rate == pytest.approx(truth, rel=0.05)


def true_max_rate(script, load, bound, share):
    """By bisection over replays of the same arrivals through the law, without server and generator."""

    def meets(rate):
        arranged = arrange(at_rate(load, rate), None)
        due = arranged.schedule.starts
        outputs = [session.turns[0].output_tokens for session in arranged.workload.sessions]
        first = np.array([events[0] for _, events in replay(script, due, outputs)])
        tenth = len(due) // 10
        return (first - due <= bound)[tenth:-tenth].mean() >= share

    low, high = 1.0, 1000.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
