"""Sweeps over loads on servers whose law is known: the curve, its order, what is refused, interruptions."""

import os
import signal

import httpx
import pytest
from bench_runs import Watch, settings
from scripted_server import scripted
from service_law import Script, replay

from headrace.bench.plan import Closed, Open
from headrace.bench.results.measure import parse_margin
from headrace.bench.results.schema import Sweep
from headrace.bench.serve import Bench
from headrace.bench.sweep import check_sweep, sweep, sweep_against
from headrace.errors import InvalidInput

TOKENS = 4  # of an answer, in ``settings``


class Titles:
    """Notes what is measured, and ends a round with Ctrl-C if it is told to."""

    def __init__(self, noted=None, interrupt=None):
        self.noted, self.interrupt, self.title = [] if noted is None else noted, interrupt, ""

    def begin(self, title):
        self.title = title
        self.noted.append(title)

    def snapshot(self, snapshot):
        if self.title == self.interrupt and snapshot.begun:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self, found):
        pass


def closed(*sessions):
    return [Closed(concurrency=number) for number in sessions]


def rates(*each):
    return [Open(kind="constant", rate=float(rate)) for rate in each]


def test_the_curve_is_that_of_the_law():
    """Throughput grows until the slots are full; each user gets 1 / gap; who comes too many waits for a service."""
    script = Script(ttft=0.05, gap=0.05, slots=4)
    service = script.ttft + script.gap * (TOKENS - 1)
    with scripted(script) as url:
        result = sweep(Bench(url, settings(requests=48), Watch()), closed(1, 2, 4, 8))
    assert result.sweep == Sweep(over="concurrency", loads=[1.0, 2.0, 4.0, 8.0])
    for load, found in zip(result.sweep.loads, result.rounds, strict=True):
        summary = found.summary
        busy = min(load, script.slots)
        assert summary.rates["output_tokens"].value == pytest.approx(busy * TOKENS / service, rel=0.2), load
        assert summary.user_tokens.value == pytest.approx(1 / script.gap, rel=0.1), load
        waits = service * (load - busy) / script.slots
        assert summary.latency["ttft"].percentiles["p50"].value == pytest.approx(script.ttft + waits, abs=0.03), load


def test_rates_have_the_latencies_that_the_law_gives_them():
    script = Script(ttft=0.04, gap=0.0, slots=1)  # 25 requests a second
    with scripted(script) as url:
        bench = Bench(url, settings(requests=40, arrivals=rates(10)[0]), Watch())
        result = sweep(bench, rates(10, 50))
    assert [found.rate for found in result.rounds] == result.sweep.loads == [10.0, 50.0]
    for found in result.rounds:
        due = found.requests.due
        truth = [
            events[0] - moment for (_, events), moment in zip(replay(script, due, [TOKENS] * 40), due, strict=True)
        ]
        seen = [first - moment for first, moment in zip(found.requests.first, due, strict=True)]
        assert seen == pytest.approx(truth, abs=0.05)
    assert result.plan.arrival_parameters["rate"] == "10, 50"


def test_two_servers_are_measured_in_turn_load_by_load():
    with scripted(Script(ttft=0.01, gap=0.002, record=True)) as url, scripted(Script(ttft=0.01, gap=0.004)) as other:
        noted = []
        a = Bench(url, settings(salt="x"), Titles(noted))
        b = Bench(other, settings(salt="x B"), Titles(noted))
        found = sweep_against(a, b, closed(1, 2))
        prompts = [tuple(entry["prompt"][:8]) for entry in httpx.get(f"{url}/log").json()["requests"]]
    assert noted == ["A: 1 at a time", "B: 1 at a time", "A: 2 at a time", "B: 2 at a time"]
    assert [each.name for each in found.sweeps] == [url, other]
    assert [len(each.result.rounds) for each in found.sweeps] == [2, 2]
    assert found.warnings == [] or all("not certified" in warning for warning in found.warnings)
    assert len(set(prompts)) == len(prompts) == 40, "every round has words of its own"


def test_one_server_against_itself_has_two_names():
    with scripted(Script(ttft=0.01, gap=0.002)) as url:
        found = sweep_against(Bench(url, settings(), Watch()), Bench(url, settings(salt="y"), Watch()), closed(1, 2))
    assert [each.name for each in found.sweeps] == ["A", "B"]


def test_an_interrupted_sweep_keeps_the_loads_that_are_complete():
    few, loads = settings(requests=8), closed(2, 4, 8)
    with scripted(Script(ttft=0.4, gap=0.01)) as url:
        bench = Bench(url, few, Titles(interrupt="4 at a time"))
        result = sweep(bench, loads)
        assert result.sweep.loads == [2.0]
        assert len(result.rounds) == 1
        assert bench.interrupted
        a, b = Bench(url, few, Titles()), Bench(url, settings(requests=8, salt="y"), Titles(interrupt="B: 4 at a time"))
        assert [each.result.sweep.loads for each in sweep_against(a, b, loads).sweeps] == [[2.0], [2.0]]
        with pytest.raises(KeyboardInterrupt):
            sweep(Bench(url, few, Titles(interrupt="2 at a time")), loads)


def test_what_makes_no_sweep_is_refused():
    ramp = Open(kind="poisson", rate=1.0, end_rate=4.0)
    for loads, field in ((closed(4, 2), "concurrency"), (closed(2, 2), "concurrency"), (rates(1, 1), "rate")):
        with pytest.raises(InvalidInput, match="must ascend") as caught:
            check_sweep(loads)
        assert caught.value.field == field
    with pytest.raises(InvalidInput, match="a ramp is not one load"):
        check_sweep([*rates(0.5), ramp])


def test_a_load_of_which_nothing_would_count_is_refused_before_any_is_measured():
    with scripted(Script(ttft=0.01, gap=0.0)) as url:
        watch = Watch()
        bench = Bench(url, settings(arrivals=rates(5)[0], warmup=parse_margin("1s", "warmup")), watch)
        with pytest.raises(InvalidInput, match="nothing is left") as caught:
            sweep(bench, rates(5, 50))
    assert caught.value.field == "warmup"
    assert watch.rounds == 0
