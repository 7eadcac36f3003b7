"""``/v1/embeddings``."""

from __future__ import annotations

import base64

from starlette.requests import Request
from starlette.responses import Response

from headrace.api.answers import encode
from headrace.api.embeddings import Embedding, EmbeddingList, EmbeddingRequest, EmbeddingUsage
from headrace.api.errors import bad_request
from headrace.api.parsing import parse_embedding
from headrace.engine.embedding import to_vector
from headrace.engine.sampling_params import SamplingParams
from headrace.gateway.answer import Answer, AnsweredSample, serve_whole
from headrace.gateway.job import Job
from headrace.gateway.opening import aside, opened
from headrace.gateway.prompts import prompts_of
from headrace.gateway.services import Services

NO_TOKENS = SamplingParams()  # nothing in it counts for an embedding


class Embeddings:
    """The route."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, http: Request) -> Response:
        """Answer with a vector for each input."""
        services = self._services
        opening = await opened(http, services, parse_embedding)
        request = opening.request
        inputs = request.inputs()
        prompts = await aside(opening.size, prompts_of, services, inputs)
        for (field, _), prompt in zip(inputs, prompts, strict=True):
            services.generator.check(prompt, NO_TOKENS, fields=(field, "max_tokens"), answered=False)
        self._check_dimensions(request)
        pooling = request.pooling or "mean"
        jobs = [Job.of(opening, prompt, NO_TOKENS, pooling=pooling) for prompt in prompts]
        answer = Answer(jobs)
        return await serve_whole(
            http,
            services,
            answer,
            headers=opening.headers(),
            body=lambda: self._body(request, answer),
            size=len(jobs) * self._bytes_a_vector(),
        )

    def _bytes_a_vector(self) -> int:
        info = self._services.replica.info
        return 0 if info is None else 4 * info.hidden_size

    def _check_dimensions(self, request: EmbeddingRequest) -> None:
        info = self._services.replica.info
        if info is not None and request.dimensions not in (None, info.hidden_size):
            raise bad_request(
                f"This model's embeddings have {info.hidden_size} dimensions, and cannot be had with others.",
                param="dimensions",
            )

    def _body(self, request: EmbeddingRequest, answer: Answer) -> bytes:
        tokens = answer.token_counts()[0]
        data = [_embedding(request, i, sample) for i, sample in enumerate(answer.samples)]
        return encode(EmbeddingList(data=data, model=self._services.model, usage=EmbeddingUsage(tokens, tokens)))


def _embedding(request: EmbeddingRequest, index: int, sample: AnsweredSample) -> Embedding:
    vector = to_vector(sample.embedding, normalize=request.normalize is not False)
    if request.encoding_format == "base64":
        return Embedding(index=index, embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode())
    return Embedding(index=index, embedding=vector.tolist())
