"""``/v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode, new_id, unix_time, usage
from headrace.api.completion_answers import Completion, CompletionChoice
from headrace.api.completions import CompletionRequest
from headrace.api.logprobs import CompletionLogprobs
from headrace.api.parsing import parse_completion
from headrace.api.sse import DONE, event
from headrace.engine.messages import PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.answer import Answer, AnsweredSample, finish_fields, serve
from headrace.gateway.conversations import answer_form
from headrace.gateway.http import until_disconnected
from headrace.gateway.job import Job, Opened, SampleDelta
from headrace.gateway.logprobs import CompletionLogprobsWriter, Echo
from headrace.gateway.opening import aside, opened
from headrace.gateway.prompts import prompts_of
from headrace.gateway.services import Services
from headrace.text.prompt import Prompt
from headrace.text.tokenizer import Tokenizer


class Completions:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer a completion request."""
        services = self._services
        opening = await opened(http, services, parse_completion)
        request = opening.request
        jobs = await until_disconnected(http, self._jobs(opening))
        answer = Answer(jobs, wants_timings=bool(request.timings))
        return await serve(
            http,
            services,
            answer,
            headers=opening.headers(),
            stream=bool(request.stream),
            shape=_Shape(services, request, answer),
        )

    async def _jobs(self, opening: Opened[CompletionRequest]) -> list[Job]:
        """A job for each prompt."""
        services, request = self._services, opening.request
        form = answer_form(request)
        grammar = None if form.kind == "text" else await services.grammars.made(services.text.answer_grammar, form)
        await services.grammars.check(grammar, form.field)
        params = SamplingParams(**request.sampling(), grammar=grammar)
        given = request.prompts()
        prompts = await aside(opening.size, prompts_of, services, given)
        for (field, _), prompt in zip(given, prompts, strict=True):
            services.generator.check(prompt, params, explicit_max=request.max_tokens, fields=(field, "max_tokens"))
        return [Job.of(opening, prompt, params) for prompt in prompts]


def _echo(tokenizer: Tokenizer, prompt: Prompt) -> Echo:
    """What ``echo`` returns: the text that was given, or what the token ids say."""
    text = tokenizer.decode(prompt.tokens, skip_special_tokens=False) if prompt.text is None else prompt.text
    return Echo(text, prompt.tokens)


class _Shape:
    """What a completion looks like, whole and in chunks; a chunk is a completion of what is new."""

    def __init__(self, services: Services, request: CompletionRequest, answer: Answer) -> None:
        self._tokenizer = services.tokenizer
        self._model = services.model
        self._request = request
        self._answer = answer
        self._id = new_id("cmpl")
        self._created = unix_time()
        self._writers = [
            CompletionLogprobsWriter(
                services.tokenizer,
                skip_special_tokens=answer.jobs[0].params.skip_special_tokens,
            )
            for _ in answer.samples
        ]

    def whole(self) -> bytes:
        """The answer, once all samples have ended."""
        choices = [self._choice(i, sample, whole=True) for i, sample in enumerate(self._answer.samples)]
        return encode(self._completion(choices, timed=True, counted=True))

    async def events(self, steps: AsyncIterator[list[SampleDelta]]) -> AsyncGenerator[bytes, None]:
        """The answer in chunks."""
        begun: set[int] = set()
        async for step in steps:
            yield b"".join([self._chunk(delta, begun) for delta in step])
        if self._request.include_usage or self._answer.wants_timings:
            yield event(self._completion([], timed=True, counted=self._request.include_usage))
        yield DONE

    def _chunk(self, delta: SampleDelta, begun: set[int]) -> bytes:
        first = delta.choice not in begun
        begun.add(delta.choice)
        choice = self._choice(delta.choice, delta, whole=first)
        return event(self._completion([choice], timed=False, counted=False))

    def _choice(self, index: int, part: SampleDelta | AnsweredSample, *, whole: bool) -> CompletionChoice:
        """A choice, or what a chunk adds to it; ``whole`` if it begins here, so that echo and prompt ids go with it."""
        prompt, ids = self._answer.job_of(index).prompt, bool(self._request.return_token_ids)
        echo = _echo(self._tokenizer, prompt) if whole and self._request.echo else None
        return CompletionChoice(
            index=index,
            text=echo.text + part.text if echo else part.text,
            logprobs=self._logprobs(index, part, echo),
            token_ids=part.tokens if ids else UNSET,
            prompt_token_ids=list(prompt.tokens) if ids and whole else UNSET,
            # The part's own: what waits behind it, of the same sample, may hold the end already.
            **finish_fields(part.finish),
        )

    def _logprobs(self, index: int, part: SampleDelta | AnsweredSample, echo: Echo | None) -> CompletionLogprobs | None:
        if self._request.logprobs is None:
            return None
        # The first sample of a prompt alone reports the prompt's log probabilities.
        n = self._answer.jobs[0].params.n
        prompt = self._answer.samples[index // n * n].prompt_logprobs or []
        entries: list[PositionLogprobs | None] = [None, *prompt] if echo else []
        tokens = part.tokens[: len(part.logprobs)]
        return self._writers[index].write(echo, tokens, [*entries, *part.logprobs])

    def _completion(self, choices: list[CompletionChoice], *, timed: bool, counted: bool) -> Completion:
        """A whole answer or a chunk of one; a chunk's usage is null but in the last, and absent if not asked for."""
        absent = None if self._request.include_usage else UNSET
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage(*self._answer.token_counts()) if counted else absent,
            timings=self._answer.timings() if timed else UNSET,
        )
