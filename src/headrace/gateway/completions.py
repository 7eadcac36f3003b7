"""``/v1/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import Completion, CompletionChoice, CompletionLogprobs, encode, new_id, unix_time, usage
from headrace.api.completions import CompletionRequest
from headrace.api.parsing import parse_completion
from headrace.api.sse import DONE, event
from headrace.engine.messages import PositionLogprobs
from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.answer import Answer, AnsweredSample, finish_fields, serve, tokenized
from headrace.gateway.conversations import answer_form
from headrace.gateway.generation import Job, SampleDelta
from headrace.gateway.http import read_body, until_disconnected
from headrace.gateway.logprobs import CompletionLogprobsWriter, Echo
from headrace.gateway.services import Services
from headrace.text.prompt import Prompt, text_prompt, token_prompt
from headrace.text.tokenizer import Tokenizer


class Completions:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer a completion request."""
        services, received = self._services, time.monotonic()
        body = await read_body(http, services.config)
        parsed = parse_completion(body, lenient=services.config.lenient)
        request = parsed.request
        services.check_model(request.model)
        form = answer_form(request)
        grammar = await tokenized(len(body), services.text.answer_grammar, form)
        await until_disconnected(http, services.grammars.check(grammar, form.field))
        params = SamplingParams(**request.sampling(), grammar=grammar)
        prompts = await tokenized(len(body), _prompts, services, request)
        for i, prompt in enumerate(prompts):
            field = f"prompt[{i}]" if len(prompts) > 1 else "prompt"
            services.generator.check(prompt, params, explicit_max=request.max_tokens, fields=(field, "max_tokens"))
        jobs = [Job.of(request, prompt, params, received, http.state.tenant) for prompt in prompts]
        answer = Answer(jobs, wants_timings=bool(request.timings))
        return await serve(
            http,
            services,
            answer,
            warning=parsed.warning_header,
            stream=bool(request.stream),
            shape=_Shape(services, request, answer),
        )


def _prompts(services: Services, request: CompletionRequest) -> list[Prompt]:
    tokenizer, info = services.tokenizer, services.replica.info
    vocab_size = None if info is None else info.vocab_size
    given = request.prompts()
    several = isinstance(request.prompt, list) and not isinstance(request.prompt[0], int)
    prompts = []
    for i, prompt in enumerate(given):
        field = f"prompt[{i}]" if several else "prompt"
        if isinstance(prompt, str):
            prompts.append(text_prompt(tokenizer, prompt, field=field))
        else:
            prompts.append(token_prompt(tokenizer, prompt, field=field, vocab_size=vocab_size))
    return prompts


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
