"""Rules between fields that the requests of several APIs have. Pure functions that raise ``ApiError`` (400)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from headrace.api.errors import bad_request, unsupported
from headrace.api.fields import Refused, refused_fields

MAX_SCHEMA_DEPTH = 128


def check_refused(record: msgspec.Struct, prefix: str = "") -> None:
    """Refuse a known field that is not honoured here, unless it asks for nothing.

    Args:
        record: A request, or an object in one.
        prefix: Its path, such as ``stream_options.``.
    """
    for name, rule in _refused(type(record)):
        if not any(_same(getattr(record, name), neutral) for neutral in rule.neutral):
            path = prefix + name.removesuffix("_")  # async_ is written async
            raise unsupported(path, f"'{path}' is not supported at this value. {rule.why}")


def check_refused_within(record: msgspec.Struct, prefix: str = "") -> None:
    """The same for a record and all records in it."""
    check_refused(record, prefix)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, msgspec.Struct):
            check_refused_within(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, msgspec.Struct):
                    check_refused_within(item, f"{prefix}{name}[{i}].")


def check_tools(
    names: Sequence[str], schemas: Sequence[Mapping[str, Any] | None], *, name_path: str, schema_path: str
) -> None:
    """Tools have different names and schemas that are not too deep.

    Args:
        names: Of the tools.
        schemas: Of their arguments.
        name_path: What the caller calls the name of tool ``{i}``.
        schema_path: What the caller calls its schema.
    """
    known: set[str] = set()
    for i, (name, schema) in enumerate(zip(names, schemas, strict=True)):
        if name in known:
            raise bad_request(f"Two tools are called {name!r}.", param=name_path.format(i=i))
        known.add(name)
        if schema is not None:
            check_schema(schema, schema_path.format(i=i))


def check_schema(schema: Mapping[str, Any], path: str) -> None:
    """A schema is not too deep."""
    if deeper_than(schema, MAX_SCHEMA_DEPTH):
        raise bad_request(f"The schema is nested more than {MAX_SCHEMA_DEPTH} deep.", param=path)


def check_choice(names: Sequence[str], wanted: Sequence[tuple[str, str]], *, is_free: bool) -> None:
    """The tools that are asked for are among the tools.

    Args:
        names: Of the tools.
        wanted: Path and value of each name that ``tool_choice`` holds.
        is_free: No tool need be called.
    """
    if not names and not is_free:
        raise bad_request("tool_choice asks for a tool, and there are no tools.", param="tool_choice")
    for param, name in wanted:
        if name not in names:
            raise bad_request(f"There is no tool {name[:128]!r} among the tools.", param=param)


def deeper_than(value: Any, limit: int) -> bool:
    """Whether lists and objects are nested more than ``limit`` deep."""
    layer = [value]
    for _ in range(limit):
        layer = [
            child
            for node in layer
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not layer:
            return False
    return any(isinstance(node, dict | list) for node in layer)


@cache
def _refused(kind: type[msgspec.Struct]) -> list[tuple[str, Refused]]:
    return list(refused_fields(kind))


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON: 0 is not false."""
    return type(value) is type(neutral) and value == neutral
