"""Routes of the Responses API that read the store, or only count tokens."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode
from headrace.api.errors import ApiError, bad_request, unsupported
from headrace.api.parsing import parse_input_tokens
from headrace.api.responses.output import DeletedResponse, InputItemList, InputTokens
from headrace.gateway.conversation_job import in_words_of_caller
from headrace.gateway.http import json_response
from headrace.gateway.opening import aside, opened
from headrace.gateway.response_context import StoredContext
from headrace.gateway.response_conversation import NAMES, response_conversation
from headrace.gateway.response_store import StoredResponse
from headrace.gateway.services import Services

COUNTER = "input_tokens"
DEFAULT_LIMIT, MAX_LIMIT = 20, 100


class StoredResponses:
    """The routes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def one(self, http: Request) -> Response:
        """``GET`` and ``DELETE /v1/responses/{id}``."""
        if http.path_params["id"] == COUNTER:  # the route of that name takes other methods
            raise HTTPException(405, headers={"Allow": "POST"})
        return self._delete(http) if http.method == "DELETE" else self._retrieve(http)

    async def cancel(self, http: Request) -> Response:
        """``POST /v1/responses/{id}/cancel``: there is nothing in the background."""
        self._stored(http)
        raise bad_request("Only responses in the background can be cancelled, and there are none here.", code=None)

    async def input_items(self, http: Request) -> Response:
        """``GET /v1/responses/{id}/input_items``."""
        items: list[dict[str, Any]] = msgspec.json.decode(self._stored(http).given)
        return json_response(encode(_page(items, http)))

    async def input_tokens(self, http: Request) -> Response:
        """``POST /v1/responses/input_tokens``."""
        services = self._services
        opening = await opened(http, services, parse_input_tokens)
        request = opening.request
        context = StoredContext(services.responses, http.state.tenant)
        conversation = response_conversation(request, context.items(request))
        with in_words_of_caller(NAMES):
            prompt = await aside(opening.size + context.bytes_read, services.text.prompt, conversation)
        return json_response(encode(InputTokens(input_tokens=len(prompt.tokens))), opening.headers())

    def _retrieve(self, http: Request) -> Response:
        if http.query_params.get("stream", "false") == "true":
            raise unsupported("stream", "A stored response is returned whole: leave stream out.")
        return json_response(self._stored(http).response)

    def _delete(self, http: Request) -> Response:
        self._stored(http)
        identifier = http.path_params["id"]
        self._services.responses.delete(http.state.tenant, identifier)
        return json_response(encode(DeletedResponse(id=identifier)))

    def _stored(self, http: Request) -> StoredResponse:
        identifier = http.path_params["id"]
        stored = self._services.responses.get(http.state.tenant, identifier)
        if stored is None:
            raise ApiError(404, f"Response with id {identifier[:100]!r} not found.", code="response_not_found")
        return stored


def _page(items: list[dict[str, Any]], http: Request) -> InputItemList:
    """The items that a query asks for: ``order`` (newest first by default), ``after`` an item, ``limit``."""
    query = http.query_params
    order, after, written = query.get("order", "desc"), query.get("after"), query.get("limit", str(DEFAULT_LIMIT))
    if order not in ("asc", "desc"):
        raise bad_request("'order' must be one of 'asc', 'desc'.", param="order")
    if not (written.isascii() and written.isdecimal() and 1 <= int(written) <= MAX_LIMIT):
        raise bad_request(f"'limit' must be an integer from 1 to {MAX_LIMIT}.", param="limit")
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        places = [i for i, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise bad_request(f"There is no item {after[:100]!r}.", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[: int(written)]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return InputItemList(data=page, first_id=ends[0], last_id=ends[1], has_more=len(page) < len(ordered))
