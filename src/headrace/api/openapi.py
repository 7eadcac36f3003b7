"""The OpenAPI 3.1 document of the server, made from the types that parse its requests and write its answers."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import msgspec

from headrace.api.agent_paths import messages_paths, responses_paths
from headrace.api.operations import (
    ANTHROPIC_ERROR,
    OPENAI_ERROR,
    chunked,
    error,
    example_model,
    operation,
    parameter,
    post,
    ref,
)
from headrace.api.schemas import Served, components

# Whoever watches a server has no key.
OPEN_ROUTES = ("/health", "/ready", "/metrics")


def openapi_document(served: Served | None = None) -> dict[str, Any]:
    """The document as plain data.

    Args:
        served: What is served, for narrower schemas (names of models, vocabulary, context).
    """
    served = served or Served()
    paths = {
        **_generation_paths(served),
        **responses_paths(served),
        **messages_paths(served),
        **_token_paths(),
        **_model_paths(),
        **_watch_paths(),
    }
    for path, methods in paths.items():
        for method in methods.values():
            if served.auth and path not in OPEN_ROUTES:
                shape = ANTHROPIC_ERROR if path.startswith("/v1/messages") else OPENAI_ERROR
                method["security"] = [{"apiKey": []}, {"xApiKey": []}]
                method["responses"]["401"] = error("401", shape)
            method["responses"] = dict(sorted(method["responses"].items()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": metadata.version("headrace"),
            "summary": "Inference server that speaks the APIs of OpenAI and Anthropic.",
            "description": "Unknown fields are refused, and so are known ones that would change the answer and are not "
            "supported. Null means absent for every optional field. Errors have the shape that the API of their route "
            "gives them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components(served),
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer"},
                "xApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def openapi_json(served: Served | None = None) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(openapi_document(served))


def _either(answer: str) -> dict[str, Any]:
    """An answer in OpenAI's shape, or in Anthropic's where the request has the header ``anthropic-version``."""
    theirs = {"Model": "ModelInfo", "ModelList": "ModelInfoList"}[answer]
    return {"application/json": {"schema": {"anyOf": [ref(answer), ref(theirs)]}}}


def _model_paths() -> dict[str, Any]:
    one = operation("retrieveModel", "Describe a model", "Models", _either("Model"), ("404",))
    one["parameters"] = [parameter("model", "path", "Name of the model; may hold slashes.")]
    return {
        "/v1/models": {"get": operation("listModels", "List the models", "Models", _either("ModelList"))},
        "/v1/models/{model}": {"get": one},
    }


def _generation_paths(served: Served) -> dict[str, Any]:
    model = example_model(served)
    chat = operation(
        "createChatCompletion", "Answer a chat", "Generation", chunked("ChatCompletion", "ChatCompletionChunk")
    )
    text = operation("createCompletion", "Continue a text", "Generation", chunked("Completion", "Completion"))
    embed = operation("createEmbedding", "Turn texts into vectors", "Embeddings", "EmbeddingList")
    question = [{"role": "user", "content": "Name three rivers."}]
    return {
        "/v1/chat/completions": post(
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
        "/v1/completions": post(
            text,
            "CompletionRequest",
            {
                "text": {"model": model, "prompt": "Once upon a time", "max_tokens": 16},
                "scored": {"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "echo": True, "logprobs": 2},
            },
            ("404",),
        ),
        "/v1/embeddings": post(
            embed,
            "EmbeddingRequest",
            {"texts": {"model": model, "input": ["The river rises in the Alps.", "It ends in the sea."]}},
            ("404",),
        ),
    }


def _token_paths() -> dict[str, Any]:
    tokenize = operation("tokenize", "Turn text or a chat into token ids", "Tokens", "Tokenized")
    detokenize = operation("detokenize", "Turn token ids into text", "Tokens", "Detokenized")
    return {
        "/tokenize": post(tokenize, "TokenizeRequest", {"text": {"prompt": "Hello there"}}, ("404",)),
        "/detokenize": post(detokenize, "DetokenizeRequest", {"tokens": {"tokens": [1, 2, 3]}}, ("404",)),
    }


def _watch_paths() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string", "description": "Prometheus text format."}}}
    return {
        "/health": {"get": operation("health", "Is the server alive?", "Watching", "Status")},
        "/ready": {"get": operation("ready", "Can it serve a request now?", "Watching", "Status", ("503",))},
        "/metrics": {"get": operation("metrics", "Prometheus metrics", "Watching", text)},
        "/debug/state": {
            "get": operation("debugState", "Slots, queue, pages and tree", "Watching", "DebugAnswer", ("500", "503"))
        },
    }
