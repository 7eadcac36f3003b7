"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode, new_id, unix_time, usage
from headrace.api.chat import ChatRequest
from headrace.api.chat_answers import (
    AnswerMessage,
    CalledFunction,
    CalledTool,
    CalledToolDelta,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    Delta,
)
from headrace.api.parsing import parse_chat
from headrace.api.sse import DONE, event
from headrace.gateway.answer import Answer, AnsweredSample, finish_fields, serve
from headrace.gateway.conversation_job import conversation_job
from headrace.gateway.conversations import chat_conversation
from headrace.gateway.http import until_disconnected
from headrace.gateway.job import SampleDelta
from headrace.gateway.logprobs import chat_logprobs
from headrace.gateway.opening import opened
from headrace.gateway.services import Services
from headrace.text.formats.pieces import Text, Thought, ToolCall


class Chat:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer a chat completion request."""
        services = self._services
        opening = await opened(http, services, parse_chat)
        request = opening.request
        own = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        making = conversation_job(services, opening, chat_conversation(request), fields=("messages", own))
        made = await until_disconnected(http, making)
        answer = Answer([made.job], wants_timings=bool(request.timings))
        shape = _Shape(services, request, answer)
        return await serve(
            http,
            services,
            answer,
            headers=opening.headers(made.warnings),
            stream=bool(request.stream),
            shape=shape,
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
                message=_message(sample),
                logprobs=chat_logprobs(self._tokenizer, sample.logprobs) if self._request.logprobs else None,
                token_ids=sample.tokens if ids else UNSET,
                **finish_fields(sample.finish, called=bool(sample.calls)),
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
                if first or self._says_something(delta):
                    wanted = first and self._request.return_token_ids
                    ids = list(self._answer.jobs[0].prompt.tokens) if wanted else UNSET
                    chunks.append(self._chunk([self._choice(delta, first)], ids))
            if chunks:
                yield b"".join(chunks)
        if self._request.include_usage or self._answer.wants_timings:
            yield self._last()
        yield DONE

    def _says_something(self, delta: SampleDelta) -> bool:
        """Whether there is anything to send: while a call is being written there may be nothing."""
        asked = (self._request.logprobs and delta.logprobs) or (self._request.return_token_ids and delta.tokens)
        return bool(delta.pieces or delta.finish or asked)

    def _choice(self, delta: SampleDelta, first: bool) -> ChunkChoice:
        wants_logprobs = self._request.logprobs and delta.logprobs
        sample = self._answer.samples[delta.choice]
        calls = [piece for piece in delta.pieces if isinstance(piece, ToolCall)]
        before = len(sample.calls) - len(calls)
        thought = "".join(piece.text for piece in delta.pieces if isinstance(piece, Thought))
        ended = {} if delta.finish is None else finish_fields(delta.finish, called=bool(sample.calls))
        return ChunkChoice(
            index=delta.choice,
            delta=Delta(
                "assistant" if first else UNSET,
                delta.text if delta.text or first else UNSET,
                thought or UNSET,
                [_call_delta(call, i) for i, call in enumerate(calls, before)] or UNSET,
            ),
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


def _message(sample: AnsweredSample) -> AnswerMessage:
    faults = sum(1 for piece in sample.pieces if isinstance(piece, Text) and piece.fault)
    return AnswerMessage(
        content=sample.text or (None if sample.calls else ""),
        reasoning_content=sample.reasoning or UNSET,
        tool_calls=[_call(call) for call in sample.calls] or UNSET,
        malformed_tool_calls=faults or UNSET,
    )


def _call(call: ToolCall) -> CalledTool:
    return CalledTool(id=call.id or "", function=CalledFunction(call.name, call.arguments))


def _call_delta(call: ToolCall, index: int) -> CalledToolDelta:
    return CalledToolDelta(index=index, id=call.id or "", function=CalledFunction(call.name, call.arguments))
