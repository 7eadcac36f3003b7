"""What planning costs: the measurement counts what it says it counts."""

import time

import pytest

from headrace.bench.overhead import AsideExecutor, aside_costs
from headrace.runtime.batch import decode_batch


def test_steps_without_a_forward_pass_are_the_hosts_own():
    costs = aside_costs(2, 40, 30, 0.0)
    assert (costs.executor, costs.batch, costs.context, costs.steps, costs.bare) == ("none", 2, 40, 30, 0.0)
    assert 0 < costs.host <= costs.step <= costs.step_p99


def test_a_forward_pass_aside_takes_its_time():
    costs = aside_costs(1, 40, 20, 0.005)
    assert costs.executor == "aside"
    assert min(costs.step, costs.bare) == pytest.approx(0.005, rel=0.5)
    assert costs.step_p99 >= costs.step


def test_the_executor_aside_works_while_the_caller_does_something_else():
    executor = AsideExecutor(0.02)
    tickets = [executor.submit(decode_batch(step, (), (), [0, 1], [5, 6])) for step in (1, 2)]
    time.sleep(0.1)
    begun = time.monotonic()
    outputs = [executor.collect(ticket) for ticket in tickets]
    executor.close()
    assert [output.step for output in outputs] == [1, 2]
    assert [output.accepted.tolist() for output in outputs] == [[1, 1]] * 2
    assert time.monotonic() - begun < 0.02, "both were done already"
