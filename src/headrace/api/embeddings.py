"""``/v1/embeddings``: its body and its answer (OpenAI API reference, "Create embeddings", plus extensions)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.api.common import ModelName, User
from headrace.api.fields import INT32_MAX
from headrace.api.prompts import Prompts, one_by_one
from headrace.api.sampling import TermFields


class EmbeddingRequest(TermFields, frozen=True, kw_only=True):
    """The body of ``/v1/embeddings``."""

    model: ModelName
    input: Annotated[
        Prompts,
        Meta(
            description="A string, a list of strings, a list of token ids, or a list of lists of token ids.",
            examples=["The river rises in the Alps."],
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="Numbers, or the Base64 of float32 in little-endian order. Default float."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=INT32_MAX)] | None,
        Meta(description="Only the model's own number: cutting vectors short is for models that were trained for it."),
    ] = None
    user: User = None
    pooling: Annotated[
        Literal["mean", "last"] | None,
        Meta(description="Extension. The mean of all tokens' hidden vectors, or the last token's. Default mean."),
    ] = None
    normalize: Annotated[bool | None, Meta(description="Extension. Give vectors of length 1. Default true.")] = None

    def inputs(self) -> list[tuple[str, str | list[int]]]:
        """The inputs one by one, each with the name that errors give it."""
        return one_by_one(self.input, "input")


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """An input's vector: numbers, or the Base64 of float32 in little-endian order."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Token counts of a request, over all its inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/embeddings``."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
