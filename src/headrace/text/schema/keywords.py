"""The keywords of JSON Schema 2020-12: what each may hold, and where subschemas are.

This is the metaschema as a table: a schema that it calls valid is valid by the metaschema, and the other way round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from headrace.text.schema.refusal import Place, Refused

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DRAFTS = {
    f"{scheme}://json-schema.org/{draft}/schema"
    for scheme in ("http", "https")
    for draft in ("draft/2020-12", "draft/2019-09", "draft-07")
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SCHEMAS = _words(
    "additionalProperties propertyNames unevaluatedProperties items contains unevaluatedItems not if then else"
    " contentSchema"
)
SCHEMA_LISTS = _words("allOf anyOf oneOf prefixItems")
SCHEMA_MAPS = _words("properties patternProperties dependentSchemas $defs definitions")
COUNTS = _words("minLength maxLength minItems maxItems minContains maxContains minProperties maxProperties")
NUMBERS = _words("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf")
STRINGS = _words(
    "$id $ref $schema $anchor $dynamicRef $dynamicAnchor $comment pattern format title description contentEncoding"
    " contentMediaType"
)
FLAGS = _words("uniqueItems deprecated readOnly writeOnly")
LISTS = _words("enum examples")
ANNOTATIONS = _words(
    "$comment title description default examples deprecated readOnly writeOnly format contentEncoding"
    " contentMediaType contentSchema"
)

# What can make an instance invalid.
ASSERTIONS = (
    (
        SCHEMAS
        | SCHEMA_LISTS
        | SCHEMA_MAPS
        | COUNTS
        | NUMBERS
        | LISTS
        | FLAGS
        | {"type", "const", "required", "dependentRequired", "pattern", "$ref", "$dynamicRef"}
    )
    - ANNOTATIONS
    - {"$defs", "definitions"}
)

# Keywords of other drafts that say something, and what says it now.
REPLACED = {
    "additionalItems": "items, with prefixItems for the first ones",
    "dependencies": "dependentRequired or dependentSchemas",
    "$recursiveRef": "$dynamicRef",
    "$recursiveAnchor": "$dynamicAnchor",
}

_ANCHOR = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_ID = re.compile(r"[^#]*#?")


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The subschemas of a checked schema and where they are in it."""
    for keyword, value in schema.items():
        if keyword in SCHEMAS:
            yield (keyword,), value
        elif keyword in SCHEMA_LISTS:
            yield from (((keyword, i), inner) for i, inner in enumerate(value))
        elif keyword in SCHEMA_MAPS:
            yield from (((keyword, name), inner) for name, inner in value.items())


def check_keywords(schema: Any, place: Place) -> None:
    """Raise ``Refused`` unless this schema, without its subschemas, is what the metaschema says."""
    if isinstance(schema, bool):
        return
    if isinstance(schema, list) and place and place[-1] == "items":
        raise Refused(place, "must be one schema; the schemas of the first items stand under prefixItems")
    if not isinstance(schema, dict):
        raise Refused(place, f"must be an object or a boolean, for it is a schema; it is {_named(schema)}")
    for keyword, value in schema.items():
        wrong = _wrong(keyword, value)
        if wrong:
            raise Refused((*place, keyword), wrong)


def _wrong(keyword: str, value: Any) -> str | None:
    """What is wrong with the value of a keyword; None: nothing, or the keyword is not known."""
    if keyword in COUNTS:
        return None if _is_count(value) else f"must be a non-negative integer; it is {_named(value)}"
    if keyword in NUMBERS:
        return _wrong_number(keyword, value)
    if keyword in STRINGS:
        return _wrong_string(keyword, value)
    if keyword in FLAGS:
        return None if isinstance(value, bool) else f"must be true or false; it is {_named(value)}"
    if keyword in LISTS:
        return None if isinstance(value, list) else f"must be an array; it is {_named(value)}"
    if keyword in SCHEMA_LISTS and not (isinstance(value, list) and value):
        return f"must be an array of schemas, one at least; it is {_named(value)}"
    if keyword in SCHEMA_MAPS and not isinstance(value, dict):
        return f"must be an object of schemas by name; it is {_named(value)}"
    if keyword == "type":
        return _wrong_type(value)
    if keyword == "required":
        return None if _are_names(value) else "must be an array of different strings"
    if keyword == "dependentRequired" and not (isinstance(value, dict) and all(map(_are_names, value.values()))):
        return "must be an object whose values are arrays of different strings"
    if keyword == "$vocabulary":
        return "declares a metaschema, which this schema cannot be; leave it out"
    if keyword in REPLACED:
        return f"is no keyword of JSON Schema 2020-12; use {REPLACED[keyword]}"
    return None


def _wrong_number(keyword: str, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"must be a number; it is {_named(value)}"
    return "must be greater than 0" if keyword == "multipleOf" and value <= 0 else None


def _wrong_string(keyword: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be a string; it is {_named(value)}"
    if keyword in {"$anchor", "$dynamicAnchor"} and not _ANCHOR.fullmatch(value):
        return "must be a name of letters, digits, '-', '_' and '.' that begins with a letter or '_'"
    if keyword == "$id" and not _ID.fullmatch(value):
        return "must be a URI without a fragment; use $anchor for one"
    if keyword == "$schema" and value.rstrip("#") not in DRAFTS:
        return "names a draft or metaschema other than 2020-12, 2019-09 or draft-07; leave it out or name one of these"
    return None


def _wrong_type(value: Any) -> str | None:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return f"must be the name of a type, or an array of such names, one at least; it is {_named(value)}"
    for name in names:
        if name not in TYPES:
            return f"names {name[:60]!r}, which is no type; types are {', '.join(TYPES)}"
    return "names a type twice" if len(set(names)) < len(names) else None


def _is_count(value: Any) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and value >= 0


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _named(value: Any) -> str:
    """A value as an error shows it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array" if value else "an empty array"
    return repr(value)[:60]
