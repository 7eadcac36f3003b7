"""The OpenAPI 3.1 document of the server, made from the types that parse its requests and write its answers."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import msgspec

from headrace.api.schemas import PREFIX, Schema, Served, components

# Whoever watches a server has no key.
OPEN_ROUTES = ("/health", "/ready", "/metrics")

_REASONS = {
    "400": "A field cannot be used; `param` names it.",
    "401": "The API key is missing or unknown.",
    "404": "No such model.",
    "405": "The route takes other methods.",
    "408": "The body did not arrive in time.",
    "413": "The body is over the server's limit.",
    "415": "The body is declared as something other than JSON.",
    "429": "The queue is full; `Retry-After` says for how many seconds to wait.",
    "500": "The server failed.",
    "503": "The engine is loading, restarting or draining.",
}
_BODY_ERRORS = ("400", "408", "413", "415", "429", "500", "503")
_REQUEST_ID = {"X-Request-Id": {"description": "Names the request in the logs.", "schema": {"type": "string"}}}
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
_WARNING = {
    "X-Headrace-Warning": {"description": "Fields that were ignored (lenient servers).", "schema": {"type": "string"}}
}


def openapi_document(served: Served | None = None) -> dict[str, Any]:
    """The document as plain data.

    Args:
        served: What is served, for narrower schemas (names of models, vocabulary, context).
    """
    served = served or Served()
    paths = {**_generation_paths(served), **_token_paths(), **_model_paths(), **_watch_paths()}
    for path, methods in paths.items():
        for operation in methods.values():
            if served.auth and path not in OPEN_ROUTES:
                operation["security"] = [{"apiKey": []}]
                operation["responses"]["401"] = _error("401")
            operation["responses"] = dict(sorted(operation["responses"].items()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": metadata.version("headrace"),
            "summary": "OpenAI-compatible inference server.",
            "description": "Unknown fields are refused, and so are known ones that would change the answer and are not "
            "supported. Null means absent for every optional field. Errors have OpenAI's shape.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components(served),
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_json(served: Served | None = None) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(openapi_document(served))


def _ref(name: str) -> Schema:
    return {"$ref": PREFIX + name}


def _error(status: str) -> dict[str, Any]:
    headers = {**_REQUEST_ID, **(_RETRY if status in ("429", "503") else {})}
    return {
        "description": _REASONS[status],
        "headers": headers,
        "content": {"application/json": {"schema": _ref("ErrorBody")}},
    }


def _operation(
    name: str, summary: str, tag: str, answer: str | dict[str, Any], errors: tuple[str, ...] = ()
) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref(answer)}} if isinstance(answer, str) else answer
    success = {"description": "Success.", "headers": dict(_REQUEST_ID), "content": content}
    return {
        "operationId": name,
        "summary": summary,
        "tags": [tag],
        "responses": {"200": success, **{status: _error(status) for status in errors}},
    }


def _post(
    operation: dict[str, Any], request: str, examples: dict[str, Any], errors: tuple[str, ...] = ()
) -> dict[str, Any]:
    operation["requestBody"] = {
        "required": True,
        "content": {
            "application/json": {
                "schema": _ref(request),
                "examples": {name: {"value": value} for name, value in examples.items()},
            }
        },
    }
    operation["responses"]["200"]["headers"].update(_WARNING)
    operation["responses"].update({status: _error(status) for status in (*_BODY_ERRORS, *errors)})
    return {"post": operation}


def _streamed(answer: str, chunk: str) -> dict[str, Any]:
    return {
        "application/json": {"schema": _ref(answer)},
        "text/event-stream": {
            "schema": {
                "type": "object",
                "description": f"With stream true, each event: `data` is the JSON of a {chunk}, or of an ErrorBody "
                "that ends the stream; at the end it is `[DONE]`.",
                "properties": {
                    "data": {
                        "anyOf": [
                            {"const": "[DONE]"},
                            {
                                "type": "string",
                                "contentMediaType": "application/json",
                                "contentSchema": {"anyOf": [_ref(chunk), _ref("ErrorBody")]},
                            },
                        ]
                    }
                },
                "required": ["data"],
            },
        },
    }


def _model_paths() -> dict[str, Any]:
    one = _operation("retrieveModel", "Describe a model", "Models", "Model", ("404",))
    one["parameters"] = [
        {
            "name": "model",
            "in": "path",
            "required": True,
            "description": "Name of the model; may hold slashes.",
            "schema": {"type": "string"},
        }
    ]
    return {
        "/v1/models": {"get": _operation("listModels", "List the models", "Models", "ModelList")},
        "/v1/models/{model}": {"get": one},
    }


def _generation_paths(served: Served) -> dict[str, Any]:
    model = served.models[0] if served.models else "smollm2-135m"
    chat = _operation(
        "createChatCompletion", "Answer a chat", "Generation", _streamed("ChatCompletion", "ChatCompletionChunk")
    )
    text = _operation("createCompletion", "Continue a text", "Generation", _streamed("Completion", "Completion"))
    question = [{"role": "user", "content": "Name three rivers."}]
    return {
        "/v1/chat/completions": _post(
            chat,
            "ChatRequest",
            {
                "plain": {"model": model, "messages": question, "max_tokens": 32},
                "streamed": {
                    "model": model,
                    "messages": question,
                    "max_tokens": 32,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            },
            ("404",),
        ),
        "/v1/completions": _post(
            text,
            "CompletionRequest",
            {
                "text": {"model": model, "prompt": "Once upon a time", "max_tokens": 16},
                "scored": {"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "echo": True, "logprobs": 2},
            },
            ("404",),
        ),
    }


def _token_paths() -> dict[str, Any]:
    tokenize = _operation("tokenize", "Turn text or a chat into token ids", "Tokens", "Tokenized")
    detokenize = _operation("detokenize", "Turn token ids into text", "Tokens", "Detokenized")
    return {
        "/tokenize": _post(tokenize, "TokenizeRequest", {"text": {"prompt": "Hello there"}}, ("404",)),
        "/detokenize": _post(detokenize, "DetokenizeRequest", {"tokens": {"tokens": [1, 2, 3]}}, ("404",)),
    }


def _watch_paths() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string", "description": "Prometheus text format."}}}
    return {
        "/health": {"get": _operation("health", "Is the server alive?", "Watching", "Status")},
        "/ready": {"get": _operation("ready", "Can it serve a request now?", "Watching", "Status", ("503",))},
        "/metrics": {"get": _operation("metrics", "Prometheus metrics", "Watching", text)},
        "/debug/state": {
            "get": _operation("debugState", "Slots, queue, pages and tree", "Watching", "DebugAnswer", ("500", "503"))
        },
    }
