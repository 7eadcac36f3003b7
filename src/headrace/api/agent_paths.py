"""The routes of the Responses and Messages APIs in the OpenAPI document."""

from __future__ import annotations

from typing import Any, get_args

from headrace.api.anthropic.events import MessageEvent
from headrace.api.operations import ANTHROPIC_ERROR, example_model, operation, parameter, post, with_events
from headrace.api.responses.events import StreamEvent
from headrace.api.schemas import Served

_TAG = "Responses"
_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


def responses_paths(served: Served) -> dict[str, Any]:
    """The routes of the Responses API."""
    events = [kind.__name__ for kind in get_args(StreamEvent)]
    about = "Each event bears the name of its type; the last one holds the whole Response."
    create = operation(
        "createResponse", "Answer, with items and a memory", _TAG, with_events("Response", events, about)
    )
    count = operation("countInputTokens", "Count the tokens of a prompt", _TAG, "InputTokens")
    model, question = example_model(served), "Name three rivers."
    tool = {"type": "function", "name": "get_weather", "parameters": _WEATHER}
    examples = {
        "plain": {"model": model, "input": question, "max_output_tokens": 32},
        "tool": {"model": model, "input": "Is it warm in Oslo?", "tools": [tool], "max_output_tokens": 32},
    }
    return {
        "/v1/responses": post(create, "ResponsesRequest", examples, ("404",)),
        "/v1/responses/input_tokens": post(count, "InputTokensRequest", {"plain": {"input": question}}, ("404",)),
        "/v1/responses/{id}": {
            "get": _stored(operation("getResponse", "Read a stored response", _TAG, "Response", ("400", "404"))),
            "delete": _stored(operation("deleteResponse", "Forget a response", _TAG, "DeletedResponse", ("404",))),
        },
        "/v1/responses/{id}/cancel": {
            "post": _stored(
                operation(
                    "cancelResponse",
                    "Cancel a response in the background, of which there are none",
                    _TAG,
                    "Response",
                    ("400", "404"),
                )
            )
        },
        "/v1/responses/{id}/input_items": {
            "get": _stored(
                operation("listInputItems", "List what a response was given", _TAG, "InputItemList", ("400", "404")),
                parameter("order", "query", "Newest first by default.", {"enum": ["asc", "desc"]}),
                parameter("limit", "query", "Most items.", {"type": "integer", "minimum": 1, "maximum": 100}),
                parameter("after", "query", "The last item of the page before."),
            )
        },
    }


def messages_paths(served: Served) -> dict[str, Any]:
    """The routes of the Messages API."""
    events = [*(kind.__name__ for kind in get_args(MessageEvent)), ANTHROPIC_ERROR]
    about = "Each event bears the name of its type; an AnthropicError ends the stream before its time."
    content = with_events("AnthropicMessage", events, about)
    create = operation("createMessage", "Answer, as Anthropic's clients ask", "Messages", content)
    count = operation("countTokens", "Count the tokens of a prompt", "Messages", "TokenCount")
    prompt = {"model": example_model(served), "messages": [{"role": "user", "content": "Name three rivers."}]}
    tool = {"name": "get_weather", "input_schema": _WEATHER}
    examples = {"plain": {**prompt, "max_tokens": 32}, "tool": {**prompt, "max_tokens": 32, "tools": [tool]}}
    return {
        "/v1/messages": post(create, "MessagesRequest", examples, ("404",), shape=ANTHROPIC_ERROR),
        "/v1/messages/count_tokens": post(
            count, "CountTokensRequest", {"plain": prompt}, ("404",), shape=ANTHROPIC_ERROR
        ),
    }


def _stored(method: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    """A method of a stored response."""
    return {**method, "parameters": [parameter("id", "path", "Of the response."), *parameters]}
