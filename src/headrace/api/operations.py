"""Operations of the OpenAPI document: what a route takes and answers."""

from __future__ import annotations

from typing import Any

from headrace.api.schemas import PREFIX, Schema, Served

OPENAI_ERROR, ANTHROPIC_ERROR = "ErrorBody", "AnthropicError"
_REASONS = {
    "400": "A field cannot be used; `param` names it.",
    "401": "The API key is missing or unknown.",
    "404": "There is no such thing.",
    "405": "The route takes other methods.",
    "408": "The body did not arrive in time.",
    "413": "The body is over the server's limit.",
    "415": "The body is declared as something other than JSON.",
    "429": "The queue is full; `Retry-After` says for how many seconds to wait.",
    "500": "The server failed.",
    "503": "The engine is loading, restarting or draining.",
}
_REQUEST_ID = {"X-Request-Id": {"description": "Names the request in the logs.", "schema": {"type": "string"}}}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
_WARNING = {
    "X-Headrace-Warning": {"description": "Fields that were ignored (lenient servers).", "schema": {"type": "string"}}
}


REQUEST_ERRORS = ("400", "408", "413", "415", "429", "500", "503")


def example_model(served: Served) -> str:
    """The name of a model for examples."""
    return served.models[0] if served.models else "smollm2-135m"


def ref(name: str) -> Schema:
    """A reference to a schema."""
    return {"$ref": PREFIX + name}


def error(status: str, shape: str = OPENAI_ERROR) -> dict[str, Any]:
    """An answer that is an error."""
    headers = {**_REQUEST_ID, **(_RETRY if status in ("429", "503") else {})}
    return {
        "description": _REASONS[status],
        "headers": headers,
        "content": {"application/json": {"schema": ref(shape)}},
    }


def operation(
    name: str,
    summary: str,
    tag: str,
    answer: str | dict[str, Any],
    errors: tuple[str, ...] = (),
    *,
    shape: str = OPENAI_ERROR,
) -> dict[str, Any]:
    """What a method of a route does.

    Args:
        name: Of the operation.
        summary: What it does.
        tag: Its group.
        answer: The schema of the answer, or its content by media type.
        errors: Statuses of its errors.
        shape: The schema of errors.
    """
    content = {"application/json": {"schema": ref(answer)}} if isinstance(answer, str) else answer
    success = {"description": "Success.", "headers": dict(_REQUEST_ID), "content": content}
    return {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        "responses": {"200": success, **{status: error(status, shape) for status in errors}},
    }


def post(
    operation: dict[str, Any],
    request: str,
    examples: dict[str, Any],
    errors: tuple[str, ...] = (),
    *,
    shape: str = OPENAI_ERROR,
) -> dict[str, Any]:
    """The methods of a route that takes a body.

    Args:
        operation: What POST does.
        request: The schema of the body.
        examples: Bodies by name.
        errors: Statuses of errors beside those that all bodies may have.
        shape: The schema of errors.
    """
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {
                "schema": ref(request),
                "examples": {name: {"value": value} for name, value in examples.items()},
            }
        },
    }
    operation["responses"]["200"]["headers"].update(_WARNING)
    operation["responses"].update({status: error(status, shape) for status in (*REQUEST_ERRORS, *errors)})
    return {"post": operation}


def parameter(name: str, where: str, about: str, schema: Schema | None = None) -> dict[str, Any]:
    """A parameter of a path or query."""
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": about,
        "schema": schema or {"type": "string"},
    }


def chunked(answer: str, chunk: str) -> dict[str, Any]:
    """An answer that is whole, or chunks in nameless events."""
    about = (
        f"With stream true, each event: `data` is the JSON of a {chunk}, or of an ErrorBody that ends the stream; at "
        "the end it is `[DONE]`."
    )
    data = {"anyOf": [{"const": "[DONE]"}, _json_of([chunk, OPENAI_ERROR])]}
    return _streamed(answer, about, {"data": data})


def with_events(answer: str, events: list[str], about: str) -> dict[str, Any]:
    """An answer that is whole, or events that bear the names of their types."""
    return _streamed(answer, f"With stream true. {about}", {"event": {"type": "string"}, "data": _json_of(events)})


def _json_of(schemas: list[str]) -> Schema:
    choices = {"anyOf": [ref(name) for name in schemas]}
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": choices}


def _streamed(answer: str, about: str, properties: Schema) -> dict[str, Any]:
    event = {"type": "object", "description": about, "properties": properties, "required": list(properties)}
    return {"application/json": {"schema": ref(answer)}, "text/event-stream": {"schema": event}}
