"""Constraints that take long: their own samples wait for them, and nobody else does."""

import pytest
from byte_executor import expected
from engines import collect, request, run
from scripts import FULL, PROMPT, Clock, Script, greedy, scripted

from headrace.engine.sampling_params import SamplingParams
from headrace.errors import ConstraintError


class Slow(Script):
    """Is ready with what it prepares when the test says so, or fails then."""

    slow, ready, prepared = True, True, None

    def prepare(self, token):
        self.prepared, self.ready = token, False

    def accept(self, token):
        assert self.ready
        assert self.prepared in (token, None)
        self.prepared = None
        super().accept(token)


SLOWLY = [None, {11}, {12}, {13, 14}]


def slow_engine(ahead):
    """An engine whose requests with the grammar "s" have one constraint, which is given too."""
    engine, slow = scripted([], ahead), Slow(SLOWLY)
    others = engine._constraint_for
    engine._constraint_for = lambda params: slow if params.grammar == "s" else others(params)
    return engine, slow


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_slow_constraint_holds_up_its_own_sample_only(ahead, monkeypatch):
    """What it has yet to say of a token is awaited before anybody is told of the token, or it is planned on."""
    monkeypatch.setattr("headrace.engine.engine.time", Clock())
    (engine, slow), results, wanted = slow_engine(ahead), {}, expected(FULL, PROMPT, 6, Script(SLOWLY))
    engine.add(request(0, PROMPT, greedy(6, "s")))
    for told in range(5):
        while slow.ready:
            collect(engine, results, engine.step())
            engine.check()
        collect(engine, results, engine.add(request(1 + told, [told], greedy(9))))
        while (1 + told, 0) not in results or results[1 + told, 0].finish is None:
            collect(engine, results, engine.step())
            engine.check()
        assert results[1 + told, 0].tokens == expected(FULL, [told], 9)
        assert (results[0, 0].tokens if told else []) == wanted[:told]
        slow.ready = True
    while engine.has_work:
        collect(engine, results, engine.step())
    assert results[0, 0].tokens == wanted
    assert results[0, 0].finish.reason == "length"
    assert engine.stats().forced_tokens == 0  # a jump would have to be followed by others
    assert not engine.has_work
    engine.check()


class SlowOnce(Slow):
    """Prepares its first token only."""

    def prepare(self, token):
        super().prepare(token)
        self.slow = False


@pytest.mark.parametrize("ahead", [0, 1])
def test_tokens_of_a_constraint_that_is_slow_no_more_come_in_order(ahead):
    """Without batches ahead a step tells of the token that was prepared, and of the next."""
    engine, slow = scripted([], ahead), SlowOnce(SLOWLY)
    engine._constraint_for = lambda params: slow
    results = {}
    engine.add(request(0, PROMPT, greedy(5, "s")))
    while engine.has_work:
        slow.ready = True
        collect(engine, results, engine.step())
        engine.check()
    assert results[0, 0].tokens == expected(FULL, PROMPT, 5, Script(SLOWLY))


@pytest.mark.parametrize("more", [{"max_tokens": 3}, {"max_tokens": 9, "stop_token_ids": [12]}])
def test_behind_the_last_token_nothing_is_looked_for(more):
    """What is allowed there may not be known, and need not."""
    engine, asked = scripted([], 1), []

    class Short(Slow):
        def prepare(self, token):
            asked.append(token)
            super().prepare(token)
            self.ready = True

    engine._constraint_for = lambda params: Short(SLOWLY)
    result = run(engine, request(0, PROMPT, SamplingParams(temperature=0, grammar="s", **more)))[0, 0]
    assert result.tokens == expected(FULL, PROMPT, 3, Script(SLOWLY))
    assert asked == result.tokens[:-1]


@pytest.mark.parametrize("ahead", [0, 1])
def test_who_waits_for_a_slow_constraint_can_be_taken_back(ahead):
    engine, slow = slow_engine(ahead)
    results = {}
    engine.add(request(0, PROMPT, greedy(5, "s")))
    while slow.ready:
        collect(engine, results, engine.step())
    engine.abort([0])
    slow.ready = True
    assert not results
    assert run(engine, request(1, [1], greedy(2)))[1, 0].tokens == expected(FULL, [1], 2)
    engine.check()


@pytest.mark.parametrize("where", ["ready", "accept"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_slow_constraint_that_fails_ends_its_sample(ahead, where):
    engine = scripted([], ahead)

    class Broken(Slow):
        @property
        def ready(self):
            if self.prepared is not None and where == "ready":
                raise ConstraintError("no way")
            return True

        def prepare(self, token):
            self.prepared = token

        def accept(self, token):
            raise ConstraintError("no way")

    engine._constraint_for = lambda params: Broken([]) if params.grammar == "s" else None
    results = run(engine, request(0, PROMPT, greedy(5, "s")), request(1, [1], greedy(5)))
    assert (results[0, 0].finish.reason, results[0, 0].finish.unfit) == ("error", True)
    assert results[0, 0].tokens == expected(FULL, PROMPT, 1)
    assert results[1, 0].tokens == expected(FULL, [1], 5)


def test_who_waits_for_a_slow_constraint_may_be_preempted(monkeypatch):
    monkeypatch.setattr("headrace.engine.engine.time", Clock())
    (engine, slow), results = slow_engine(1), {}
    engine.add(request(0, PROMPT, greedy(5, "s")))
    while slow.ready:
        collect(engine, results, engine.step())
    for number in range(1, 5):
        engine.add(request(number, [number], greedy(9), priority=-1))
    while engine.scheduler.running or not engine.scheduler.roster.preemptions:
        collect(engine, results, engine.step())
        engine.check()
    assert engine.describe()["waiting"][0]["preparing"]
    assert (0, 0) not in results
    while engine.has_work:
        slow.ready = True
        collect(engine, results, engine.step())
        engine.check()
    assert results[0, 0].tokens == expected(FULL, PROMPT, 5, Script(SLOWLY))
