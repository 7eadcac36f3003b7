"""What a step costs beside the forward pass, and how much of that the forward pass hides.

Three executors stand under the same engine:

- ``none``: draws at once, so that a step is all overhead;
- ``aside``: its forward pass takes a fixed time and leaves the cores free, as a GPU's does;
- ``compiled``: the model's own, which computes on every core.

What is hidden is found by running the same batches again without an engine: as fast as they can be submitted.
"""

from __future__ import annotations

import gc
import queue
import threading
import time
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.engine.engine import Engine
from headrace.engine.messages import Generate
from headrace.engine.report import pack
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import MemoryGroup, StateMemory
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import NO_MASKS, Batch, Executor, Mask, StepOutput, Ticket, decode_batch
from headrace.runtime.state_layout import PAGE_TOKENS

Seconds = npt.NDArray[np.float64]

TOKEN = 7
WARM_STEPS = 20


class StepCosts(msgspec.Struct, frozen=True):
    """Steps of one kind.

    Attributes:
        executor: Who computes, see the module.
        batch: Sequences that decode.
        context: Tokens of each at the start.
        steps: Steps measured.
        step: Median seconds of a step.
        step_p99: Its 99th percentile.
        host: Median seconds of planning and looking at results.
        bare: Median seconds of a step of the same executor without an engine; 0 for ``none``.
        bare_p99: Its 99th percentile.
    """

    executor: str
    batch: int
    context: int
    steps: int
    step: float
    step_p99: float
    host: float
    bare: float = 0.0
    bare_p99: float = 0.0

    @property
    def shown(self) -> float:
        """Share of the host's time that a step takes longer by."""
        return (self.step - self.bare) / self.host


class AsideExecutor:
    """A device aside: a batch takes a fixed time from when it was submitted or the one before it ended.

    A thread sleeps in its place. It draws always the same token.

    Args:
        seconds: The time; 0: none, and no thread.
    """

    def __init__(self, seconds: float) -> None:
        self.ahead = int(seconds > 0)
        self._seconds = seconds
        self._todo: queue.SimpleQueue[tuple[float, Batch] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        if seconds:
            self._thread.start()

    def submit(self, batch: Batch) -> Ticket:
        """Take a batch."""
        if self._seconds:
            self._todo.put((time.perf_counter(), batch))
        else:
            self._done.put(_drawn(batch, 0.0))
        return Ticket(batch.step)

    def collect(self, ticket: Ticket, masks: Mapping[int, Mask] = NO_MASKS) -> StepOutput:
        """Wait for the oldest batch."""
        return self._done.get()

    def close(self) -> None:
        """End the thread."""
        if self._seconds:
            self._todo.put(None)
            self._thread.join()

    def _work(self) -> None:
        ended = 0.0
        while (work := self._todo.get()) is not None:
            submitted, batch = work
            ended = max(submitted, ended) + self._seconds
            time.sleep(max(0.0, ended - time.perf_counter()))
            self._done.put(_drawn(batch, self._seconds))


def _drawn(batch: Batch, seconds: float) -> StepOutput:
    tokens = np.where(batch.sample, TOKEN, -1).astype(np.int32)
    nothing = (None,) * batch.rows
    return StepOutput(batch.step, tokens, batch.sample.astype(np.int32), nothing, ((),) * batch.rows, seconds=seconds)


def aside_costs(batch: int, context: int, steps: int, seconds: float) -> StepCosts:
    """Measure with an executor that computes nothing.

    Args:
        batch: Sequences that decode.
        context: Tokens of each at the start.
        steps: Steps to measure.
        seconds: Of a forward pass; 0 for ``none``.
    """
    executor = AsideExecutor(seconds)
    room = context + steps + 4 * WARM_STEPS
    form = PageForm.of(16, [(1, 64)])
    slabs = batch * -(-(room // PAGE_TOKENS + 2) // form.slab_pages)
    memory = StateMemory([MemoryGroup(True, form)], nbytes=slabs * form.slab_bytes, page_tokens=PAGE_TOKENS)
    spec = ModelSpec("none", "none", 1 << 16, 1, room, (), (), 0)
    limits = SchedulerLimits(batch, batch * context, None)
    engine = Engine(spec, executor, memory, limits, context_length=room, constraint_for=lambda params: None)
    times, host = _engine_steps(engine, batch, context, steps)
    bare = _bare_steps(executor, batch, context, steps) if seconds else np.zeros(1)
    executor.close()
    return _costs("aside" if seconds else "none", batch, context, times, host, bare)


def compiled_costs(
    path: str, batch: int, context: int, steps: int, threads: int | None = None, repeat: int = 3
) -> StepCosts:
    """Measure with a model on the compiled executor.

    Args:
        path: The model.
        batch: Sequences that decode.
        context: Tokens of each at the start.
        steps: Steps to measure.
        threads: Of the executor.
        repeat: Rounds that count, behind one that does not; in each first with an engine, then without.
    """
    options = EngineOptions(
        path=path, name="bench", executor="compiled", threads=threads, max_running=batch, max_step_ms=0
    )
    engine, _ = build_engine(options, lambda params: None)
    found = []
    for _ in range(1 + repeat):
        engine.scheduler.restart([])  # so that the same memory is used again
        times, host = _engine_steps(engine, batch, context, steps)
        # The slots still have their pages: the same batches, with positions as they were.
        found.append((times, host, _bare_steps(engine.executor, batch, context, steps)))
    # Whoever uses memory first waits for the system, for up to 2 ms a MiB: that is in the first round.
    times, host, bare = (np.concatenate(seconds) for seconds in zip(*found[1:], strict=True))
    return _costs("compiled", batch, context, times, host, bare)


def _costs(name: str, batch: int, context: int, times: Seconds, host: Seconds, bare: Seconds) -> StepCosts:
    def at(seconds: Seconds, percent: int) -> float:
        return float(np.percentile(seconds, percent))

    figures = at(times, 50), at(times, 99), at(host, 50), at(bare, 50), at(bare, 99)
    return StepCosts(name, batch, context, len(times), *figures)


def _engine_steps(engine: Engine, batch: int, context: int, steps: int) -> tuple[Seconds, Seconds]:
    """Seconds of each step, and of the host's work in it, once all sequences decode."""
    params = SamplingParams(temperature=0, max_tokens=steps + 3 * WARM_STEPS, ignore_eos=True)
    random = np.random.default_rng(0)
    vocab = engine.spec.vocab_size
    for number in range(batch):
        engine.add(Generate(number, random.integers(10, vocab, context).astype("<i4").tobytes(), params))
    gc.collect()
    gc.freeze()  # as a replica does, or some steps wait until all that was loaded is looked through
    drawn = 0
    while drawn < batch * WARM_STEPS:
        drawn += len(engine.step())
    times, host = np.empty(steps), np.empty(steps)
    last = time.perf_counter()
    for i in range(steps):
        pack(engine.step(), engine.stats())  # what a replica does with it
        now = time.perf_counter()
        times[i], last = now - last, now
        host[i] = engine.stats().host_seconds
    engine.abort(range(batch))
    while engine.has_work:
        engine.step()
    gc.unfreeze()
    return times, host


def _bare_steps(executor: Executor, batch: int, context: int, steps: int) -> Seconds:
    """Seconds of each step of the same batches, planned beforehand."""
    slots = list(range(batch))
    first = context + WARM_STEPS
    batches = [decode_batch(n + 1, (), (), slots, [first + n] * batch) for n in range(steps + WARM_STEPS)]
    tickets = [executor.submit(batches[n]) for n in range(executor.ahead)]
    times = np.empty(len(batches))
    last = time.perf_counter()
    for n in range(len(batches)):
        if n + executor.ahead < len(batches):
            tickets.append(executor.submit(batches[n + executor.ahead]))
        executor.collect(tickets[n])
        now = time.perf_counter()
        times[n], last = now - last, now
    return times[WARM_STEPS:]
