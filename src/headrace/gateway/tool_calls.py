"""What became of tool calls: counts by format, and by whether the arguments are what a schema allows.

Nothing of a call is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from headrace.gateway.metrics import Metrics
from headrace.text.formats.pieces import MessagePiece, Text, ToolCall


class ArgumentCheck:
    """Judges the arguments of tools whose schemas no grammar enforces.

    Args:
        schemas: JSON Schema of each such tool's arguments.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def is_valid(self, call: ToolCall) -> bool:
        """Whether a call's arguments are what its tool allows; true where nothing is known of it."""
        schema = self._schemas.get(call.name)
        if schema is None:
            return True
        try:
            validator = jsonschema_rs.Draft202012Validator(schema, retriever=_refuse)
            return bool(validator.is_valid(msgspec.json.decode(call.arguments)))
        except (ValueError, RecursionError, jsonschema_rs.ReferencingError):  # of a schema that nobody can use
            return True


NOTHING_TO_CHECK = ArgumentCheck({})


def count_calls(metrics: Metrics, name: str, pieces: Iterable[MessagePiece], check: ArgumentCheck) -> None:
    """Count what a step brought.

    Args:
        metrics: Where.
        name: Of the format.
        pieces: What it brought.
        check: Judges arguments.
    """
    for piece in pieces:
        if isinstance(piece, ToolCall):
            outcome = "parsed" if check.is_valid(piece) else "schema_invalid"
            metrics.tool_calls.labels(name, outcome).inc()
        elif isinstance(piece, Text) and piece.fault:
            metrics.tool_calls.labels(name, piece.fault).inc()


def _refuse(uri: str) -> Any:
    """A schema may not have the server fetch another one."""
    raise ValueError(f"{uri} is not fetched")
