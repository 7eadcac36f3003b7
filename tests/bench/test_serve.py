"""Series of rounds: two servers in turn, searches, margins, interruptions."""

import time

import httpx
import numpy as np
import pytest
from bench_runs import Watch, settings
from scripted_server import scripted
from service_law import Script

from headrace.bench.load.target import Question
from headrace.bench.plan import Closed, Load, Open, Synthetic, arrange
from headrace.bench.results.measure import parse_margin
from headrace.bench.serve import (
    NO_IDS,
    Bench,
    SearchSettings,
    find_max_rate,
    measure,
    measure_against,
)
from headrace.bench.workload.lengths import parse_lengths
from headrace.errors import InvalidInput

QUICK = Script(ttft=0.01, gap=0.002)


def test_servers_in_turn_share_no_prompt_even_if_they_are_one():
    with scripted(Script(ttft=0.01, gap=0.002, record=True)) as url:
        watch = Watch()
        a = Bench(url, settings(salt="x"), watch)
        b = Bench(url, settings(salt="x B"), watch)
        comparison = measure_against(a, b, 2)
        prompts = [tuple(entry["prompt"][:8]) for entry in httpx.get(f"{url}/log").json()["requests"]]
    assert watch.rounds == 4
    assert len(set(prompts)) == len(prompts) == 80
    assert comparison.a.plan.parameters == comparison.b.plan.parameters
    lengths = [[round.requests.planned_output for round in side.rounds] for side in (comparison.a, comparison.b)]
    assert lengths[0] == lengths[1]


def test_two_servers_are_asked_as_the_one_that_takes_less():
    most, least = Script(returns_ids=True), Script(ids=False, refuses=["ignore_eos"], overhead=3)
    with scripted(most) as one, scripted(least) as other:
        a = Bench(one, settings(), Watch())
        b = Bench(other, settings(), Watch())
        assert (a.server.target.prompts, a.server.ignores_eos) == ("tokens", True)
        comparison = measure_against(a, b, 1)
    for bench in (a, b):
        assert (bench.server.target.prompts, bench.server.ignores_eos) == ("text", False)
    assert [side.rounds[0].summary.lengths.prompt_differs for side in (comparison.a, comparison.b)] == [0, 0]


def test_a_conversation_is_continued_alike_on_both():
    with scripted(Script(returns_ids=True)) as one, scripted(Script()) as other:
        chat = settings(requests=6, kind="chat", turns="3")
        a, b = Bench(one, chat, Watch()), Bench(other, chat, Watch())
        assert NO_IDS not in a.server.target.notes
        measure_against(a, b, 1)
    assert [bench.server.returns_ids for bench in (a, b)] == [False, False]
    assert all(NO_IDS in bench.server.target.notes for bench in (a, b))


def test_an_interrupted_comparison_keeps_its_complete_pairs():
    with scripted(Script(ttft=0.1, gap=0.01)) as url:
        watch = Watch(interrupt_in_round=4)
        a, b = Bench(url, settings(salt="x"), watch), Bench(url, settings(salt="y"), watch)
        comparison = measure_against(a, b, 3)
    assert [len(comparison.a.rounds), len(comparison.b.rounds)] == [1, 1]
    assert a.interrupted


def test_an_interrupted_series_keeps_its_rounds():
    with scripted(Script(ttft=0.1, gap=0.01)) as url:
        bench = Bench(url, settings(), Watch(interrupt_in_round=2))
        result = measure(bench, 3)
    assert len(result.rounds) == 2
    assert [each.certificate.reasons[:1] for each in result.rounds][1] == ["It was interrupted."]


def search(url, watch=None, start=20.0, requests=40, slo=0.1, **given):
    arrivals = Open(kind="constant", rate=start)
    bench = Bench(url, settings(requests=requests, arrivals=arrivals, slo={"ttft": slo}, **given), watch or Watch())
    return find_max_rate(bench, SearchSettings(start=start, tolerance=0.3))


def test_a_search_brackets_the_capacity():
    with scripted(Script(ttft=0.05, gap=0.0, slots=2)) as url:  # 40 requests a second, and 40 to wait for
        result = search(url, slo=0.3)
    assert 35 < result.search.max_rate < result.search.failed_rate < 90
    assert "rate" not in result.plan.arrival_parameters
    assert [result.rounds[point.round].rate for point in result.search.points] == [
        point.rate for point in result.search.points
    ]


def test_an_interrupted_trial_is_no_verdict():
    with scripted(Script(ttft=0.02, gap=0.0)) as url:
        result = search(url, Watch(interrupt_in_round=2))
    assert [point.met for point in result.search.points] == [True]
    assert result.search.failed_rate is None


@pytest.mark.parametrize("script", [Script(faults={"http": (1, 0)}), Script(ttft=0.002, gap=0.0)])
def test_a_search_that_no_lower_rate_can_help_ends(script):
    with scripted(script) as url:
        began = time.monotonic()
        result = search(url, slo=0.0001, start=10.0, requests=10)
    assert result.search.max_rate is None
    assert len(result.search.points) == 1
    assert time.monotonic() - began < 20


def test_margins_that_leave_nothing_of_a_faster_trial_do_not_end_a_search():
    with scripted(Script(ttft=0.02, gap=0.0, slots=2)) as url:
        result = search(url, warmup=parse_margin("1s", "warmup"))
    assert result.search.failed_rate is not None
    assert any("Warm-up" in reason for each in result.rounds for reason in each.certificate.reasons)


@pytest.mark.parametrize(("sessions", "turns", "expected"), [(1, "1", 200), (64, "1", 640), (64, "4", 160)])
def test_a_closed_loop_has_ten_requests_for_each_session_at_a_time(sessions, turns, expected):
    given = settings(requests=None, kind="chat", turns=turns, arrivals=Closed(concurrency=sessions))
    assert len(arrange(given.load, None).workload.sessions) == expected


def test_a_ramp_reaches_its_end_within_its_duration():
    load = settings(requests=None, arrivals=Open(kind="poisson", rate=1, end_rate=20, duration=60.0)).load
    starts = arrange(load, None).schedule.starts
    assert len(starts) == pytest.approx(630, abs=4 * np.sqrt(630))
    assert (starts > 55).sum() / 5 == pytest.approx(19.2, abs=4 * np.sqrt(19.2 / 5))
    assert starts.max() < 60


@pytest.mark.parametrize("turns", ["1", "8", "32"])
def test_a_duration_does_not_run_out_of_sessions(turns):
    for seed in range(30):
        given = settings(
            requests=None, kind="chat", turns=turns, arrivals=Open(kind="poisson", rate=32, duration=100.0)
        )
        load = Load(workload=given.load.workload, arrivals=given.load.arrivals, seed=seed)
        assert arrange(load, None).schedule.starts.max() > 80


def test_a_template_needs_room_too():
    with scripted(Script(overhead=50)) as url:
        question = Question(api="chat")
        bench = Bench(url, settings(question=question), Watch())
        assert bench.server.overhead == 51
        longest = 100_000 - 51 - 4
        workload = settings(question=question).load.workload
        for tokens, fits in ((longest, True), (longest + 1, False)):
            prompt = parse_lengths(str(tokens), "prompt")
            long = Synthetic(
                **{name: getattr(workload, name) for name in workload.__struct_fields__} | {"prompt": prompt}
            )
            load = Load(workload=long, arrivals=Closed(concurrency=1), seed=0)
            if fits:
                Bench(url, settings(question=question, load=load), Watch())
            else:
                with pytest.raises(InvalidInput, match="context"):
                    Bench(url, settings(question=question, load=load), Watch())
