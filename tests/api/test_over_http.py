"""The wire formats behind a minimal application with canned answers, for schemathesis and the official client."""

from __future__ import annotations

import asyncio
import html.parser

import httpx2
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from headrace.api import errors, parsing, sse
from headrace.api.answers import encode, usage
from headrace.api.anthropic.errors import anthropic_error
from headrace.api.anthropic.events import MessageStart, MessageStop
from headrace.api.anthropic.message import AnthropicMessage, AnthropicUsage, TextBlock, TokenCount
from headrace.api.chat_answers import AnswerMessage, ChatChoice, ChatCompletion, ChatCompletionChunk, ChunkChoice, Delta
from headrace.api.completion_answers import Completion, CompletionChoice
from headrace.api.docs_page import docs_page
from headrace.api.embeddings import Embedding, EmbeddingList, EmbeddingUsage
from headrace.api.openapi import OPEN_ROUTES, openapi_document, openapi_json
from headrace.api.responses.events import Completed, Created
from headrace.api.responses.output import (
    InputItemList,
    InputTokens,
    OutputMessage,
    OutputText,
    ResponseUsage,
)
from headrace.api.responses.output import Response as Response_
from headrace.api.schemas import Served, decimals_below
from headrace.api.server_answers import DebugAnswer, Detokenized, Model, ModelList, Status, Tokenized

SERVED = Served(models=("m",))
MODEL = Model(id="m", created=1, max_model_len=64)


def _json(answer) -> Response:
    return Response(encode(answer), media_type="application/json")


def _failed(error: errors.ApiError, path: str = "") -> Response:
    body = encode(anthropic_error(error, "req-1")) if path.startswith("/v1/messages") else error.body()
    return Response(body, error.status, {"Content-Type": "application/json", **error.headers})


def _post(parser, answer):
    async def endpoint(request):
        try:
            kind = request.headers.get("content-type", "")
            if kind.split(";")[0].strip().lower() != "application/json":
                raise errors.unsupported_media_type(kind)
            parsed = parser(await request.body()).request
            if parsed.model not in ("m", None):
                raise errors.model_not_found(parsed.model, ["m"])
            return answer(parsed)
        except errors.ApiError as error:
            return _failed(error, request.url.path)

    return endpoint


def _chat(request) -> Response:
    if request.user == "busy":
        raise errors.overloaded(1)
    if request.user == "down":
        raise errors.unavailable("The engine is loading.")
    if not request.stream:
        choice = ChatChoice(index=0, message=AnswerMessage(content="Hi"), finish_reason="stop")
        return _json(ChatCompletion(id="x", created=1, model="m", choices=[choice], usage=usage(3, 1)))

    def chunk(*choices, usage=None):
        return sse.event(ChatCompletionChunk(id="x", created=1, model="m", choices=list(choices), usage=usage))

    events = [sse.KEEP_ALIVE, chunk(ChunkChoice(index=0, delta=Delta("assistant", "")))]
    events.append(chunk(ChunkChoice(index=0, delta=Delta(content="Hi"))))
    if request.user == "breaks":
        events.append(sse.error_event(errors.internal_error("The engine died.")))
    else:
        events.append(chunk(ChunkChoice(index=0, delta=Delta(), finish_reason="stop")))
        events += [chunk(usage=usage(3, 1))] if request.include_usage else []
        events.append(sse.DONE)
    return Response(b"".join(events), headers=sse.HEADERS)


def _text(request) -> Response:
    choices = [CompletionChoice(index=i, text="Hi", finish_reason="stop") for i in range(len(request.prompts()))]
    answer = Completion(id="x", created=1, model="m", choices=choices)
    return Response(sse.event(answer) + sse.DONE, headers=sse.HEADERS) if request.stream else _json(answer)


def _get(answer):
    async def endpoint(request):
        name = request.path_params.get("model", "m")
        return answer if name == "m" else _failed(errors.model_not_found(name))

    return endpoint


def _not_routed(request, error) -> Response:
    if error.status_code == 405:
        allowed = error.headers["Allow"].split(", ")
        return _failed(errors.method_not_allowed(request.method, request.url.path, allowed), request.url.path)
    return _failed(errors.route_not_found(request.method, request.url.path), request.url.path)


def _tokenized(_) -> Response:
    return _json(Tokenized(count=0, max_model_len=64, tokens=[]))


RESPONSE = Response_(
    id="resp_1",
    created_at=1,
    status="completed",
    instructions=None,
    max_output_tokens=None,
    max_tool_calls=None,
    model="m",
    output=[OutputMessage(id="msg_1", status="completed", content=[OutputText(text="Hi")])],
    parallel_tool_calls=True,
    previous_response_id=None,
    prompt_cache_key=None,
    reasoning={"effort": None},
    safety_identifier=None,
    service_tier="default",
    store=True,
    temperature=1.0,
    text={"format": {"type": "text"}},
    tool_choice="auto",
    tools=[],
    top_logprobs=0,
    top_p=1.0,
    usage=ResponseUsage.of(3, 1, 0, 0),
    user=None,
    metadata={},
)
MESSAGE = AnthropicMessage(
    id="msg_1", model="m", content=[TextBlock("Hi")], stop_reason="end_turn", usage=AnthropicUsage.of(3, 1, 0, 0)
)
ITEMS = InputItemList(data=[], first_id=None, last_id=None, has_more=False)


def _response(request) -> Response:
    if not request.stream:
        return _json(RESPONSE)
    events = [Created(sequence_number=0, response=RESPONSE), Completed(sequence_number=1, response=RESPONSE)]
    return Response(b"".join(map(sse.named_event, events)), headers=sse.HEADERS)


def _message(request) -> Response:
    if not request.stream:
        return _json(MESSAGE)
    events = [MessageStart(MESSAGE), MessageStop()]
    return Response(b"".join(map(sse.named_event, events)), headers=sse.HEADERS)


async def _stored(request):
    if request.path_params["id"] == "input_tokens":
        raise HTTPException(405, headers={"Allow": "POST"})
    return _failed(errors.ApiError(404, "Not found."))


async def _items(request):
    query = request.query_params
    limit = query.get("limit", "1")
    if query.get("order", "asc") not in ("asc", "desc") or not (limit.isdecimal() and 1 <= int(limit) <= 100):
        return _failed(errors.bad_request("'order' and 'limit' have bounds."))
    return _json(ITEMS)


def _embedded(request) -> Response:
    vector = "AACAPw==" if request.encoding_format == "base64" else [1.0]
    data = [Embedding(index=i, embedding=vector) for i in range(len(request.inputs()))]
    return _json(EmbeddingList(data=data, model="m", usage=EmbeddingUsage(1, 1)))


POST = {"methods": ["POST"]}
APP = Starlette(
    routes=[
        Route("/v1/models", _get(_json(ModelList(data=[MODEL])))),
        Route("/v1/models/{model:path}", _get(_json(MODEL))),
        Route("/v1/chat/completions", _post(parsing.parse_chat, _chat), **POST),
        Route("/v1/completions", _post(parsing.parse_completion, _text), **POST),
        Route("/v1/embeddings", _post(parsing.parse_embedding, _embedded), **POST),
        Route("/v1/responses", _post(parsing.parse_response, _response), **POST),
        Route(
            "/v1/responses/input_tokens",
            _post(parsing.parse_input_tokens, lambda _: _json(InputTokens(input_tokens=1))),
            **POST,
        ),
        Route("/v1/responses/{id}", _stored, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/cancel", _stored, **POST),
        Route("/v1/responses/{id}/input_items", _items),
        Route("/v1/messages", _post(parsing.parse_messages, _message), **POST),
        Route("/v1/messages/count_tokens", _post(parsing.parse_count_tokens, lambda _: _json(TokenCount(1))), **POST),
        Route("/tokenize", _post(parsing.parse_tokenize, _tokenized), **POST),
        Route("/detokenize", _post(parsing.parse_detokenize, lambda _: _json(Detokenized(""))), **POST),
        Route("/health", _get(_json(Status()))),
        Route("/ready", _get(_json(Status()))),
        Route("/metrics", _get(Response("a 1\n", media_type="text/plain"))),
        Route("/debug/state", _get(_json(DebugAnswer(state={})))),
        Route("/openapi.json", _get(Response(openapi_json(SERVED), media_type="application/json"))),
    ],
    exception_handlers={HTTPException: _not_routed},
)
schema = schemathesis.openapi.from_asgi("/openapi.json", APP)
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def unsayable(case) -> bool:
    """Whether a body breaks one of the rules between fields that the schema does not express."""
    numbers = case.body if isinstance(case.body, dict) else {}
    if case.path.startswith("/v1/messages") and _breaks_a_rule_of_messages(numbers):
        return True
    tools, form = numbers.get("tools"), numbers.get("response_format")
    if (isinstance(tools, list) and len(tools) > 1) or isinstance(numbers.get("tool_choice"), dict):
        return True  # tools of one name, a tool that is none
    forms = [numbers.get(name) for name in ("regex", "choice", "grammar")]
    forms.append((isinstance(form, dict) and form.get("type") != "text") or None)
    given = sum(form is not None for form in forms)
    must_call = numbers.get("tool_choice") not in (None, "auto", "none")
    bound = given or must_call
    if given > 1 or (must_call and not tools) or (bound and (numbers.get("min_tokens") or numbers.get("ignore_eos"))):
        return True
    low = numbers.get("min_tokens")
    highs = (numbers.get("max_tokens"), numbers.get("max_completion_tokens"))
    return isinstance(low, int | float) and any(isinstance(high, int | float) and low > high for high in highs)


def _breaks_a_rule_of_messages(body) -> bool:
    thinking, config, turns = (body.get(name) or {} for name in ("thinking", "output_config", "messages"))
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(budget, int | float) and budget >= (body.get("max_tokens") or 0):
        return True
    if isinstance(config, dict) and config.get("format") is not None and body.get("output_format") is not None:
        return True
    last = turns[-1] if isinstance(turns, list) and turns else None
    return isinstance(last, dict) and last.get("role") == "assistant"


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=QUIET)
def test_the_schema_says_what_the_parser_does(case):
    assume(not unsayable(case))
    case.call_and_validate()


@pytest.mark.bars
@schema.parametrize()
@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
def test_the_schema_says_what_the_parser_does_at_length(case):
    assume(not unsayable(case))
    case.call_and_validate()


def ask(**fields):
    async def call():
        transport = httpx2.ASGITransport(app=APP)
        async with httpx2.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(api_key="k", base_url="http://test/v1", http_client=http, max_retries=0)
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
            answer = await client.chat.completions.create(**body)
            return [chunk async for chunk in answer] if fields.get("stream") else answer

    return asyncio.run(call())


def test_the_official_client_reads_answers_and_streams():
    assert ask().choices[0].message.content == "Hi"
    chunks = ask(stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hi"
    assert [chunk.usage is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1].choices == []


@pytest.mark.parametrize(
    ("fields", "expected", "param"),
    [
        ({"temperature": 5}, openai.BadRequestError, "temperature"),
        ({"model": "gpt"}, openai.NotFoundError, "model"),
        ({"user": "busy"}, openai.RateLimitError, None),
        ({"user": "down"}, openai.InternalServerError, None),
        ({"user": "breaks", "stream": True}, openai.APIError, None),
        ({"extra_body": {"max_token": 1}}, openai.BadRequestError, "max_token"),
    ],
)
def test_the_official_client_raises_its_error_classes(fields, expected, param):
    with pytest.raises(expected) as caught:
        ask(**fields)
    assert caught.value.param == param
    assert caught.value.code
    assert caught.value.type


def test_the_document_follows_what_is_served():
    served = Served(models=("m",), vocab_size=1000, context_length=64, hidden_size=8, auth=True, lenient=True)
    document = openapi_document(served)
    schemas = document["components"]["schemas"]
    assert "additionalProperties" not in schemas["ChatRequest"]
    assert schemas["ChatRequest"]["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 63
    assert schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] == 999
    assert schemas["EmbeddingRequest"]["properties"]["dimensions"]["enum"] == [8, None]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in OPEN_ROUTES)
    assert openapi_document()["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False


@pytest.mark.parametrize("limit", [1, 2, 10, 11, 99, 100, 101, 1234, 49152])
def test_decimals_below(limit):
    import re

    pattern = re.compile(decimals_below(limit))
    for number in range(limit + 200):
        assert bool(pattern.match(str(number))) == (number < limit)
    assert not pattern.match("00")


class _Page(html.parser.HTMLParser):
    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.targets += [values["href"]] if "href" in values else []


def test_the_docs_page_stands_alone():
    text = docs_page(openapi_document(Served(models=("a'\"<b>",))))
    page = _Page(text)
    assert not page.tags & {"script", "img", "iframe", "b"}
    assert {target for target in page.targets if not target.startswith("#")} == {"openapi.json", "data:,"}
    assert len(page.ids) == len(set(page.ids))
    assert {target.removeprefix("#") for target in page.targets if target.startswith("#")} <= set(page.ids)
    for path in openapi_document()["paths"]:
        assert path in text
