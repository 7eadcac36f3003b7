"""What a tool's arguments may be, as far as it decides how they are written: a string, or something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.text.formats.parts import Kinds

STRING, OTHER = "string", "other"
BOTH = frozenset({STRING, OTHER})
_MOST_STEPS = 32


def argument_kinds(parameters: object) -> Kinds:
    """By name, what a tool's arguments may be.

    Args:
        parameters: JSON Schema of the arguments.
    """
    root = parameters if isinstance(parameters, Mapping) else {}
    schema = follow(root, root)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    known: dict[int, frozenset[str]] = {}
    return {str(name): _kinds(item, root, known, 0) for name, item in properties.items()}


def kinds_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """What a value of a schema may be.

    Args:
        schema: Of the value.
        root: The schema that it is a part of.
    """
    return _kinds(schema, root, {}, 0)


def _kinds(schema: object, root: Mapping[str, Any], known: dict[int, frozenset[str]], steps: int) -> frozenset[str]:
    """The same; each part of the document is looked at once, however often it is referred to."""
    if not isinstance(schema, Mapping) or steps > _MOST_STEPS:
        return BOTH
    if id(schema) not in known:
        known[id(schema)] = BOTH  # of one that refers to itself nothing is known
        known[id(schema)] = _said_of(follow(schema, root), root, known, steps)
    return known[id(schema)]


def _said_of(
    schema: Mapping[str, Any], root: Mapping[str, Any], known: dict[int, frozenset[str]], steps: int
) -> frozenset[str]:
    kinds = BOTH
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds &= frozenset(STRING if one == "string" else OTHER for one in types)
    if "const" in schema:
        kinds &= _kind(schema["const"])
    if isinstance(schema.get("enum"), list):
        kinds &= frozenset[str]().union(*(_kind(value) for value in schema["enum"]))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            kinds &= frozenset[str]().union(*(_kinds(item, root, known, steps + 1) for item in schema[keyword]))
    if isinstance(schema.get("allOf"), list):
        for item in schema["allOf"]:
            kinds &= _kinds(item, root, known, steps + 1)
    return kinds or BOTH


def follow(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or what it refers to in its document if it does nothing else."""
    for _ in range(_MOST_STEPS):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        target: Any = root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _kind(value: object) -> frozenset[str]:
    return frozenset({STRING if isinstance(value, str) else OTHER})
