"""What a tool's JSON Schema says, as far as it can be enforced where arguments are not written as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import jsonschema_rs

from headrace.errors import InvalidInput
from headrace.text.schema import characters
from headrace.text.schema.expressions import PatternError
from headrace.text.schema.notation import as_text
from headrace.text.schema.patterns import pattern_language
from headrace.text.schema.regex import Languages, TooLarge

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "format",
     "$schema", "$id", "$defs", "definitions", "contentEncoding", "contentMediaType")
)  # fmt: skip
OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_WHY = "cannot be enforced in this model's format"


def keywords_of(schema: Mapping[str, Any], kind: str, at: str) -> Mapping[str, Any]:
    """The keywords that say something of values of a type.

    Args:
        schema: The schema.
        kind: The type.
        at: The way to the schema.

    Raises:
        InvalidInput: There is one that cannot be enforced.
    """
    applicable = OF_TYPE.get("number" if kind == "integer" else kind, frozenset())
    allow_only(schema, frozenset[str]().union(*OF_TYPE.values()) | {"type"}, at)
    return {key: value for key, value in schema.items() if key in applicable}


def allow_only(schema: Mapping[str, Any], keywords: Collection[str], at: str) -> None:
    """Raise ``InvalidInput`` where a schema has other keywords than these, and than what only describes."""
    for keyword in schema:
        if keyword not in keywords and keyword not in ANNOTATIONS:
            raise InvalidInput(_WHY, field=f"{at}.{keyword}")


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema names; all, if it names none."""
    given = schema.get("type", TYPES)
    return [given] if isinstance(given, str) else list(given)


def listed_values(schema: Mapping[str, Any], at: str) -> list[Any]:
    """The values that a schema lists, those among them that all of it allows.

    Args:
        schema: With ``enum`` or ``const``.
        at: The way to it.

    Raises:
        InvalidInput: It says something else that cannot be enforced, or none is left.
    """
    scalar = OF_TYPE["string"] | OF_TYPE["number"] | {"type", "enum", "const"}
    allow_only(schema, scalar, at)
    validator = jsonschema_rs.Draft202012Validator({key: schema[key] for key in scalar & schema.keys()})
    listed = schema["enum"] if "enum" in schema else [schema["const"]]
    values = [value for value in listed if validator.is_valid(value)]
    if not values:
        raise InvalidInput("allows nothing", field=at)
    return values


def properties_of(schema: Mapping[str, Any], at: str) -> tuple[dict[str, Any], frozenset[str]]:
    """The properties of an object, and which of them are required.

    Raises:
        InvalidInput: One is required that is not listed.
    """
    properties = dict(schema.get("properties") or {})
    required = frozenset(schema.get("required") or ())
    missing = sorted(required - set(properties))
    if missing:
        raise InvalidInput(f"names {missing[0]!r}, which is not in properties", field=f"{at}.required")
    return properties, required


def with_definitions(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema with what it may refer to."""
    if "$ref" not in json.dumps(schema):
        return schema
    return {**{key: root[key] for key in ("$defs", "definitions") if key in root}, **schema}


def string_terminal(schema: Mapping[str, Any], at: str) -> str:
    """A terminal's body for the strings of a schema, written as they are.

    Args:
        schema: With ``pattern``, ``minLength`` and ``maxLength``.
        at: The way to it.

    Raises:
        InvalidInput: The pattern cannot be enforced.
    """
    languages = Languages()
    language = languages.anything
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    try:
        if low or high is not None:
            one = languages.characters(characters.ANY)
            language = languages.repeat(one, int(low), None if high is None else int(high))
        if "pattern" in schema:
            language = languages.intersection([language, pattern_language(languages, str(schema["pattern"]))])
        if languages.is_empty(language):
            raise InvalidInput("allows no string", field=at)
    except PatternError as error:
        raise InvalidInput(f"{error}", field=f"{at}.pattern") from error
    except (TooLarge, RecursionError) as error:
        raise InvalidInput("is too complex", field=at) from error
    return f"({as_text(languages, language)})"
