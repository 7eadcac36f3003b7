"""Samples under constraints: every output obeys; how they end, fail and wait."""

import numpy as np
import pytest
from automata import Anything, Automaton, Walk, walks
from byte_engines import byte_engine
from byte_executor import VOCAB, expected
from engines import collect, engine_for, request, run
from hypothesis import given
from hypothesis import strategies as st
from sampling import mask_of
from scripts import FULL, PROMPT, Clock, Script, greedy, scripted

from headrace.engine.engine import CONSTRAINT_WAIT
from headrace.engine.guidance import only_token
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import ConstraintError, HeadraceError, InvalidInput

# --- ends, failures, waits --------------------------------------------------------------------------------------------


class Literal(Script):
    """Is complete behind so many tokens."""

    @property
    def complete(self):
        return not self._steps


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_complete_grammar_ends_the_sample_without_a_token(count, jump):
    """Also where its last token is the last by the limit."""
    engine = byte_engine(FULL, slabs=60, context=100, jump_forward=jump)
    engine._constraint_for = lambda params: Literal([{7}] * count)
    results = run(engine, request(0, PROMPT, greedy(max(count, 1), n=2)))
    for index in range(2):
        assert results[0, index].tokens == [7] * count
        assert (results[0, index].finish.reason, results[0, index].finish.stop) == ("stop", None)


class Failing(Anything):
    """Fails where it is told to, at the fourth call."""

    def __init__(self, where, how):
        self._where, self._how, self._calls = where, how, 0

    def _fail(self, where, otherwise):
        self._calls += where == self._where
        if where != self._where or self._calls < 4:
            return otherwise
        if isinstance(self._how, Exception):
            raise self._how
        return self._how

    @property
    def ready(self):
        return self._fail("ready", self._where != "ready")

    @property
    def complete(self):
        return self._fail("complete", False)

    def allowed(self):
        return self._fail("allowed", None)

    def accept(self, token):
        return self._fail("accept", None)


NO_MASKS_AT_ALL = {
    "of another vocabulary": np.ones(3, np.uint32),
    "of other numbers": np.ones(7, np.int64),
    "spread": np.ones(14, np.uint32)[::2],
    "of nothing": np.zeros(7, np.uint32),
    "beyond the vocabulary": np.array([0] * 6 + [1 << 31], np.uint32),
}
FAILURES = [(where, ConstraintError("no way")) for where in ("ready", "complete", "allowed", "accept")]
FAILURES += [("allowed", mask) for mask in NO_MASKS_AT_ALL.values()]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("where", "how"), FAILURES, ids=[where for where, _ in FAILURES[:4]] + [f"a mask {x}" for x in NO_MASKS_AT_ALL]
)
def test_a_constraint_that_fails_ends_its_sample_alone(where, how, ahead):
    engine, others = byte_engine(FULL, slabs=60, context=100, ahead=ahead), walks(VOCAB)
    engine._constraint_for = lambda params: Failing(where, how) if params.grammar == "f" else others(params)
    texts = {0: [1, 2, 3], 1: [*PROMPT] * 3, 2: [4] * 9}
    messages = [request(i, text, greedy(12, (None, "f", "5")[i])) for i, text in texts.items()]
    results = run(engine, *messages)
    failed = results[1, 0]
    assert failed.finish.reason == "error"
    assert not isinstance(how, Exception) or ("no way" in failed.finish.message and failed.finish.unfit)
    assert failed.tokens == expected(FULL, texts[1], len(failed.tokens))
    assert len(failed.tokens) == {"ready": 0, "accept": 4}.get(where, 3)
    assert results[0, 0].tokens == expected(FULL, texts[0], 12)
    assert results[2, 0].tokens == expected(FULL, texts[2], 12, Walk(Automaton(5, VOCAB)))
    (again,) = run(engine, request(3, texts[1], greedy(1))).values()
    assert again.cached_tokens == (0 if where == "ready" else 12)  # what it has computed is sound


def test_a_grammar_that_cannot_be_made_is_refused():
    def refuse(params):
        raise ConstraintError("no such grammar")

    engine = byte_engine(FULL, slabs=60, context=100)
    engine._constraint_for = refuse
    ends = [delta.finish for delta in engine.add(request(0, PROMPT, greedy(3, "x", n=2)))]
    assert [(end.reason, end.message, end.unfit) for end in ends] == [("error", "no such grammar", True)] * 2
    assert not engine.has_work


def test_who_waits_for_a_constraint_lets_others_go_past(monkeypatch):
    """The loop sleeps when there is nothing else to do, and only then."""
    clock, engine = Clock(), scripted([])
    monkeypatch.setattr("headrace.engine.engine.time", clock)
    results = {}
    engine.add(request(0, PROMPT, greedy(5, "7 30", n=2)))
    engine.add(request(1, [2], greedy(9)))
    while (1, 0) not in results or results[1, 0].finish is None:
        collect(engine, results, engine.step())
        engine.check()
    assert not clock.slept
    assert engine.describe()["waiting"][0]["preparing"]
    assert set(results) == {(1, 0)}
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
    assert 10 < len(clock.slept) < 30
    assert set(clock.slept) == {CONSTRAINT_WAIT}
    for index in range(2):
        assert results[0, index].tokens == expected(FULL, PROMPT, 5, Walk(Automaton(7, VOCAB)))


def test_who_waits_for_ever_can_be_taken_back_or_is_late(monkeypatch):
    clock, engine = Clock(), scripted([])
    monkeypatch.setattr("headrace.engine.engine.time", clock)
    engine.add(request(0, PROMPT, greedy(5, "7 1000000000", n=2)))
    engine.add(request(1, PROMPT, greedy(5, "7 1000000000"), deadline=1.0))
    results = {}
    for _ in range(1000):
        collect(engine, results, engine.step())
    assert engine.has_work
    assert {key: result.finish.reason for key, result in results.items()} == {(1, 0): "late"}
    engine.abort([0])
    assert not engine.has_work
    assert engine.step() == []
    engine.check()
    assert run(engine, request(2, [1], greedy(2)))[2, 0].tokens == expected(FULL, [1], 2)


@pytest.mark.parametrize("how", ["ends", "is taken back"])
def test_a_constraint_is_told_that_its_sample_is_over(how):
    engine, closed = scripted([], 1), []

    class Told(Script):
        def close(self):
            closed.append(self)

    engine._constraint_for = lambda params: Told([])
    engine.add(request(0, PROMPT, greedy(5, "s", n=2)))
    engine.step()
    assert not closed
    if how == "is taken back":
        engine.abort([0])
    while engine.has_work:
        engine.step()
    assert len(closed) == len({id(one) for one in closed}) == 2


@pytest.mark.parametrize(("ahead", "order"), [(0, "? +1 -1 ? +2 -2 ? +3 -3"), (1, "? +1 +2 -1 ? +3 -2 ? -3")])
def test_masks_are_made_while_the_batch_that_draws_with_them_runs(ahead, order):
    engine, calls = byte_engine(FULL, slabs=60, context=100, ahead=ahead), []
    engine._constraint_for = lambda params: Script([{1, 2}, {3, 4}, {5, 6}], notes=calls)
    own_submit, own_collect = engine.executor.submit, engine.executor.collect

    def submit(batch):
        calls.append(f"+{batch.step}")
        return own_submit(batch)

    def take(ticket, masks):
        calls.append(f"-{ticket.step}")
        assert list(masks) == [0]
        return own_collect(ticket, masks)

    engine.executor.submit, engine.executor.collect = submit, take
    run(engine, request(0, PROMPT, greedy(3)))
    assert " ".join(calls) == order


@given(st.sets(st.integers(0, 69), max_size=4), st.integers(70, 95))
def test_the_only_token_of_a_mask(tokens, stray):
    if len(tokens) == 1:
        assert only_token(mask_of(tokens, 70), 70) == min(tokens)
    elif tokens:
        assert only_token(mask_of(tokens, 70), 70) is None
    for nothing in ([], [stray]):
        with pytest.raises(HeadraceError):
            only_token(mask_of(nothing, 96), 70)


def test_a_row_of_which_everything_is_suppressed_fails_alone(folder):
    """Validation refuses such requests; here nobody asked it."""
    engine = engine_for(folder, constraint_for=lambda params: Script([{5}, {9}], 256) if params.min_tokens else None)
    odd = SamplingParams(stop_token_ids=[9], min_tokens=5, logprobs=0)
    results = run(engine, request(0, PROMPT, greedy(8)), request(1, PROMPT, odd))
    assert (results[1, 0].tokens, results[1, 0].finish.reason) == ([5], "error")
    assert "masked" in results[1, 0].finish.message
    assert results[0, 0].tokens == run(engine_for(folder), request(0, PROMPT, greedy(8)))[0, 0].tokens


# --- what may be asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"grammar": ""}, "grammar"),
        ({"grammar": "é" * (1 << 19) + "e"}, "grammar"),
        ({"grammar": 5}, "grammar"),
        ({"grammar": "a", "min_tokens": 1}, "min_tokens"),
        ({"grammar": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_grammars_that_are_refused(wrong, field):
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(**wrong)
    assert caught.value.field == field
