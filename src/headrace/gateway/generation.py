"""From a checked prompt to a stream of text: the gateway's part of a request's life, the same for chat and completions.

``api`` record → ``Prompt`` → replica → ``TokenDelta`` → **``SampleDelta``** → ``api`` chunk.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import numpy as np

from headrace.api.errors import ApiError, bad_request, deadline_unmet, internal_error, overloaded, unavailable
from headrace.engine.messages import Generate, TokenDelta
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.validation import check_request, check_room
from headrace.gateway.admission import Admission, Place
from headrace.gateway.config import GatewayConfig
from headrace.gateway.job import Job, SampleDelta
from headrace.gateway.metrics import Metrics
from headrace.gateway.replica import Replica, ReplicaState
from headrace.gateway.replica_link import ReplicaGone
from headrace.gateway.tool_calls import count_calls
from headrace.text.call_ids import CallIds
from headrace.text.model_text import ModelText
from headrace.text.prompt import Prompt
from headrace.text.stream import MessageStream
from headrace.text.tokenizer import Tokenizer

SECONDS_A_SAMPLE = 2.0  # a guess for Retry-After before anything was measured


class Generator:
    """Admits jobs and runs them.

    Args:
        replica: Where they run.
        text: What the model served reads and writes.
        config: Limits.
        metrics: What is observed.
    """

    def __init__(self, replica: Replica, text: ModelText, config: GatewayConfig, metrics: Metrics) -> None:
        self.replica = replica
        self.tokenizer = text.tokenizer
        self._metrics = metrics
        self._admission = Admission(config.max_queue)
        self._sample_seconds = SECONDS_A_SAMPLE
        self.draining = False

    @property
    def admitted(self) -> int:
        """Samples that have a place."""
        return self._admission.held

    def check(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        explicit_max: int | None = None,
        fields: tuple[str, str],
        answered: bool = True,
    ) -> None:
        """Refuse what the engine could not run, before it gets there.

        Args:
            prompt: Its tokens.
            params: How to sample.
            explicit_max: The caller's own ``max_tokens``, which must fit; None: none was given.
            fields: What the caller calls prompt and ``max_tokens``.
            answered: Whether an answer needs room behind the prompt; not if it is only embedded.

        Raises:
            InvalidInput: With the field.
            ApiError: 503, nothing is known of the model yet.
        """
        info = self.replica.info
        if info is None:
            raise self._not_ready()
        tokens = np.asarray(prompt.tokens, np.int32)
        check_request(
            tokens,
            params,
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            field=fields[0],
            answered=answered,
        )
        check_room(len(tokens), params.min_tokens, context_length=info.context_length, field="min_tokens")
        if explicit_max is not None:
            check_room(len(tokens), explicit_max, context_length=info.context_length, field=fields[1])

    def admit(self, jobs: list[Job]) -> Place:
        """Take a request's jobs, all with the same ``n``, into the account of the queue, or refuse them all.

        Raises:
            ApiError: 429 when the queue is full, 503 when the engine is not there or the server is ending.
        """
        if self.draining or not self.replica.ready or self.replica.info is None:
            raise self._not_ready()
        slots = self.replica.info.max_running
        place = self._admission.enter(jobs, slots)
        if place is None:
            held, limit = self.admitted, self._admission.limit(slots)
            wait = min(self._sample_seconds * max(1.0, held / slots), 60.0)
            raise overloaded(wait, f"{held} samples are running or queued, and {limit} is the limit; try again later.")
        return place

    def release(self, place: Place) -> None:
        """Give the account back what ``admit`` took."""
        self._admission.leave(place)

    async def run(self, jobs: list[Job], place: Place) -> AsyncGenerator[list[SampleDelta], None]:
        """Run jobs that were admitted; leaving the iterator early aborts them.

        Yields:
            All that is new since the last time.

        Raises:
            ApiError: 503 when the engine was lost, 500 when it failed on one of the jobs.
        """
        n = jobs[0].params.n
        samples = [_Sample(self.tokenizer, job, n * i + k) for i, job in enumerate(jobs) for k in range(n)]
        try:
            messages = [_message(job) for job in jobs]
            async with aclosing(self.replica.link.generate(messages, window=place.samples)) as steps:
                async for step in steps:
                    deltas: list[SampleDelta] = []
                    try:
                        for job, delta in step:
                            sample = samples[job * n + delta.index]
                            self._observe(sample, delta)
                            deltas.append(sample.push(delta))
                            form = jobs[job].form
                            if form is not None:
                                count_calls(self._metrics, form.format.name, deltas[-1].pieces, jobs[job].check)
                    except ApiError:
                        if deltas:  # what came before the failure is sent before it, however they arrived
                            yield deltas
                        raise
                    yield deltas
        except ReplicaGone as error:
            raise unavailable(str(error), retry_after_s=5) from error

    def _observe(self, sample: _Sample, delta: TokenDelta) -> None:
        now = time.monotonic()
        if delta.tokens:
            if sample.last_delta is not None:
                self._metrics.gap.observe(now - sample.last_delta)
            sample.last_delta = now
        finish = delta.finish
        if finish is None:
            return
        if finish.reason == "late":
            self._metrics.finished.labels("late").inc()
            raise deadline_unmet()
        if finish.reason == "error":
            self._metrics.finished.labels("error").inc()
            if finish.unfit:
                raise bad_request(f"The answer cannot go on: {finish.message}", code="cannot_continue")
            raise internal_error(f"The engine failed on this request: {finish.message}")
        durations = finish.timeline.durations(sample.count + len(delta.tokens))
        self._metrics.on_finish(finish.reason, durations)
        if durations.end_to_end is not None:
            self._sample_seconds += 0.1 * (durations.end_to_end - self._sample_seconds)

    def _not_ready(self) -> ApiError:
        if self.draining:
            return unavailable("The server is shutting down.", code="shutting_down")
        if self.replica.state is ReplicaState.STARTING and not self.replica.restarts:
            return unavailable("The model is being loaded; try again soon.", retry_after_s=2, code="model_loading")
        return unavailable("The engine was lost and is being restarted; try again soon.", retry_after_s=5)


class _Sample:
    """One sample's text and counts so far."""

    def __init__(self, tokenizer: Tokenizer, job: Job, choice: int) -> None:
        self._choice = choice
        self._stream = MessageStream.following(tokenizer, job.params, job.form)
        self._ids = CallIds.of(job.form)
        self.count = 0
        self.last_delta: float | None = None

    def push(self, delta: TokenDelta) -> SampleDelta:
        finish = delta.finish
        hidden = finish.hidden_tokens if finish is not None else 0
        cut = finish is not None and finish.reason != "stop"
        pieces = self._stream.take(delta.tokens, hidden=hidden, last=finish is not None, cut=cut)
        self.count += len(delta.tokens)
        return SampleDelta(
            choice=self._choice,
            pieces=pieces if self._ids is None else self._ids.given(pieces),
            tokens=delta.tokens,
            logprobs=(delta.logprobs or [])[: len(delta.tokens) - hidden],
            prompt_logprobs=delta.prompt_logprobs,
            cached_tokens=delta.cached_tokens,
            finish=finish,
            reasoning_tokens=self._stream.reasoning_tokens,
            embedding=delta.embedding,
        )


def _message(job: Job) -> Generate:
    return Generate(
        request=0,
        prompt=job.prompt.to_bytes(),
        params=job.params,
        received=job.received,
        tokenized=job.tokenized,
        salt=job.salt,
        tenant=job.tenant,
        priority=job.priority,
        deadline=job.deadline,
        pooling=job.pooling,
    )
