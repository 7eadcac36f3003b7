"""``Engine``: the step loop's body. Requests come in, every step moves each running sequence on, deltas go out."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.engine.constraint import ConstraintFactory
from headrace.engine.messages import EngineStats, Finish, Generate, PositionLogprobs, TokenDelta
from headrace.engine.outcome import (
    failed_output,
    finish_of,
    joined_output,
    position_logprobs,
    seed_of,
    slot_sampling,
)
from headrace.engine.scheduler import Scheduler, SchedulerLimits
from headrace.engine.sequence import Sequence
from headrace.engine.validation import check_request
from headrace.errors import InvalidInput
from headrace.memory.state_memory import StateMemory
from headrace.models.spec import ModelSpec
from headrace.runtime.batch import Batch, Executor, StepOutput

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Totals:
    """Counters since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    step_seconds: float = 0.0
    forward_seconds: float = 0.0


class Engine:
    """Runs requests on an executor. Not thread-safe: one thread calls it.

    Args:
        spec: The model's dimensions.
        executor: Runs batches.
        memory: The pages that the executor reads and writes.
        limits: Bounds of a step.
        context_length: Most tokens of a sequence.
        constraint_for: Makes what watches a sample's text for stop strings.
    """

    def __init__(
        self,
        spec: ModelSpec,
        executor: Executor,
        memory: StateMemory,
        limits: SchedulerLimits,
        *,
        context_length: int,
        constraint_for: ConstraintFactory,
    ) -> None:
        self.spec = spec
        self.executor = executor
        self.memory = memory
        self.scheduler = Scheduler(memory, limits)
        self.context_length = context_length
        self._constraint_for = constraint_for
        self._requests: dict[int, list[Sequence]] = {}
        self._arrivals = 0
        self._totals = _Totals()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    def add(self, message: Generate) -> list[TokenDelta]:
        """Queue a request.

        Returns:
            Empty, or, when the request cannot be run, its ends with the reason. The gateway checks requests first;
            this is the second line.
        """
        prompt = np.frombuffer(message.prompt, np.dtype("<i4"))
        try:
            check_request(prompt, message.params, vocab_size=self.spec.vocab_size, context_length=self.context_length)
            if message.request in self._requests:
                raise InvalidInput(f"request {message.request} is already running", field="request")
        except InvalidInput as error:
            return [
                TokenDelta(message.request, i, finish=Finish("error", message=str(error)))
                for i in range(message.params.n)
            ]
        self._requests[message.request] = []
        for index in range(message.params.n):
            sequence = self._sequence(message, prompt.tolist(), index)
            self._requests[message.request].append(sequence)
            self.scheduler.add(sequence)
        return []

    def abort(self, requests: Iterable[int]) -> None:
        """Stop requests and free what they hold; unknown ones are ignored (they may just have ended)."""
        for request in requests:
            sequences = self._requests.pop(request, [])
            for sequence in sequences:
                if not sequence.finished:
                    self.scheduler.remove(sequence)
            self._totals.aborted += bool(sequences)

    def step(self) -> list[TokenDelta]:
        """Plan a batch, run it, and return what it added to which samples."""
        begin = time.perf_counter()
        planned = self.scheduler.plan(self._totals.steps + 1)
        if planned is None:
            return []
        batch, counts = planned
        self._totals.steps += 1
        output = self._run(batch)
        pairs = sum([count * (s.computed + count) for s, count in counts.items()])
        self.scheduler.cost.learn(sum(counts.values()), pairs, output.seconds)
        tokens = output.tokens.tolist()
        deltas = [self._advance(s, count, row, tokens[row], output) for row, (s, count) in enumerate(counts.items())]
        self._totals.forward_seconds = output.seconds
        self._totals.step_seconds = time.perf_counter() - begin
        return [delta for delta in deltas if delta is not None]

    def stats(self) -> EngineStats:
        """Gauges and counters."""
        scheduler, total = self.scheduler, self._totals
        held, cached, free = self.memory.usage()
        return EngineStats(
            step=total.steps,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_used=held,
            pages_cached=cached,
            pages_free=free,
            prompt_tokens=total.prompt_tokens,
            cached_tokens=total.cached_tokens,
            output_tokens=total.output_tokens,
            preemptions=scheduler.preemptions,
            aborted=total.aborted,
            step_seconds=total.step_seconds,
            forward_seconds=total.forward_seconds,
        )

    def describe(self) -> dict[str, object]:
        """Slots, queue, pages and tree as plain data, without a word of any prompt."""

        def of(s: Sequence) -> dict[str, int]:
            return {
                "request": s.request,
                "index": s.index,
                "slot": s.slot,
                "prompt_tokens": s.prompt_length,
                "output_tokens": s.output_length,
                "computed": s.computed,
                "pages": s.held.pages,
            }

        return {
            "running": [of(s) for s in self.scheduler.running],
            "waiting": [of(s) for s in self.scheduler.waiting],
            "pages": dict(zip(("used", "cached", "free"), self.memory.usage(), strict=True)),
            "tree": self.memory.tree.describe(),
            "step_cost": dict(
                zip(("base", "per_token", "per_1000_pairs"), self.scheduler.cost.coefficients, strict=True)
            ),
        }

    def check(self) -> None:
        """Assert the invariants of scheduler and memory."""
        self.scheduler.check()
        live = {id(s) for group in self._requests.values() for s in group if not s.finished}
        queued = {id(s) for s in (*self.scheduler.running, *self.scheduler.waiting)}
        assert live == queued, "a sequence is lost"

    # --- a sample's life ----------------------------------------------------------------------------------------

    def _sequence(self, message: Generate, prompt: list[int], index: int) -> Sequence:
        params = message.params
        eos = () if params.ignore_eos else self.spec.eos_token_ids
        stop_ids = frozenset(eos) | frozenset(params.stop_token_ids)
        siblings = self._requests[message.request]
        seed = siblings[0].sampling.seed if siblings else seed_of(params)
        self._arrivals += 1
        room = self.context_length - len(prompt)
        return Sequence(
            request=message.request,
            index=index,
            arrival=self._arrivals,
            params=params,
            sampling=slot_sampling(params, seed, index, stop_ids),
            stop_ids=stop_ids,
            limit=len(prompt) + (room if params.max_tokens is None else min(params.max_tokens, room)),
            salt=message.salt,
            tokens=list(prompt),
            prompt_length=len(prompt),
            constraint=self._constraint_for(params),
            leader=siblings[0] if siblings else None,
            queued=time.monotonic(),
            received=message.received,
            tokenized=message.tokenized,
            routed=message.routed,
        )

    def _advance(self, sequence: Sequence, count: int, row: int, token: int, output: StepOutput) -> TokenDelta | None:
        """Bring one sequence up to date with what the step computed for it."""
        if row in output.errors:
            return self._end(sequence, [], None, Finish("error", message=output.errors[row]))
        self.scheduler.computed(sequence, count)
        if output.prompt_logprobs[row]:
            sequence.prompt_logprobs += [position_logprobs(x) for x in output.prompt_logprobs[row]]
        if not output.accepted[row]:
            return None
        first = sequence.first_token is None
        self._take(sequence, token)
        entry = output.logprobs[row]
        logprobs = None if entry is None else [position_logprobs(entry)]
        finish = finish_of(sequence, token)
        if finish is not None:
            return self._end(sequence, [token], logprobs, finish, first=first)
        return self._delta(sequence, [token], logprobs, None, first=first)

    def _take(self, sequence: Sequence, token: int) -> None:
        now = time.monotonic()
        if sequence.first_token is None:
            sequence.prefill_done = sequence.first_token = now
            if sequence.index == 0:
                self._totals.prompt_tokens += sequence.prompt_length
                self._totals.cached_tokens += sequence.cached_tokens or 0
        sequence.last_token = now
        sequence.tokens.append(token)
        sequence.fresh_slot = False
        self._totals.output_tokens += 1

    def _end(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[PositionLogprobs] | None,
        finish: Finish,
        *,
        first: bool = False,
    ) -> TokenDelta:
        self.scheduler.remove(sequence)
        if all(s.finished for s in self._requests[sequence.request]):
            del self._requests[sequence.request]
        return self._delta(sequence, tokens, logprobs, finish, first=first)

    def _delta(
        self,
        sequence: Sequence,
        tokens: list[int],
        logprobs: list[PositionLogprobs] | None,
        finish: Finish | None,
        *,
        first: bool,
    ) -> TokenDelta:
        wants_prompt = first and sequence.sampling.prompt_logprobs is not None
        return TokenDelta(
            request=sequence.request,
            index=sequence.index,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=sequence.prompt_logprobs if wants_prompt else None,
            cached_tokens=sequence.cached_tokens if first else None,
            finish=finish,
        )

    # --- running a batch ----------------------------------------------------------------------------------------

    def _run(self, batch: Batch) -> StepOutput:
        """Run a batch; if it fails, run its rows one by one, so that only those at fault fail."""
        try:
            return self.executor.collect(self.executor.submit(batch))
        except Exception as error:
            log.exception("step %d failed with %d rows", batch.step, batch.rows)
            if batch.rows == 1:
                return failed_output(batch.step, error)
            return joined_output(batch.step, [self._run(batch.only(row)) for row in range(batch.rows)])
