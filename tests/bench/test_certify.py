"""Certificates: what voids a round, and what must not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from bench_samples import Row, answered, gather, random_samples, samples_of_any_kind
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.results.certify import certify, generator
from headrace.bench.results.measure import Window
from headrace.bench.results.samples import GeneratorLog

ALL = Window(0, 1e6)


def log(**given):
    return GeneratorLog(
        **{"wall": 100.0, "cpu": 20.0, "loop_lag": np.full(1000, 0.0005), "connections": 4, "resent": 0, **given}
    )


def load(ttft=0.2, gap=0.02, late=0.0, requests=300):
    samples = random_samples(np.random.default_rng(0), requests, ttft=ttft, gap=gap)
    return replace(samples, sent=samples.due + late)


def test_an_undisturbed_round_is_certified():
    found = certify(load(), log(), ALL)
    assert found.certified
    assert found.reasons == []


@pytest.mark.parametrize(
    ("ttft", "late", "certified"),
    [
        (0.01, 0.004, True),
        (0.01, 0.007, False),
        (0.2, 0.006, True),
        (0.2, 0.015, False),
        (4.0, 0.1, True),
        (4.0, 0.3, False),
    ],
)
def test_lateness_in_sending_counts_by_the_latency_it_is_part_of(ttft, late, certified):
    found = certify(load(ttft=ttft, late=late), log(), ALL)
    assert found.certified == certified
    if not certified:
        assert len(found.reasons) == 1
        assert f"{late * 1e3:.3g} ms late" in found.reasons[0]
        assert found.reasons[0].endswith(".")


@pytest.mark.parametrize(
    ("ttft", "gap", "lag", "certified"),
    [
        (0.2, 0.001, 0.004, True),  # under the floor
        (0.2, 0.02, 0.008, False),
        (4.0, 0.2, 0.04, True),  # hidden by slow answers
        (4.0, 0.02, 0.04, False),  # the gaps would show it
        (0.2, 0.2, 0.04, False),  # the first tokens would
    ],
)
def test_lateness_of_the_event_loop_counts_by_gaps_as_well(ttft, gap, lag, certified):
    late = np.full(1000, 0.0002)
    late[:20] = lag
    assert certify(load(ttft=ttft, gap=gap), log(loop_lag=late), ALL).certified == certified
    rare = late.copy()
    rare[5:20] = 0.0002
    assert certify(load(ttft=ttft, gap=gap), log(loop_lag=rare), ALL).certified, "one time in 200 is no p99"


def test_a_generator_without_time_left():
    assert certify(load(), log(cpu=85.0), ALL).certified
    found = certify(load(), log(cpu=95.0), ALL)
    assert not found.certified
    assert "0.95 cores" in found.reasons[0]


def test_requests_that_were_never_sent():
    rows = [answered(i * 0.1, 0.1) for i in range(200)]
    rows[50] = Row(5.0)
    found = certify(gather(rows), log(), ALL)
    assert not found.certified
    assert "1 of the 200 requests that were due were never sent" in found.reasons[0]
    assert certify(gather(rows), log(), Window(6, 20)).certified, "outside of the window it does not count"


def test_nothing_succeeded():
    rows = [Row(float(i), float(i), i + 0.1, error="http 500") for i in range(10)]
    found = certify(gather(rows), log(), ALL)
    assert not found.certified
    assert "None of the 10 requests" in found.reasons[0]
    assert not certify(gather([]), log(), ALL).certified


def test_an_event_loop_that_was_not_watched():
    assert not certify(load(), log(loop_lag=np.array([])), ALL).certified


def test_few_requests_and_errors_of_the_server_are_no_fault_of_the_generator():
    rows = [answered(0.0, 0.1), Row(0.1, 0.1, 0.2, error="http 429"), Row(0.2, 0.2, 0.2, error="connect")]
    assert certify(gather(rows), log(), ALL).certified


def test_generator():
    samples = gather([replace_sent(answered(float(i), 0.5), i + i / 1000) for i in range(101)])
    found = generator(samples, log(cpu=30.0, connections=7, resent=2))
    assert found.cpu_cores == 0.3
    assert (found.connections, found.resent) == (7, 2)
    assert (found.send_lag.p50, found.send_lag.p99, found.send_lag.maximum) == pytest.approx((0.05, 0.099, 0.1))
    assert generator(samples, log(), Window(0, 10)).send_lag.maximum == pytest.approx(0.01)
    nothing = generator(gather([]), log(wall=0.0, loop_lag=np.array([])))
    assert nothing.cpu_cores == nothing.send_lag.p99 == nothing.loop_lag.p99 == 0


def replace_sent(row, sent):
    row.sent = sent
    return row


@given(samples_of_any_kind(), st.lists(st.floats(0, 1), max_size=5), st.floats(0, 2))
def test_any_round_gets_a_certificate(samples, lags, cpu):
    found = certify(samples, log(cpu=cpu, wall=1.0, loop_lag=np.array(lags)), Window(0, 2))
    assert found.certified == (not found.reasons)
    assert all(reason.endswith(".") and "nan" not in reason and "inf" not in reason for reason in found.reasons)
    own = generator(samples, log(loop_lag=np.array(lags)))
    assert math.isfinite(own.send_lag.p99)
