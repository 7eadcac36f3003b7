"""``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.chat import ChatRequest
from headrace.api.parsing import parse_chat
from headrace.api.responses import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Delta,
    encode,
    new_id,
    unix_time,
    usage,
)
from headrace.api.sse import DONE, event
from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.answer import Answer, finish_fields, serve, tokenized
from headrace.gateway.generation import Job, SampleDelta
from headrace.gateway.http import read_body
from headrace.gateway.logprobs import chat_logprobs
from headrace.gateway.services import Services
from headrace.text.prompt import chat_prompt


class Chat:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer a chat completion request."""
        services, received = self._services, time.monotonic()
        body = await read_body(http, services.config)
        parsed = parse_chat(body, lenient=services.config.lenient)
        request = parsed.request
        services.check_model(request.model)
        params = SamplingParams(**request.sampling())
        prompt = await tokenized(
            len(body),
            chat_prompt,
            services.tokenizer,
            request.template_messages(),
            add_generation_prompt=request.generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            **(request.chat_template_kwargs or {}),
        )
        own = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        services.generator.check(
            prompt, params, explicit_max=request.sampling()["max_tokens"], fields=("messages", own)
        )
        job = Job.of(request, prompt, params, received, http.state.tenant)
        answer = Answer([job], wants_timings=bool(request.timings))
        shape = _Shape(services, request, answer)
        return await serve(
            http, services, answer, warning=parsed.warning_header, stream=bool(request.stream), shape=shape
        )


class _Shape:
    """What a chat answer looks like, whole and in chunks."""

    def __init__(self, services: Services, request: ChatRequest, answer: Answer) -> None:
        self._tokenizer = services.tokenizer
        self._model = services.model
        self._request = request
        self._answer = answer
        self._id = new_id("chatcmpl")
        self._created = unix_time()

    def whole(self) -> bytes:
        """The answer, once all samples have ended."""
        answer, ids = self._answer, bool(self._request.return_token_ids)
        choices = [
            ChatChoice(
                index=i,
                message=AnswerMessage(content=sample.text),
                logprobs=chat_logprobs(self._tokenizer, sample.logprobs) if self._request.logprobs else None,
                token_ids=sample.tokens if ids else UNSET,
                **finish_fields(sample.finish),
            )
            for i, sample in enumerate(answer.samples)
        ]
        return encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage(*answer.token_counts()),
                prompt_token_ids=list(answer.jobs[0].prompt.tokens) if ids else UNSET,
                timings=answer.timings(),
            )
        )

    async def events(self, steps: AsyncIterator[list[SampleDelta]]) -> AsyncGenerator[bytes, None]:
        """The answer in chunks: role, text as it comes, the end of each sample, usage."""
        begun: set[int] = set()
        async for step in steps:
            chunks = []
            for delta in step:
                first = delta.choice not in begun
                begun.add(delta.choice)
                ids = list(self._answer.jobs[0].prompt.tokens) if first and self._request.return_token_ids else UNSET
                chunks.append(self._chunk([self._choice(delta, first)], ids))
            yield b"".join(chunks)
        if self._request.include_usage or self._answer.wants_timings:
            yield self._last()
        yield DONE

    def _choice(self, delta: SampleDelta, first: bool) -> ChunkChoice:
        wants_logprobs = self._request.logprobs and delta.logprobs
        ended = finish_fields(delta.finish) if delta.finish is not None else {}
        return ChunkChoice(
            index=delta.choice,
            delta=Delta("assistant" if first else UNSET, delta.text if delta.text or first else UNSET),
            logprobs=chat_logprobs(self._tokenizer, delta.logprobs) if wants_logprobs else None,
            token_ids=delta.tokens if self._request.return_token_ids else UNSET,
            **ended,
        )

    def _chunk(self, choices: list[ChunkChoice], prompt_ids: list[int] | UnsetType) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=None if self._request.include_usage else UNSET,
            prompt_token_ids=prompt_ids,
        )
        return event(chunk)

    def _last(self) -> bytes:
        return event(
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[],
                usage=usage(*self._answer.token_counts()) if self._request.include_usage else UNSET,
                timings=self._answer.timings(),
            )
        )
