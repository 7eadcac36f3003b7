"""Headrace, an LLM inference stack in Python."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Loaded at first use, by name: `import headrace` stays fast, and no lower layer comes to depend on these.
# `__init__.pyi` tells type checkers and editors the same.
_EXPORTS = {
    "LLM": "headrace.llm",
    "CompletionDelta": "headrace.llm",
    "CompletionOutput": "headrace.llm",
    "EmbeddingRequestOutput": "headrace.llm",
    "RequestOutput": "headrace.llm",
    "SamplingParams": "headrace.engine.sampling_params",
    "HeadraceError": "headrace.errors",
    "InvalidInput": "headrace.errors",
    "CheckpointError": "headrace.errors",
    "EngineError": "headrace.errors",
}

__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 - all are strings


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
