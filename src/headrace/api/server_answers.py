"""Answers of the routes that generate nothing: models, tokens, readiness."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served. ``max_model_len``: most tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headrace"
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of ``/detokenize``."""

    prompt: str


class Status(msgspec.Struct, frozen=True):
    """The answer of ``/health`` and ``/ready`` when all is well."""

    status: str = "ok"


class DebugAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``/debug/state``: slots, queue, pages and tree; no prompt text."""

    state: dict[str, Any]
    problems: list[str] = []
