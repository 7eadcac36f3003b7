"""Routes for whoever watches the server: models, health, readiness, metrics, inside state, documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from headrace.api.answers import encode
from headrace.api.anthropic.message import ModelInfo, ModelInfoList
from headrace.api.docs_page import docs_page
from headrace.api.errors import unavailable
from headrace.api.openapi import openapi_document, openapi_json
from headrace.api.schemas import Served
from headrace.api.server_answers import DebugAnswer, Model, ModelList, Status
from headrace.gateway.dialect import speaks_anthropic
from headrace.gateway.http import json_response
from headrace.gateway.replica_link import ReplicaGone
from headrace.gateway.services import Services


class Watch:
    """The routes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def models(self, http: Request) -> Response:
        """``/v1/models``."""
        if speaks_anthropic(http.scope):
            model = self._model_info()
            return json_response(encode(ModelInfoList(data=[model], first_id=model.id, last_id=model.id)))
        return json_response(encode(ModelList(data=[self._model()])))

    async def model(self, http: Request) -> Response:
        """``/v1/models/{model}``."""
        self._services.check_model(http.path_params["model"])
        return json_response(encode(self._model_info() if speaks_anthropic(http.scope) else self._model()))

    async def health(self, _: Request) -> Response:
        """``/health``: the gateway lives."""
        return json_response(encode(Status()))

    async def ready(self, _: Request) -> Response:
        """``/ready``: a request would be served now."""
        services = self._services
        if services.generator.draining:
            raise unavailable("The server is shutting down.", code="shutting_down")
        if not services.replica.ready:
            raise unavailable(f"The engine is {services.replica.state.value}.", retry_after_s=2)
        return json_response(encode(Status()))

    async def metrics(self, _: Request) -> Response:
        """``/metrics``."""
        services = self._services
        services.metrics.engine_up.set(services.replica.ready)
        services.metrics.on_stats(services.replica.stats)
        services.metrics.stored.set(len(services.responses))
        services.metrics.stored_bytes.set(services.responses.size)
        return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def debug(self, http: Request) -> Response:
        """``/debug/state``; with ``?check=1`` the engine checks its invariants too."""
        services = self._services
        try:
            answer = await services.replica.link.inspect(check=http.query_params.get("check") in ("1", "true"))
        except ReplicaGone as error:
            raise unavailable(str(error), retry_after_s=2) from error
        state = {**answer.state, "admitted": services.generator.admitted, "restarts": services.replica.restarts}
        return json_response(encode(DebugAnswer(state=state, problems=answer.problems)))

    async def openapi(self, _: Request) -> Response:
        """``/openapi.json``."""
        return json_response(_openapi(self._served()))

    async def docs(self, http: Request) -> Response:
        """``/docs``."""
        return HTMLResponse(_page(self._served(), str(http.base_url).rstrip("/")))

    async def home(self, _: Request) -> Response:
        """``/`` leads to the documentation."""
        return RedirectResponse("/docs")

    def _served(self) -> Served:
        services, info = self._services, self._services.replica.info
        return Served(
            models=(services.model,),
            vocab_size=None if info is None else info.vocab_size,
            context_length=None if info is None else info.context_length,
            hidden_size=None if info is None else info.hidden_size,
            auth=bool(services.config.api_keys),
            lenient=services.config.lenient,
        )

    def _model(self) -> Model:
        services, info = self._services, self._services.replica.info
        context = UNSET if info is None else info.context_length
        return Model(id=services.model, created=services.created, max_model_len=context)

    def _model_info(self) -> ModelInfo:
        model = self._model()
        context = model.max_model_len or None
        made = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return ModelInfo(
            id=model.id, display_name=model.id, created_at=made, max_input_tokens=context, max_tokens=context
        )


# Writing either takes some 15 ms, in which no stream goes on; what is served changes at most when the engine is up.
_openapi = lru_cache(maxsize=4)(openapi_json)


@lru_cache(maxsize=16)
def _page(served: Served, base_url: str) -> str:
    return docs_page(openapi_document(served), base_url=base_url)
