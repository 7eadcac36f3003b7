"""What an engine does with requests: ends, seeds, samples, failures, aborts, limits."""

import dataclasses

import numpy as np
import pytest
import torch
from automata import Anything
from engines import GREEDY, collect, engine_for, request, run
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.engine.messages import EngineStats, TokenDelta
from headrace.engine.report import pack, unpack
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.validation import check_request
from headrace.errors import InvalidInput

PROMPT = [5, 9, 12, 200, 31, 44, 17, 90]


@pytest.fixture(scope="module")
def engine(folder):
    return engine_for(folder)


def one(engine, params, prompt=PROMPT, number=0):
    return run(engine, request(number, prompt, params))[number, 0]


def params(**kwargs):
    return SamplingParams(**{"temperature": 1.0, "seed": 1, "max_tokens": 20, "ignore_eos": True, **kwargs})


# --- how a sample ends ------------------------------------------------------------------------------------------------


def test_stops_at_a_token_and_hides_it(engine):
    free = one(engine, params())
    stop = free.tokens[6]
    first = free.tokens.index(stop)
    result = one(engine, params(stop_token_ids=[stop]))
    assert result.tokens == free.tokens[: first + 1]
    assert (result.finish.reason, result.finish.stop, result.finish.hidden_tokens) == ("stop", stop, 1)
    shown = one(engine, params(stop_token_ids=[stop], include_stop_str_in_output=True))
    assert shown.finish.hidden_tokens == 0


def test_end_of_sequence(folder):
    engine = engine_for(folder)
    free = one(engine, params(max_tokens=40))
    eos = free.tokens[3]
    engine.spec = dataclasses.replace(engine.spec, eos_token_ids=(eos,))
    result = one(engine, params(ignore_eos=False))
    assert result.tokens == free.tokens[: free.tokens.index(eos) + 1]
    assert (result.finish.reason, result.finish.stop) == ("stop", None)
    assert one(engine, params()).finish.reason == "length"


def test_min_tokens_holds_off_every_end(engine):
    free = one(engine, params())
    stop = free.tokens[2]
    result = one(engine, params(stop_token_ids=[stop], min_tokens=10))
    assert len(result.tokens) >= 10
    assert stop not in result.tokens[:10]


def test_length_is_max_tokens_or_what_the_context_leaves(folder):
    engine = engine_for(folder, context_length=32)
    assert len(one(engine, params(max_tokens=5)).tokens) == 5
    result = one(engine, params(max_tokens=None))
    assert len(result.tokens) == 32 - len(PROMPT)
    assert result.finish.reason == "length"
    assert len(one(engine, params(max_tokens=None), prompt=[7] * 31).tokens) == 1


def test_a_constraint_ends_a_sample(folder):
    class Third(Anything):
        def __init__(self):
            self.count = 0

        def accept(self, token):
            self.count += 1
            return "halt" if self.count == 3 else None

    engine = engine_for(folder, constraint_for=lambda params: Third() if params.stop else None)
    result = one(engine, params(stop="halt"))
    assert len(result.tokens) == 3
    assert (result.finish.reason, result.finish.stop, result.finish.hidden_tokens) == ("stop", "halt", 0)
    assert len(one(engine, params()).tokens) == 20


# --- samples and seeds ------------------------------------------------------------------------------------------------


def test_a_seeded_request_does_not_depend_on_its_neighbours(engine):
    alone = one(engine, params(seed=5))
    beside = run(
        engine,
        *[request(i, [3 + i] * (i + 1), params(seed=100 + i, max_tokens=7 + i)) for i in range(1, 9)],
        request(0, PROMPT, params(seed=5)),
        request(20, PROMPT, params(seed=None)),
    )
    assert beside[0, 0].tokens == alone.tokens
    assert beside[20, 0].tokens != alone.tokens


def test_n_samples_differ_and_repeat(engine):
    first = run(engine, request(0, PROMPT * 10, params(n=4)))
    second = run(engine, request(0, PROMPT * 10, params(n=4)))
    outputs = [tuple(first[0, i].tokens) for i in range(4)]
    assert len(set(outputs)) == 4
    assert outputs == [tuple(second[0, i].tokens) for i in range(4)]
    assert one(engine, params(), prompt=PROMPT * 10).tokens == list(outputs[0])


@pytest.mark.parametrize("prompt_logprobs", [None, 2])
def test_n_samples_compute_their_prompt_once(folder, prompt_logprobs):
    """Also if something is wanted of each of its tokens: the first sample answers for them."""
    engine = engine_for(folder)
    results = run(engine, request(0, PROMPT * 10, params(n=3, prompt_logprobs=prompt_logprobs)))
    assert [results[0, i].cached_tokens for i in range(3)] == [0, 79, 79]
    assert [len(results[0, i].prompt_logprobs or ()) for i in range(3)] == [79 if prompt_logprobs else 0, 0, 0]
    assert engine.stats().prompt_tokens == 80


def test_penalties_survive_preemption(folder):
    heavy = params(max_tokens=60, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.2)
    prompts = [[3 + i, *PROMPT] * 3 for i in range(6)]
    calm = run(engine_for(folder), *[request(i, p, heavy) for i, p in enumerate(prompts)])
    tight_engine = engine_for(folder, pages=14, context_length=120)
    tight = run(tight_engine, *[request(i, p, heavy) for i, p in enumerate(prompts)])
    assert tight_engine.scheduler.roster.preemptions > 0
    assert {k: r.tokens for k, r in calm.items()} == {k: r.tokens for k, r in tight.items()}


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "settings_", "field"),
    [
        ([], {}, "prompt"),
        ([256], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([5] * 512, {}, "prompt"),
        ([5], {"logit_bias": {256: 1.0}}, "logit_bias.256"),
        ([5], {"stop_token_ids": [999]}, "stop_token_ids[0]"),
    ],
)
def test_a_request_that_cannot_run_ends_at_once(engine, prompt, settings_, field):
    deltas = engine.add(request(0, prompt, params(n=2, **settings_)))
    assert [(d.index, d.finish.reason) for d in deltas] == [(0, "error"), (1, "error")]
    assert not engine.has_work
    with pytest.raises(InvalidInput) as caught:
        check_request(np.array(prompt, np.int32), params(**settings_), vocab_size=256, context_length=512)
    assert caught.value.field == field


def test_a_failing_row_fails_alone(folder):
    """The forward of a batch fails because of one sequence: the others get the tokens they would have got."""
    engine = engine_for(folder)
    expected = run(engine, *[request(i, [4 + i, *PROMPT]) for i in range(4)])
    hidden = engine.executor.model.hidden

    def poisoned(tokens, positions, attend):
        if ((tokens == 250) & (positions == 0)).any():
            raise RuntimeError("no kernel for token 250")
        return hidden(tokens, positions, attend)

    engine.executor.model.hidden = poisoned
    results = run(engine, *[request(i, [4 + i, *PROMPT]) for i in range(4)], request(9, [250, *PROMPT]))
    assert results[9, 0].finish.reason == "error"
    assert "no kernel for token 250" in results[9, 0].finish.message
    assert {i: results[i, 0].tokens for i in range(4)} == {i: expected[i, 0].tokens for i in range(4)}
    assert engine.stats().pages_used == 0


@pytest.mark.parametrize("where", ["draw", "_prompt_logprobs"])
def test_a_row_that_fails_after_the_forward_changes_nobody(folder, where):
    """What other rows drew in the same step must not be drawn twice, nor be fed to the step that is run again."""
    engine = engine_for(folder)
    settings_ = [params(repetition_penalty=2.0), params(prompt_logprobs=0, max_tokens=1), params(temperature=0)]
    work = [(0, request(0, PROMPT, settings_[0])), (4, request(1, PROMPT[1:], settings_[1]))]
    work += [(0, request(2, PROMPT[2:], settings_[2]))]
    expected = run(engine_for(folder), *[message for _, message in work])
    owner = engine.executor.slots if where == "draw" else engine.executor
    own, fail = getattr(owner, where), lambda *args: (_ for _ in ()).throw(MemoryError("no room"))

    def failing(first, *args):
        slot = first if where == "draw" else first.slot
        wants = engine.executor.slots[slot].sampling.prompt_logprobs is not None
        return fail() if wants else own(first, *args)

    results = {}
    for step in range(100):
        for at, message in work:
            if at == step:
                collect(engine, results, engine.add(message))
        setattr(owner, where, failing)
        collect(engine, results, engine.step())
    assert results[1, 0].finish.reason == "error"
    assert "no room" in results[1, 0].finish.message
    for number in (0, 2):
        assert results[number, 0].tokens == expected[number, 0].tokens


def test_broken_logits_fail_their_row_alone(folder):
    engine = engine_for(folder)
    logits = engine.executor.model.logits

    def broken(hidden):
        out = logits(hidden)
        if len(out) == 3:
            out[1] = torch.nan
        return out

    engine.executor.model.logits = broken
    results = run(engine, *[request(i, [4 + i, *PROMPT]) for i in range(3)])
    assert [results[i, 0].finish.reason for i in range(3)] == ["length", "error", "length"]


def test_a_number_in_use_is_refused(engine):
    engine.add(request(1, PROMPT))
    assert engine.add(request(1, PROMPT))[0].finish.reason == "error"
    assert run(engine)[1, 0].finish.reason == "length"


def test_abort_frees_everything(folder):
    engine = engine_for(folder, pages=40, max_batch_tokens=16, max_running=4)
    for i in range(8):
        engine.add(request(i, PROMPT * 6, params(n=2)))
    for _ in range(5):
        engine.step()
    engine.abort([*range(8), 77])
    engine.check()
    stats = engine.stats()
    assert not engine.has_work
    assert (stats.running, stats.waiting, stats.pages_used, stats.aborted) == (0, 0, 0, 8)
    assert engine.step() == []


def test_a_page_for_each_step_is_enough(folder):
    """The smallest memory that the context allows still serves, one at a time."""
    engine = engine_for(folder, pages=4, context_length=64)
    results = run(engine, *[request(i, [5 + i] * 40, params(max_tokens=24)) for i in range(5)])
    assert all(len(r.tokens) == 24 for r in results.values())


def test_step_time_bounds_prompts_only_while_others_decode(folder):
    engine = engine_for(folder, max_step_ms=1e-6, max_batch_tokens=64)
    engine.add(request(0, PROMPT * 20, params(max_tokens=50)))
    sizes = []
    plan = engine.scheduler.plan

    def spy(step):
        planned = plan(step)
        if planned:
            sizes.append(np.diff(planned.batch.offsets).tolist())
        return planned

    engine.scheduler.plan = spy
    for _ in range(5):
        engine.step()
    assert sizes[:2] == [[64], [64]]
    engine.add(request(1, [9, *PROMPT * 10], params(max_tokens=2)))
    for _ in range(3):
        engine.step()
    assert sizes[-3:] == [[1, 16], [1, 16], [1, 16]]
    engine.abort([0, 1])


def test_tenants_do_not_share_prefixes(engine):
    prompt = list(range(100, 150))
    for salt, cached in (("a", 0), ("a", 48), ("b", 0)):
        result = run(engine, request(0, prompt, GREEDY, salt=salt))[0, 0]
        assert result.cached_tokens == cached


def test_timeline_is_in_order(engine):
    finish = run(engine, request(0, PROMPT, params(), received=1.0, tokenized=2.0, routed=3.0))[0, 0].finish
    line = finish.timeline
    assert (line.received, line.tokenized, line.routed) == (1.0, 2.0, 3.0)
    stamps = [line.queued, line.first_scheduled, line.prefill_done, line.first_token, line.last_token]
    assert stamps == sorted(stamps)
    spans = line.durations(20)
    assert spans.time_per_output_token == pytest.approx((line.last_token - line.first_token) / 19)
    assert spans.time_to_first_token == line.first_token - 1.0


def test_reports_carry_every_delta(engine):
    deltas = [TokenDelta(2**40, 3, [7]), TokenDelta(5, 0, [8], cached_tokens=0), TokenDelta(6, 1, [], finish=None)]
    report = pack(deltas, EngineStats())
    assert len(report.deltas) == 2
    assert sorted(unpack(report), key=lambda d: d.request) == sorted(deltas, key=lambda d: d.request)


# --- anything, in any order -------------------------------------------------------------------------------------------


class Requests(RuleBasedStateMachine):
    """Requests come, run and are aborted in any order on a tiny memory; outputs equal those of a calm engine."""

    @initialize(chunk=st.sampled_from([3, 16, 64]), slots=st.integers(1, 5), cache=st.booleans())
    def start(self, chunk, slots, cache):
        options = {"max_batch_tokens": chunk, "max_running": slots, "prefix_cache": cache}
        self.engine = engine_for(self.folder, pages=12, context_length=96, **options)
        self.results, self.live, self.asked, self.next = {}, set(), {}, 0

    @rule(length=st.integers(1, 70), new=st.integers(1, 26), kind=st.integers(0, 3), n=st.integers(1, 3))
    def add(self, length, new, kind, n):
        prompt = [10 + kind] * length
        settings_ = params(n=n, seed=kind, max_tokens=new, frequency_penalty=0.1 * kind)
        assert self.engine.add(request(self.next, prompt, settings_)) == []
        self.asked[self.next] = (tuple(prompt), settings_)
        self.live.add(self.next)
        self.next += 1

    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            for delta in self.engine.step():
                assert delta.request in self.live, "a delta for a request that ended or was aborted"
                tokens, ended = self.results.setdefault((delta.request, delta.index), ([], []))
                assert not ended, "a delta after the end"
                tokens.extend(delta.tokens)
                if delta.finish is not None:
                    ended.append(delta.finish.reason)
            self.engine.check()

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def abort(self, data):
        number = data.draw(st.sampled_from(sorted(self.live)))
        self.engine.abort([number])
        self.live.discard(number)

    @invariant()
    def holds(self):
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):
            if not self.engine.has_work:
                break
            self.step(1)
        assert not self.engine.has_work, "deadlock"
        assert self.engine.stats().pages_used == 0
        for number in self.live:
            prompt, settings_ = self.asked[number]
            for index in range(settings_.n):
                tokens, ended = self.results[number, index]
                assert ended == ["length"]
                assert tokens == self.expected(prompt, settings_, index)[: len(tokens)]
                assert len(tokens) == settings_.max_tokens

    def expected(self, prompt, settings_, index):
        key = prompt, settings_.seed, index
        if key not in self.memo:
            whole = params(n=3, seed=settings_.seed, max_tokens=26, frequency_penalty=settings_.frequency_penalty)
            for i in range(3):
                self.memo[prompt, settings_.seed, i] = run(self.calm, request(0, prompt, whole), check=False)[
                    0, i
                ].tokens
        return self.memo[key]


@pytest.mark.parametrize("examples", [20, pytest.param(400, marks=pytest.mark.bars)])
def test_anything_in_any_order(folder, examples):
    machine = type("Machine", (Requests,), {"folder": folder, "calm": engine_for(folder), "memo": {}})
    case = machine.TestCase()
    case.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None)
    case.runTest()
