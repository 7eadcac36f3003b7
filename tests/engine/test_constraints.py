"""Samples under constraints: every output obeys, and what is forced comes out as if it had been drawn."""

import dataclasses

import numpy as np
import pytest
from automata import Anything, Automaton, Walk, followed, forced, walks
from byte_engines import byte_engine, teach_cost
from byte_executor import VOCAB, expected
from engines import collect, engine_for, record_logits, request, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import mask_of
from tiny import make

from headrace.engine.engine import CONSTRAINT_WAIT
from headrace.engine.guidance import only_token
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import ConstraintError, HeadraceError, InvalidInput
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup
from headrace.runtime.batch import FROM_SLOT

FULL = [MemoryGroup(True, PageForm.of(1, [(1, 8), (2, 4)]).in_slabs(144))]
PROMPT = [1, 2, 3, 4, 5]


class Script(Anything):
    """Allows what is written for each token of the output in turn, then anything.

    Args:
        steps: Allowed tokens; None: any.
        notes: Is told of each mask that is made.
    """

    def __init__(self, steps, vocab=VOCAB, notes=None):
        self._steps, self._vocab, self._notes = list(steps), vocab, [] if notes is None else notes

    def allowed(self):
        self._notes.append("?")
        return mask_of(self._steps[0], self._vocab) if self._steps and self._steps[0] else None

    def accept(self, token):
        if self._steps:
            wanted = self._steps.pop(0)
            assert not wanted or token in wanted


def greedy(count, grammar=None, **more):
    return SamplingParams(temperature=0, max_tokens=count, grammar=grammar, **more)


def scripted(steps, ahead=1, slots=4, **how):
    """An engine whose requests with the grammar "s" follow a script, and all other ones walk."""
    engine = byte_engine(FULL, slabs=60, context=200, slots=slots, ahead=ahead, **how)
    others = walks(VOCAB)
    engine._constraint_for = lambda params: Script(steps) if params.grammar == "s" else others(params)
    return engine


def watch(engine):
    """Batches as they are planned: tokens of each row."""
    seen, own = [], engine.scheduler.plan

    def plan(step):
        planned = own(step)
        if planned is not None:
            seen.append([x.tolist() for x in np.split(planned.batch.tokens, planned.batch.offsets[1:-1])])
        return planned

    engine.scheduler.plan = plan
    return seen


# --- jumps ------------------------------------------------------------------------------------------------------------

FORCED = [None, {11}, {12}, {13}, {14}, None, None]


@pytest.mark.parametrize(("ahead", "behind"), [(0, []), (1, [[[FROM_SLOT]]])])
def test_forced_tokens_come_out_at_once_and_are_computed_together(ahead, behind):
    engine = scripted(FORCED, ahead)
    seen, results, deltas = watch(engine), {}, []
    engine.add(request(0, PROMPT, greedy(8, "s")))
    while engine.has_work:
        deltas += engine.step()
        engine.check()
    collect(engine, results, deltas)
    tokens = results[0, 0].tokens
    assert tokens == expected(FULL, PROMPT, 8, Script(FORCED))
    assert tokens[1:5] == [11, 12, 13, 14]
    assert [len(delta.tokens) for delta in deltas] == [5, 1, 1, 1]
    assert seen[:3] == [[PROMPT], *behind, [[11, 12, 13, 14] if ahead else tokens[:5]], [[FROM_SLOT]]][:3]
    stats = engine.stats()
    assert (stats.output_tokens, stats.forced_tokens, stats.masked_tokens) == (8, 4, 0)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_lone_forced_token_costs_no_row_of_its_own(ahead):
    steps = [None, {11}] * 5
    engine = scripted(steps, ahead)
    seen = watch(engine)
    results = run(engine, request(0, PROMPT, greedy(10, "s")))
    assert results[0, 0].tokens == expected(FULL, PROMPT, 10, Script(steps))
    assert all(len(rows[0]) <= 2 - ahead for rows in seen[1:])


@pytest.mark.parametrize("ahead", [0, 1])
def test_log_probabilities_are_of_draws(ahead):
    engine = scripted(FORCED, ahead)
    results = run(engine, request(0, PROMPT, greedy(8, "s", logprobs=0)))
    assert results[0, 0].tokens == expected(FULL, PROMPT, 8, Script(FORCED))
    assert (engine.stats().forced_tokens, engine.stats().masked_tokens) == (0, 4)


def test_jumps_come_before_prompts_and_leave_a_token_to_each_other():
    steps = [None, *({token} for token in range(20, 40)), *[None] * 9]
    engine = scripted(steps, step=10)
    seen, results = watch(engine), {}
    for number in range(2):
        engine.add(request(number, [number + 1], greedy(30, "s")))
    for _ in range(2):
        collect(engine, results, engine.step())
    engine.add(request(2, [3] * 40, greedy(3)))
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
    sizes = [[len(row) for row in rows] for rows in seen]
    assert sizes[:6] == [[1, 1], [1, 1], [9, 1], [9, 1], [2, 8], [1, 9]]
    for number in range(2):
        assert results[number, 0].tokens == expected(FULL, [number + 1], 30, Script(steps))
    assert results[2, 0].tokens == expected(FULL, [3] * 40, 3)


def test_a_jump_is_as_short_as_those_beside_it_need():
    """A token takes a millisecond, a step is to take ten: nine and one that only decodes."""
    steps = [None, *({token} for token in range(20, 50))]
    engine = scripted(steps, step=40)
    teach_cost(engine, token=0.001)
    engine.scheduler.limits = dataclasses.replace(engine.scheduler.limits, max_step_seconds=0.0101)
    seen = watch(engine)
    run(engine, request(0, [1], greedy(40, "s")), request(1, [2], greedy(20)))
    assert [[len(row) for row in rows] for rows in seen][2:5] == [[1, 9]] * 3


def test_who_was_preempted_is_prefilled_like_a_prompt():
    engine = byte_engine(FULL, slabs=60, context=200, slots=1, step=10)
    engine.memory.prefix_cache = False
    results = {}
    collect(engine, results, engine.add(request(0, PROMPT, greedy(30))))
    for _ in range(20):
        collect(engine, results, engine.step())
    (sequence,) = engine.scheduler.running
    engine.add(request(1, [1], greedy(1), priority=-1))
    known = []
    while engine.has_work:
        collect(engine, results, engine.step())
        known += [sequence.computed] if sequence in engine.scheduler.running and sequence.prefills else []
        assert not sequence.jumps
    assert known == [10, 20]
    assert results[0, 0].tokens == expected(FULL, PROMPT, 30)


def test_a_stop_token_ends_a_jump():
    engine = scripted(FORCED)
    result = run(engine, request(0, PROMPT, greedy(8, "s", stop_token_ids=[13])))[0, 0]
    assert result.tokens == expected(FULL, PROMPT, 4, Script(FORCED))
    assert (result.finish.reason, result.finish.stop, result.finish.hidden_tokens) == ("stop", 13, 1)


def test_the_limit_ends_a_jump():
    result = run(scripted(FORCED), request(0, PROMPT, greedy(3, "s")))[0, 0]
    assert result.tokens == expected(FULL, PROMPT, 3, Script(FORCED))
    assert result.finish.reason == "length"


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


class Clock:
    """Time that passes only in sleep."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


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


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make("llama3").save_pretrained(path)
    return path


TINY = walks(256)
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.lists(st.integers(3, 255), min_size=1, max_size=40),
            "temperature": st.sampled_from([0.0, 1.0]),
            "n": st.integers(1, 3),
            "max_tokens": st.integers(1, 30),
            "stop_token_ids": st.lists(st.integers(3, 255), max_size=20, unique=True),
            "frequency_penalty": st.sampled_from([0.0, 0.8]),
            "repetition_penalty": st.sampled_from([1.0, 1.2]),
            "top_p": st.sampled_from([1.0, 0.9]),
            "grammar": st.none() | st.tuples(st.integers(0, 30), st.integers(0, 2)).map(lambda x: f"{x[0]} 0 {x[1]}"),
        }
    ),
    min_size=1,
    max_size=5,
)


def messages_of(asked, kept=lambda ask: True):
    for number, ask in enumerate(asked):
        if kept(ask):
            params = {name: value for name, value in ask.items() if name != "prompt"}
            yield request(number, ask["prompt"], SamplingParams(seed=number, **params))


def outcome(results):
    return {key: (result.tokens, result.finish.reason, result.finish.stop) for key, result in results.items()}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS, st.sampled_from([3, 16, 64]), st.integers(1, 5), st.sampled_from([12, 60]), st.booleans())
def test_jumping_changes_nothing(folder, asked, chunk, slots, pages, cache):
    """Nor do neighbours under constraints."""
    options = {"max_batch_tokens": chunk, "max_running": slots, "prefix_cache": cache, "pages": pages}
    jumping = engine_for(folder, context_length=96, constraint_for=TINY, **options)
    drawing = engine_for(folder, context_length=96, constraint_for=TINY, jump_forward=False, **options)
    results = run(jumping, *messages_of(asked))
    assert outcome(results) == outcome(run(drawing, *messages_of(asked)))
    for (number, _), result in results.items():
        if asked[number]["grammar"] is not None:
            assert followed(Walk(Automaton(int(asked[number]["grammar"].split()[0]), 256)), result.tokens)
    free = run(engine_for(folder), *messages_of(asked, lambda ask: ask["grammar"] is None))
    assert outcome(free).items() <= outcome(results).items()
    assert drawing.stats().forced_tokens == 0
    assert drawing.stats().output_tokens == jumping.stats().output_tokens


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_all_that_can_be_forced_is(folder, executor):
    engine = engine_for(folder, constraint_for=TINY, **({"executor": executor, "recipe": "float32"}))
    results = run(engine, *[request(i, PROMPT, greedy(60, str(i))) for i in range(20)])
    wanted = sum(forced(Automaton(i, 256), results[i, 0].tokens) for i in range(20))
    assert engine.stats().forced_tokens == wanted > 100


def test_a_row_of_which_everything_is_suppressed_fails_alone(folder):
    """Validation refuses such requests; here nobody asked it."""
    engine = engine_for(folder, constraint_for=lambda params: Script([{5}, {9}], 256) if params.min_tokens else None)
    odd = SamplingParams(stop_token_ids=[9], min_tokens=5, logprobs=0)
    results = run(engine, request(0, PROMPT, greedy(8)), request(1, PROMPT, odd))
    assert (results[1, 0].tokens, results[1, 0].finish.reason) == ([5], "error")
    assert "masked" in results[1, 0].finish.message
    assert results[0, 0].tokens == run(engine_for(folder), request(0, PROMPT, greedy(8)))[0, 0].tokens


@pytest.mark.model
def test_jumping_changes_no_bit(smollm2):
    """Logits and tokens of a compiled model, of mixed requests."""
    rng = np.random.default_rng(5)
    found, factory = [], walks(49_152, literal=20, ends=False)
    prompts = [rng.integers(20, 49_000, int(n)).tolist() for n in rng.integers(1, 60, 6)]
    for jump in (True, False):
        engine = engine_for(
            smollm2,
            executor="compiled",
            recipe="int8",
            kv_memory=256 << 20,
            max_batch_tokens=24,
            constraint_for=factory,
            jump_forward=jump,
        )
        logits = record_logits(engine)
        params = [
            SamplingParams(
                max_tokens=24, seed=i, temperature=i % 2, frequency_penalty=i % 3 / 2, grammar=(None, "2", "8")[i % 3]
            )
            for i in range(6)
        ]
        results = run(engine, *[request(i, x, p) for i, (x, p) in enumerate(zip(prompts, params, strict=True))])
        found.append((outcome(results), logits, engine.stats()))
    (tokens, logits, stats), (all_tokens, all_logits, _) = found
    assert tokens == all_tokens
    assert stats.forced_tokens > 20
    assert logits.keys() < all_logits.keys()
    assert all(np.array_equal(row, all_logits[at]) for at, row in logits.items())


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
