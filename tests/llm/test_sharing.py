"""What happens when calls overlap, end early, fail or are interrupted."""

import gc
import os
import signal
import threading
import time

import pytest

from headrace import EngineError, SamplingParams
from headrace.llm import GenerationError
from headrace.llm.driver import interrupt_deferred

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the quick brown", "what is the capital", "a", "the cat sleeps"]


@pytest.fixture
def expected(llm):
    """The greedy text of each prompt, run alone."""
    return {p: llm.generate(p, GREEDY)[0].outputs[0].text for p in PROMPTS}


def test_streams_and_calls_interleave(llm, expected):
    streams = {p: llm.stream(p, GREEDY) for p in PROMPTS}
    texts = dict.fromkeys(PROMPTS, "")
    for _ in range(5):
        for prompt, stream in streams.items():
            texts[prompt] += next(stream).text
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text == expected[PROMPTS[0]]
    for prompt, stream in streams.items():
        texts[prompt] += "".join(piece.text for piece in stream)
    assert texts == expected


def test_threads_share_the_engine(llm, expected):
    found, errors = {}, []

    def work(i):
        try:
            prompt = PROMPTS[i % len(PROMPTS)]
            if i % 2:
                found[i] = "".join(piece.text for piece in llm.stream(prompt, GREEDY)) == expected[prompt]
            else:
                found[i] = llm.generate([prompt], GREEDY)[0].outputs[0].text == expected[prompt]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert found == dict.fromkeys(range(8), True)


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_a_stream_left_early_is_stopped(llm, how):
    long = SamplingParams(max_tokens=400, ignore_eos=True, n=2)
    stream = llm.stream("the", long)
    next(stream)
    assert llm._driver._engine.stats().pages_used
    if how == "close":
        stream.close()
    elif how == "break":
        for _ in stream:
            break
    del stream
    gc.collect()
    # The fixture checks that nothing is left.


def test_a_stream_never_started_runs_nothing(llm):
    before = llm._driver._engine.stats().step
    stream = llm.stream("the", GREEDY)
    assert not llm._driver._calls
    stream.close()
    assert llm._driver._engine.stats().step == before


def test_a_stream_collected_during_a_step_is_stopped_after_it(llm, monkeypatch):
    engine = llm._driver._engine
    stream = llm.stream("the", SamplingParams(max_tokens=400, ignore_eos=True))
    next(stream)
    step = engine.step

    def collecting():
        # As the garbage collector might: in the midst of a step, on the thread that holds the lock.
        stream.close()
        return step()

    monkeypatch.setattr(engine, "step", collecting)
    llm.generate("a", SamplingParams(max_tokens=1))
    monkeypatch.undo()


@pytest.fixture
def failing(llm, monkeypatch):
    """An engine that cannot draw the third token after a prompt of 7 tokens."""
    draw = llm._driver._engine.executor.slots.draw

    def broken(slot, logits, position, mask):
        if position == 9:
            raise ValueError("a broken draw")
        return draw(slot, logits, position, mask)

    monkeypatch.setattr(llm._driver._engine.executor.slots, "draw", broken)
    return llm


def test_one_failure_leaves_the_others_and_the_engine(failing, monkeypatch):
    prompts = [[5] * 20, [6] * 7, [7] * 30]
    with pytest.raises(GenerationError, match=r"prompt 1 of 3 failed: .*a broken draw") as caught:
        failing.generate(prompts, GREEDY)
    assert isinstance(caught.value, EngineError)
    reasons = [output.outputs[0].finish_reason for output in caught.value.outputs]
    assert reasons == ["length", "error", "length"]
    assert "a broken draw" in caught.value.outputs[1].outputs[0].error
    with pytest.raises(EngineError, match="a broken draw"):
        list(failing.stream(prompts[1], GREEDY))
    monkeypatch.undo()
    assert failing.generate(prompts, GREEDY)[1].outputs[0].finish_reason == "length"


def test_an_engine_that_raises_is_left_clean(llm, monkeypatch):
    def boom():
        raise RuntimeError("a bug")

    monkeypatch.setattr(llm._driver._engine, "step", boom)
    with pytest.raises(RuntimeError, match="a bug"):
        llm.generate(PROMPTS, GREEDY)
    monkeypatch.undo()


@pytest.mark.parametrize("kind", ["generate", "stream"])
def test_an_interrupt_ends_the_call_after_the_step(llm, monkeypatch, expected, kind):
    executor = llm._driver._engine.executor
    collect, steps, finished = executor.collect, [], []

    def interrupted(ticket, masks):
        steps.append(ticket)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)  # the signal is there by now, in the midst of the step
        output = collect(ticket, masks)
        finished.append(ticket)
        return output

    monkeypatch.setattr(executor, "collect", interrupted)
    call = llm.generate if kind == "generate" else lambda prompts, params: list(llm.stream(prompts[0], params))
    with pytest.raises(KeyboardInterrupt):
        call(PROMPTS, GREEDY)
    monkeypatch.undo()
    assert len(steps) == len(finished) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not llm._driver._calls
    assert {p: llm.generate(p, GREEDY)[0].outputs[0].text for p in PROMPTS} == expected


def test_a_second_interrupt_is_not_held_back():
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
        pytest.fail("not interrupted")


def test_a_program_s_own_handler_is_left_alone():
    seen = []
    old = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with interrupt_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, old)
