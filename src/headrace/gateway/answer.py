"""``Answer``: what a request has got so far, whatever form it is sent in; and ``serve``, which runs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import Timings, timings
from headrace.engine.messages import Finish, PositionLogprobs
from headrace.engine.timeline import merged
from headrace.gateway.http import EventStream, json_response, until_disconnected
from headrace.gateway.job import Job, SampleDelta
from headrace.gateway.opening import aside
from headrace.gateway.services import Services
from headrace.text.formats.pieces import MessagePiece, ToolCall, calls_in, reasoning_of, text_of


class AnsweredSample:
    """One sample so far."""

    def __init__(self) -> None:
        self.pieces: list[MessagePiece] = []
        self.reasoning_tokens = 0
        self.tokens: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.prompt_logprobs: list[PositionLogprobs] | None = None
        self.cached_tokens = 0
        self.finish: Finish | None = None
        self.embedding = b""

    def add(self, delta: SampleDelta) -> None:
        """Take a delta."""
        self.pieces += delta.pieces
        self.reasoning_tokens = delta.reasoning_tokens
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.cached_tokens = delta.cached_tokens or self.cached_tokens
        self.finish = delta.finish or self.finish
        self.embedding = delta.embedding or self.embedding

    @property
    def text(self) -> str:
        """The answer itself."""
        return text_of(self.pieces)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls, in order."""
        return calls_in(self.pieces)

    @property
    def reasoning(self) -> str:
        """The reasoning."""
        return reasoning_of(self.pieces)


class Answer:
    """What a request has got so far.

    Args:
        jobs: One a prompt; sample ``s`` of job ``j`` is choice ``j * n + s``.
        wants_timings: Whether to tell how long each stage took.
        watch: Is shown each delta.
    """

    def __init__(
        self, jobs: list[Job], *, wants_timings: bool = False, watch: Callable[[SampleDelta], None] | None = None
    ) -> None:
        self.jobs = jobs
        self.wants_timings = wants_timings
        self._watch = watch
        self.samples = [AnsweredSample() for job in jobs for _ in range(job.params.n)]

    def job_of(self, choice: int) -> Job:
        """The job that a choice belongs to."""
        return self.jobs[choice // self.jobs[0].params.n]

    async def follow(self, steps: AsyncGenerator[list[SampleDelta], None]) -> AsyncGenerator[list[SampleDelta], None]:
        """Pass deltas on after taking them."""
        async with aclosing(steps):
            async for step in steps:
                for delta in step:
                    self.samples[delta.choice].add(delta)
                    if self._watch is not None:
                        self._watch(delta)
                yield step

    def token_counts(self) -> tuple[int, int, int, int]:
        """Prompt tokens, output tokens, prompt tokens that were cached, and output tokens that were reasoning.

        A prompt counts once for its n samples.
        """
        n = self.jobs[0].params.n
        prompt = sum(len(job.prompt.tokens) for job in self.jobs)
        output = sum(len(sample.tokens) for sample in self.samples)
        cached = sum(sample.cached_tokens for sample in self.samples[::n])
        return prompt, output, cached, sum(sample.reasoning_tokens for sample in self.samples)

    def timings(self) -> Timings | UnsetType:
        """How long each stage took, if the caller asked."""
        finishes = [sample.finish for sample in self.samples if sample.finish is not None]
        if not self.wants_timings or not finishes:
            return UNSET
        line = merged(finish.timeline for finish in finishes)
        longest = max(len(sample.tokens) for sample in self.samples)
        return timings(msgspec.structs.asdict(line.durations(longest)), msgspec.structs.asdict(line))

    def log_fields(self) -> dict[str, object]:
        """What the access log says of it."""
        prompt, output, cached, _ = self.token_counts()
        fields: dict[str, object] = {"prompt_tokens": prompt, "output_tokens": output, "cached_tokens": cached}
        finishes = [sample.finish for sample in self.samples if sample.finish is not None]
        if finishes:
            ttft = merged(finish.timeline for finish in finishes).durations(output).time_to_first_token
            fields["ttft_seconds"] = None if ttft is None else round(ttft, 6)
            fields["finish"] = ",".join(sorted({finish.reason for finish in finishes}))
        return fields


class Shape(Protocol):
    """The form of an answer."""

    def whole(self) -> bytes:
        """The body, once all samples have ended."""
        ...

    def events(self, steps: AsyncIterator[list[SampleDelta]]) -> AsyncGenerator[bytes, None]:
        """The server-sent events, those of a step together."""
        ...


async def serve(
    http: Request, services: Services, answer: Answer, *, headers: dict[str, str], stream: bool, shape: Shape
) -> Response:
    """Run an answer's jobs and send it.

    Raises:
        ApiError: 429 or 503 before it begins; 503 or 500 when the engine fails.
        ClientDisconnect: The client of an answer that is not streamed went away.
    """
    if not stream:
        return await serve_whole(http, services, answer, headers=headers, body=shape.whole)
    steps, close = _begin(http, services, answer)
    return EventStream(shape.events(steps), keep_alive=services.config.keep_alive, headers=headers, on_close=close)


async def serve_whole(
    http: Request,
    services: Services,
    answer: Answer,
    *,
    headers: dict[str, str],
    body: Callable[[], bytes],
    size: int = 0,
) -> Response:
    """Run an answer's jobs and send its body, of about ``size`` bytes, once all have ended; raises as ``serve``."""
    steps, close = _begin(http, services, answer)
    try:
        await until_disconnected(http, _exhaust(steps))
        return json_response(await aside(size, body), headers)
    finally:
        await close()


def _begin(
    http: Request, services: Services, answer: Answer
) -> tuple[AsyncGenerator[list[SampleDelta], None], Callable[[], Awaitable[None]]]:
    """Admit an answer's jobs: what they give, and what is to be awaited at the end, however that comes."""
    generator = services.generator
    place = generator.admit(answer.jobs)
    steps = answer.follow(generator.run(answer.jobs, place))

    async def close() -> None:
        try:
            await steps.aclose()
        finally:
            generator.release(place)
            http.state.log.update(answer.log_fields())

    return steps, close


async def _exhaust(steps: AsyncIterator[list[SampleDelta]]) -> None:
    async for _ in steps:
        pass


def finish_fields(finish: Finish | None, *, called: bool = False) -> dict[str, Any]:
    """``finish_reason`` and, where a stop string or token ended the sample, ``stop_reason``.

    Args:
        finish: How the sample ended; None: it has not.
        called: It has called tools.
    """
    if finish is None:
        return {}
    ended = "tool_calls" if called else "stop"
    fields: dict[str, Any] = {"finish_reason": "length" if finish.reason == "length" else ended}
    if finish.stop is not None:
        fields["stop_reason"] = finish.stop
    return fields
