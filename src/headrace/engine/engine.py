"""``Engine``: the step loop's body. Requests come in, every step moves each running sequence on, deltas go out."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable

import numpy as np

from headrace.engine.arrival import check_message, constraints_of, prefix_key, sequences_of
from headrace.engine.constraint import ConstraintFactory
from headrace.engine.guidance import FREE, Guide
from headrace.engine.inspection import describe
from headrace.engine.messages import CLOSE_SECONDS, EngineStats, Finish, Generate, TokenDelta
from headrace.engine.outcome import failure
from headrace.engine.plan import Planned
from headrace.engine.progress import Progress
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import Scheduler, SchedulerLimits
from headrace.engine.totals import Totals
from headrace.errors import HeadraceError, InvalidInput
from headrace.memory.behind import Tiers
from headrace.memory.state_memory import StateMemory
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import Executor, IntArray, Ticket

log = logging.getLogger(__name__)

TRANSFER_WAIT = 0.005  # seconds
CONSTRAINT_WAIT = 0.002


class Engine:
    """Runs requests on an executor. Not thread-safe: one thread calls it.

    While the executor computes a batch, the next one is planned and submitted, and what the one before has produced
    is looked at::

        executor   |   batch 1   |   batch 2   |   batch 3   |
        engine      plan 2        take 1, plan 3  take 2, plan 4

    So a sequence that ends with a token nobody could foresee has a row in one batch more; what that finds is void.
    The masks that constraints give for batch 2 are made when 1 was taken: only its drawing waits for them.

    Args:
        spec: The model's dimensions.
        executor: Runs batches.
        memory: The pages that the executor reads and writes.
        limits: Bounds of a step.
        tiers: Where prefixes are kept beyond the memory; None: nowhere.
        context_length: Most tokens of a sequence.
        constraint_for: Makes what binds a sample: stop strings, a grammar.
        jump_forward: Whether tokens that are the only ones allowed are taken without drawing them. What comes out is
            the same.

    Raises:
        InvalidInput: The executor wants more than one batch ahead, or the memory does not hold a sequence as long as
            the context.
    """

    def __init__(
        self,
        spec: ModelSpec,
        executor: Executor,
        memory: StateMemory,
        limits: SchedulerLimits,
        tiers: Tiers | None = None,
        *,
        context_length: int,
        constraint_for: ConstraintFactory,
        jump_forward: bool = True,
    ) -> None:
        if executor.ahead > 1:  # what a sequence shares would have tokens that nobody knows yet
            raise InvalidInput(f"must be 0 or 1, got {executor.ahead}", field="executor.ahead")
        longest = memory.longest(context_length, limits.max_batch_tokens)
        if longest < context_length:  # a sequence as long as that would be preempted for itself without end
            raise InvalidInput(f"the memory holds {longest} tokens, not {context_length}", field="context_length")
        self.spec = spec
        self.executor = executor
        self.memory = memory
        self.scheduler = Scheduler(memory, limits, tiers)
        self.context_length = context_length
        self._constraint_for = constraint_for
        self._guide = Guide(spec.vocab_size, jump_forward=jump_forward)
        self._totals = Totals()
        self._progress = Progress(self.scheduler, self._guide, self._totals)
        self._submitted: deque[tuple[Ticket, Planned]] = deque()
        self._collected: float | None = None  # when a batch was collected last, if there was work left
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._progress or self._submitted or self.scheduler.tiers.waiting)

    def add(self, message: Generate) -> list[TokenDelta]:
        """Queue a request.

        Returns:
            Empty, or, when the request cannot be run, its ends with the reason. The gateway checks requests first;
            this is the second line.
        """
        prompt = np.frombuffer(message.prompt, np.dtype("<i4"))
        try:
            check_message(message, prompt, vocab_size=self.spec.vocab_size, context_length=self.context_length)
            if message.request in self._progress:
                raise InvalidInput(f"request {message.request} is already running", field="request")
            if self._would_be_late(message, prompt):
                return _refused(message, Finish("late"))
            constraints = constraints_of(message, self._constraint_for)
        except HeadraceError as error:
            return _refused(message, failure(error))
        if not self._progress and not self._submitted:
            self._collected = None  # there was nothing to do, whatever transfers there were
        stops, room = self.spec.eos_token_ids, self.context_length - len(prompt)
        sequences = sequences_of(message, prompt, constraints, eos=stops, room=room, arrivals=self._arrivals)
        self._arrivals += len(sequences)
        self._progress.enter(sequences)
        return []

    def abort(self, requests: Iterable[int]) -> None:
        """Stop requests and free what they hold; unknown ones are ignored (they may just have ended)."""
        for request in requests:
            self._progress.abort(request)

    def step(self) -> list[TokenDelta]:
        """Plan and submit a batch, collect the oldest one, and return what that added to which samples.

        Nothing is collected as long as the executor wants more batches ahead.
        """
        began = time.monotonic()
        deltas = self._progress.refuse_late(began)
        if self._guide.preparing:
            deltas += self._progress.go_on()
        planned = self.scheduler.plan(self._totals.steps + len(self._submitted) + 1)
        if planned is not None:
            self._submitted.append((self.executor.submit(planned.batch), planned))
        if not self._submitted:
            self._wait()
            return deltas
        if planned is not None and len(self._submitted) <= self.executor.ahead:
            return deltas
        ticket, oldest = self._submitted.popleft()
        self._totals.steps += 1
        guidance = self._guide.guidance(oldest) if self.scheduler.constrained else FREE
        waiting = time.monotonic()
        try:
            output = self.executor.collect(ticket, guidance.masks)
        except Exception as error:
            failed = time.monotonic()
            log.exception("step %d failed with %d rows", ticket.step, oldest.batch.rows)
            self._note_times(began, waiting, failed, failed - waiting)
            return deltas + self._recover(oldest, error)
        collected = time.monotonic()
        deltas += self._progress.take(oldest, output, guidance)
        self.scheduler.tiers.collected(ticket.step)
        self._note_times(began, waiting, collected, output.seconds)
        return deltas

    def _wait(self) -> None:
        """Nothing can run: wait for a transfer or a constraint, but not for long, for requests may come."""
        tiers = self.scheduler.tiers
        if tiers.waiting:
            tiers.wait(TRANSFER_WAIT)
            tiers.collected(self._totals.steps)
        elif self._guide.preparing:
            time.sleep(CONSTRAINT_WAIT)

    def rehearse(self, tokens: int) -> None:
        """Learn what steps cost from a prompt of so many tokens, before the first request; no more remains of it."""
        prompt = np.arange(tokens, dtype="<i4") % self.spec.vocab_size
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        roster = self.scheduler.roster
        tiers, roster.tiers = roster.tiers, Tiers(self.memory)  # or they would keep it
        self.add(Generate(0, prompt.tobytes(), params))
        while self._progress or self._submitted:
            self.step()
        self.scheduler.restart([])
        tiers.planned(self._totals.steps)
        roster.tiers = tiers
        self._totals.restart()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write to disk what is to be kept, in so many seconds. The engine cannot be used any more."""
        if not self.scheduler.tiers.close(seconds):
            log.warning("not everything was written to disk in %.0f seconds", seconds)

    def _note_times(self, began: float, waiting: float, collected: float, forward: float) -> None:
        """Note how long a step took, which began when the last one was collected if there was work."""
        totals = self._totals
        totals.step_seconds = collected - (began if self._collected is None else self._collected)
        totals.ended = collected
        totals.forward_seconds = forward
        totals.host_seconds = waiting - began + time.monotonic() - collected
        self._collected = collected if self.has_work else None

    def stats(self) -> EngineStats:
        """Gauges and counters."""
        return self._totals.stats(self.scheduler)

    def describe(self) -> dict[str, object]:
        """Slots, queue, pages and tree as plain data, without a word of any prompt."""
        return describe(self.scheduler)

    def check(self) -> None:
        """Assert the invariants of scheduler and memory."""
        self.scheduler.check()
        self._progress.check()

    def _would_be_late(self, message: Generate, prompt: IntArray) -> bool:
        """Whether a new prompt cannot be computed by its deadline, behind those that go before it."""
        rate = self.scheduler.cost.prefill_rate(self.scheduler.limits.max_batch_tokens)
        if message.deadline is None or not rate:  # nothing is known yet
            return False
        cached = self.memory.cached(prefix_key(message), prompt) if message.can_share_prompt else 0
        tokens = self.scheduler.prefill_tokens(message.priority) + len(prompt) - cached
        return time.monotonic() + tokens / rate > message.deadline

    # --- failures -----------------------------------------------------------------------------------------------

    def _recover(self, failed: Planned, error: Exception) -> list[TokenDelta]:
        """Go on after a batch that failed as a whole: a lone row was at fault, else each is tried alone."""
        self._totals.steps += len(self._submitted)  # the executor has dropped them
        self._submitted.clear()
        self._collected = None
        present = [sequence for sequence, stay in failed.rows if sequence.stay == stay]
        deltas = []
        if failed.batch.rows == 1:
            deltas = [self._progress.fail(sequence, f"{type(error).__name__}: {error}") for sequence in present]
            present = []
        self.scheduler.restart(present)
        return deltas


def _refused(message: Generate, finish: Finish) -> list[TokenDelta]:
    """The ends of all samples of a request."""
    return [TokenDelta(message.request, index, finish=finish) for index in range(message.params.n)]
