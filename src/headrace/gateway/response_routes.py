"""``/v1/responses``: OpenAI's Responses API; what it asks of stored responses is in ``stored_responses.py``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from headrace.api.answers import encode, unix_time
from headrace.api.errors import ApiError
from headrace.api.parsing import parse_response
from headrace.api.responses.events import Completed, Created, Failed, Incomplete, InProgress
from headrace.api.responses.items import InputItem
from headrace.api.responses.output import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseUsage,
    new_item_id,
)
from headrace.api.responses.request import ENCRYPTED, ResponsesRequest
from headrace.api.sse import named_event
from headrace.gateway.answer import Answer, serve
from headrace.gateway.conversation_job import conversation_job
from headrace.gateway.http import until_disconnected
from headrace.gateway.job import SampleDelta
from headrace.gateway.opening import opened
from headrace.gateway.response_context import StoredContext
from headrace.gateway.response_conversation import NAMES, response_conversation
from headrace.gateway.response_writer import OutputWriter
from headrace.gateway.services import Services

# OpenAI has these names, and none for an answer that its own grammar ends.
_ERRORS = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
_TIERS = {"auto": "default", "fast": "priority", "ultrafast": "priority"}


class CreateResponse:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> HttpResponse:
        """Answer a request for a response."""
        services = self._services
        opening = await opened(http, services, parse_response)
        request = opening.request
        context = StoredContext(services.responses, http.state.tenant)
        items = context.items(request)
        making = conversation_job(
            services,
            opening,
            response_conversation(request, items),
            more_bytes=context.bytes_read,
            fields=("input", "max_output_tokens"),
            names=NAMES,
        )
        made = await until_disconnected(http, making)
        stream = bool(request.stream)
        writer = OutputWriter(services.tokenizer, seals_reasoning=request.wants(ENCRYPTED), wants_events=stream)
        answer = Answer([made.job], watch=writer.take)
        return await serve(
            http,
            services,
            answer,
            headers=opening.headers(made.warnings),
            stream=stream,
            shape=_Shape(services, request, answer, writer, context, items),
        )


class _Shape:
    """What a response looks like, whole and in events; and its place in the store, once it has ended."""

    def __init__(
        self,
        services: Services,
        request: ResponsesRequest,
        answer: Answer,
        writer: OutputWriter,
        context: StoredContext,
        items: list[InputItem],
    ) -> None:
        self._answer = answer
        self._writer = writer
        self._context = context
        self._items = items
        self._blank = _blank(request, services.model)

    def whole(self) -> bytes:
        """The response, once it has ended."""
        return encode(self._ended())

    async def events(self, steps: AsyncIterator[list[SampleDelta]]) -> AsyncGenerator[bytes, None]:
        """The response in events: its head, its items as they come, and the whole of it."""
        begun = False
        try:
            async for _ in steps:
                head = b"" if begun else self._head()
                begun = True
                if new := head + b"".join(map(named_event, self._writer.drain())):
                    yield new
        except ApiError as error:
            if not begun:
                raise
            yield named_event(Failed(sequence_number=next(self._writer.numbers), response=self._failed(error)))
            return
        response = self._ended()
        kind = Completed if response.status == "completed" else Incomplete
        tail = b"".join(map(named_event, self._writer.drain()))
        yield tail + named_event(kind(sequence_number=next(self._writer.numbers), response=response))

    def _head(self) -> bytes:
        return named_event(Created(sequence_number=0, response=self._blank)) + named_event(
            InProgress(sequence_number=1, response=self._blank)
        )

    def _ended(self) -> Response:
        """The whole response, which is now kept."""
        finish = self._answer.samples[0].finish
        cut = finish is not None and finish.reason == "length"
        self._writer.end("incomplete" if cut else "completed")
        return self._kept(
            replace(
                self._blank,
                status="incomplete" if cut else "completed",
                completed_at=unix_time(),
                incomplete_details=IncompleteDetails() if cut else None,
                output=self._writer.items,
                usage=ResponseUsage.of(*self._answer.token_counts()),
            )
        )

    def _failed(self, error: ApiError) -> Response:
        """What there was when the engine failed."""
        code = _ERRORS.get(error.status, "server_error")
        self._writer.end("incomplete")
        failure = ResponseError(code, error.message)
        return self._kept(replace(self._blank, status="failed", error=failure, output=self._writer.items))

    def _kept(self, response: Response) -> Response:
        if response.store:
            self._context.keep(response, self._items)
        return response


def _blank(request: ResponsesRequest, model: str) -> Response:
    """The response before it begins: what was asked for."""
    reasoning, text, choice = request.reasoning, request.text, request.tool_choice
    return Response(
        id=new_item_id("resp"),
        created_at=unix_time(),
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning={"effort": None if reasoning is None else reasoning.effort, "summary": None},
        safety_identifier=request.safety_identifier,
        service_tier=_TIERS.get(request.tier, request.tier),
        store=request.store is not False,
        temperature=1.0 if request.temperature is None else request.temperature,
        text={"format": {"type": "text"} if text is None or text.format is None else msgspec.to_builtins(text.format)},
        tool_choice="auto" if choice is None else msgspec.to_builtins(choice),
        tools=[msgspec.to_builtins(tool) for tool in request.tools or ()],
        top_logprobs=request.top_logprobs or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        user=request.user,
        metadata=request.metadata or {},
    )
