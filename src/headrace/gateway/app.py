"""The web application: routes, error answers, and the life of the replica behind it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.api.errors import (
    ApiError,
    from_invalid_input,
    method_not_allowed,
    route_not_found,
)
from headrace.errors import InvalidInput
from headrace.gateway.chat import Chat
from headrace.gateway.completions import Completions
from headrace.gateway.config import GatewayConfig
from headrace.gateway.embeddings import Embeddings
from headrace.gateway.front import CLIENT_CLOSED, Front, Guard
from headrace.gateway.generation import Generator
from headrace.gateway.grammars import Grammars
from headrace.gateway.http import error_response
from headrace.gateway.message_routes import Messages
from headrace.gateway.metrics import Metrics
from headrace.gateway.replica import Launcher, Replica
from headrace.gateway.response_routes import CreateResponse
from headrace.gateway.response_store import ResponseStore
from headrace.gateway.services import Services
from headrace.gateway.stored_responses import StoredResponses
from headrace.gateway.tokens import Detokenize, Tokenize
from headrace.gateway.watch import Watch
from headrace.text.model_text import ModelText


def build_services(model: str, text: ModelText, launch: Launcher, config: GatewayConfig) -> Services:
    """Put the gateway's parts together.

    Args:
        model: Name under which the model is served.
        text: What the model reads and writes.
        launch: Starts a replica process.
        config: The operator's decisions.
    """
    metrics = Metrics()
    replica = Replica(launch, config, metrics.on_report, metrics.restarts.inc)
    generator = Generator(replica, text, config, metrics)
    grammars = Grammars(text.tokenizer)
    responses = ResponseStore(config.store_bytes, config.store_responses)
    return Services(model, int(time.time()), config, text, replica, generator, metrics, grammars, responses)


def build_app(services: Services) -> Starlette:
    """The application; its lifespan runs the replica."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        replica = asyncio.create_task(services.replica.run())
        yield
        services.generator.draining = True
        await services.replica.stop()
        services.grammars.close()
        replica.cancel()
        await asyncio.gather(replica, return_exceptions=True)

    # From the outside in: what every answer has; then CORS, so that a page can read a 401, too; then keys.
    middleware = [Middleware(Front, services.metrics), Middleware(Guard, services.config.api_keys)]
    if services.config.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=services.config.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "request-id", "traceparent", "X-Headrace-Warning", "Retry-After"],
        )
        middleware.insert(1, cors)
    return Starlette(
        routes=_routes(services),
        middleware=middleware,
        exception_handlers={
            ApiError: _on_api_error,
            InvalidInput: _on_invalid_input,
            HTTPException: _on_http_exception,
            ClientDisconnect: _on_disconnect,
        },
        lifespan=lifespan,
    )


def _routes(services: Services) -> list[Route]:
    watch, stored, messages = Watch(services), StoredResponses(services), Messages(services)
    post, get = ["POST"], ["GET"]
    return [
        Route("/v1/chat/completions", Chat(services).__call__, methods=post),
        Route("/v1/completions", Completions(services).__call__, methods=post),
        Route("/v1/embeddings", Embeddings(services).__call__, methods=post),
        Route("/v1/responses", CreateResponse(services).__call__, methods=post),
        Route("/v1/responses/input_tokens", stored.input_tokens, methods=post),
        Route("/v1/responses/{id}", stored.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/cancel", stored.cancel, methods=post),
        Route("/v1/responses/{id}/input_items", stored.input_items, methods=get),
        Route("/v1/messages", messages.create, methods=post),
        Route("/v1/messages/count_tokens", messages.count_tokens, methods=post),
        Route("/tokenize", Tokenize(services).__call__, methods=post),
        Route("/detokenize", Detokenize(services).__call__, methods=post),
        Route("/v1/models", watch.models, methods=get),
        Route("/v1/models/{model:path}", watch.model, methods=get),
        Route("/health", watch.health, methods=get),
        Route("/ready", watch.ready, methods=get),
        Route("/metrics", watch.metrics, methods=get),
        Route("/debug/state", watch.debug, methods=get),
        Route("/openapi.json", watch.openapi, methods=get),
        Route("/docs", watch.docs, methods=get),
        Route("/", watch.home, methods=get),
    ]


async def _on_api_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, http.scope)


async def _on_invalid_input(http: Request, error: Exception) -> Response:
    assert isinstance(error, InvalidInput)
    return error_response(from_invalid_input(error), http.scope)


async def _on_http_exception(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "").split(", ")
        return error_response(method_not_allowed(http.method, http.url.path, allowed), http.scope)
    if error.status_code == 404:
        return error_response(route_not_found(http.method, http.url.path), http.scope)
    return error_response(ApiError(error.status_code, str(error.detail)), http.scope)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)  # nobody reads it; it is for the log
