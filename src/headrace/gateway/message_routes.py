"""``/v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode
from headrace.api.anthropic.events import MessageDelta, MessageEnd, MessageStart, MessageStop, Ping
from headrace.api.anthropic.message import AnthropicMessage, AnthropicUsage, StopReason, TokenCount, new_message_id
from headrace.api.parsing import parse_count_tokens, parse_messages
from headrace.api.sse import named_event
from headrace.gateway.answer import Answer, serve
from headrace.gateway.conversation_job import conversation_job, in_words_of_caller
from headrace.gateway.http import json_response, until_disconnected
from headrace.gateway.job import SampleDelta
from headrace.gateway.message_conversation import message_conversation, names
from headrace.gateway.message_writer import BlockWriter
from headrace.gateway.opening import aside, opened
from headrace.gateway.services import Services
from headrace.text.formats.pieces import joined


class Messages:
    """The routes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, http: Request) -> Response:
        """Answer a request for a message."""
        services = self._services
        opening = await opened(http, services, parse_messages)
        request = opening.request
        making = conversation_job(
            services,
            opening,
            message_conversation(request),
            fields=("messages", "max_tokens"),
            names=names(request),
            may_be_cut=True,
        )
        made = await until_disconnected(http, making)
        answer = Answer([made.job])
        return await serve(
            http,
            services,
            answer,
            headers=opening.headers(made.warnings),
            stream=bool(request.stream),
            shape=_Shape(services.model, answer, request.max_tokens),
        )

    async def count_tokens(self, http: Request) -> Response:
        """Answer how many tokens a prompt has."""
        services = self._services
        opening = await opened(http, services, parse_count_tokens)
        request = opening.request
        with in_words_of_caller(names(request)):
            prompt = await aside(opening.size, services.text.prompt, message_conversation(request))
        return json_response(encode(TokenCount(len(prompt.tokens))), opening.headers())


class _Shape:
    """What a message looks like, whole and in events."""

    def __init__(self, model: str, answer: Answer, max_tokens: int) -> None:
        self._model = model
        self._answer = answer
        self._max_tokens = max_tokens
        self._id = new_message_id()
        self._writer = BlockWriter()

    def whole(self) -> bytes:
        """The message, once it has ended."""
        self._writer.take(joined(self._answer.samples[0].pieces))
        self._writer.close()
        end = self._end()
        message = replace(self._so_far(), stop_reason=end.stop_reason, stop_sequence=end.stop_sequence)
        return encode(message)

    async def events(self, steps: AsyncIterator[list[SampleDelta]]) -> AsyncGenerator[bytes, None]:
        """The message in events: its head, its blocks as they come, and its end."""
        begun = False
        async for step in steps:
            events = [event for delta in step for event in self._writer.take(delta.pieces)]
            head = b"" if begun else named_event(MessageStart(self._so_far())) + named_event(Ping())
            begun = True
            if new := head + b"".join(map(named_event, events)):
                yield new
        tail = [
            *self._writer.close(),
            MessageDelta(self._end(), self._usage()),
            MessageStop(),
        ]
        yield b"".join(map(named_event, tail))

    def _so_far(self) -> AnthropicMessage:
        return AnthropicMessage(id=self._id, model=self._model, content=self._writer.blocks, usage=self._usage())

    def _usage(self) -> AnthropicUsage:
        return AnthropicUsage.of(*self._answer.token_counts())

    def _end(self) -> MessageEnd:
        """Why the message ended."""
        sample = self._answer.samples[0]
        finish = sample.finish
        stop = finish.stop if finish is not None and isinstance(finish.stop, str) else None
        reason: StopReason = "end_turn" if stop is None else "stop_sequence"
        if sample.calls:
            reason = "tool_use"
        if finish is not None and finish.reason == "length":
            full = len(sample.tokens) < self._max_tokens
            reason = "model_context_window_exceeded" if full else "max_tokens"
        return MessageEnd(reason, stop)
