"""The narrower schemas of tools: what vendors of tool calling refuse on top of JSON Schema.

Such schemas are written for a model to read. What a validator would bear with (a keyword that says nothing of the
declared type, a required property that is nowhere described) is nearly always a mistake there, and is refused.
"""

from __future__ import annotations

from typing import Any

from headrace.text.schema.document import Document
from headrace.text.schema.keywords import ANNOTATIONS, TYPES
from headrace.text.schema.refusal import Place, Refused

MAX_ENUM = 1000
MAX_DEPTH = 7
BESIDE = frozenset(ANNOTATIONS - {"contentSchema"}) | {"$defs", "$id", "$schema"}
FOR_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
FOR_TYPE["integer"] = FOR_TYPE["number"]
KNOWN = BESIDE.union({"type", "enum", "const", "anyOf", "$ref"}, *FOR_TYPE.values())
RESERVED = frozenset({"anyOf", "allOf", "oneOf", "required", "additionalProperties", "patternProperties"})
PAIRS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))


def without_id(schema: Any) -> Any:
    """The schema without the name of its root, which tools give as they like; nothing is looked up by it."""
    if isinstance(schema, dict) and isinstance(schema.get("$id"), str):
        return {keyword: value for keyword, value in schema.items() if keyword != "$id"}
    return schema


def check_tool_schema(document: Document) -> None:
    """Raise ``Refused`` if a document is valid JSON Schema, but none for a tool."""
    if not isinstance(document.schema, dict):
        raise Refused((), "must be an object")
    for number, node in enumerate(document.nodes):
        if isinstance(node.schema, dict):
            _check_keywords(node.schema, node.place)
            _check_names(node.schema, node.place)
            _check_values(node.schema, node.place)
            if "$ref" in node.schema:
                _check_reference(document, number, node.schema["$ref"], node.place)
        elif not node.place or node.place[-1] != "additionalProperties":
            raise Refused(node.place, "must be an object; true and false are for additionalProperties alone")
    if _is_endless(document, 0, frozenset()):
        message = "leads back to itself by every required property (infinite recursion); make one optional"
        raise Refused(_first_requirement(document), message)


def _check_keywords(schema: dict[str, Any], place: Place) -> None:
    """Refuse what is not known, and what says nothing where it stands."""
    if _depth(place) > MAX_DEPTH:
        raise Refused(place, f"nests deeper than {MAX_DEPTH} levels; use a flatter schema")
    if "$id" in schema:
        raise Refused((*place, "$id"), "may stand at the root only")
    allowed, why = _allowed(schema)
    for keyword in schema:
        if keyword not in KNOWN:
            raise Refused((*place, keyword), "is no keyword for tools; leave it out")
        if keyword not in allowed:
            raise Refused((*place, keyword), why)


def _depth(place: Place) -> int:
    """How many arrays and objects a value of the schema at a place lies within."""
    depth, i = 0, 0
    while i < len(place):
        depth += place[i] not in {"$defs", "anyOf"}
        i += 2 if place[i] in {"properties", "$defs", "anyOf"} else 1
    return depth


def _allowed(schema: dict[str, Any]) -> tuple[frozenset[str], str]:
    """The keywords that may stand together with what decides, and what is wrong with others."""
    for decisive in ("$ref", "anyOf"):
        if decisive in schema:
            return BESIDE | {decisive}, f"is not allowed beside {decisive}; move it into the schema meant"
    names = schema.get("type")
    if names is None:
        return KNOWN, ""
    if isinstance(names, str):
        names = [names]
    if len(names) == 1:
        message = f"is not allowed for the type {names[0]}; leave it out or change the type"
        return BESIDE | {"type", "enum", "const"} | FOR_TYPE[names[0]], message
    if {"object", "array"} & set(names):
        return BESIDE | {"type"}, f"is not allowed in combination with the types {', '.join(names)}; use anyOf"
    return BESIDE | {"type", "enum"}, f"is not allowed in combination with the types {', '.join(names)}; use anyOf"


def _check_names(schema: dict[str, Any], place: Place) -> None:
    for keyword in ("properties", "$defs"):
        for name in schema.get(keyword, ()):
            where = (*place, keyword, name)
            if not name:
                raise Refused(where, f"is an empty name, which {keyword} may not have")
            if "/" in name and "$defs" in where[:-1]:
                raise Refused(where, "contains '/', which parts a reference; use another character")
            if keyword == "properties" and (name in RESERVED or name.startswith("$")):
                raise Refused(where, "is reserved for JSON Schema; give the property another name")
    for name in schema.get("required", ()):
        if not schema.get("properties"):
            raise Refused((*place, "required"), "names properties, but there is no properties beside it")
        if name not in schema["properties"]:
            raise Refused((*place, "required"), f"names {name[:60]!r}, which is not under properties")


def _check_values(schema: dict[str, Any], place: Place) -> None:
    names = schema.get("type", TYPES)
    names = [names] if isinstance(names, str) else names
    values = schema.get("enum", [])
    if "enum" in schema and not 1 <= len(values) <= MAX_ENUM:
        raise Refused((*place, "enum"), f"must have between 1 and {MAX_ENUM} values")
    for i, value in enumerate(values):
        if not any(_is_of(value, name) for name in names):
            raise Refused((*place, "enum", i), f"is of none of the declared types {', '.join(names)}")
    for low, high in PAIRS:
        if low in schema and high in schema and schema[low] > schema[high]:
            raise Refused((*place, low), f"is greater than {high}")
    for bound in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if names == ["integer"] and bound in schema and schema[bound] != int(schema[bound]):
            raise Refused((*place, bound), "must be an integer, as the type is")


def _is_of(value: Any, name: str) -> bool:
    match name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and (name == "number" or value == int(value))


def _check_reference(document: Document, number: int, reference: str, place: Place) -> None:
    if reference != "#" and not reference.startswith("#/$defs/"):
        raise Refused((*place, "$ref"), "must be # or start with #/$defs/")
    document.resolve(number, "$ref")


def _is_endless(document: Document, number: int, above: frozenset[int]) -> bool:
    """Whether every value has another of the same schema in it, an array taken to have an item."""
    schema = document.nodes[number].schema
    if number in above:
        return True
    if not isinstance(schema, dict):
        return False
    above |= {number}
    place = document.nodes[number].place
    if "$ref" in schema:
        return _is_endless(document, document.resolve(number, "$ref"), above)
    if "anyOf" in schema:
        options = [document.number((*place, "anyOf", i)) for i in range(len(schema["anyOf"]))]
        return all(_is_endless(document, option, above) for option in options)
    if "items" in schema:
        return _is_endless(document, document.number((*place, "items")), above)
    required = [document.number((*place, "properties", name)) for name in schema.get("required", ())]
    return bool(required) and all(_is_endless(document, inner, above) for inner in required)


def _first_requirement(document: Document) -> Place:
    places = [node.place for node in document.nodes if isinstance(node.schema, dict) and node.schema.get("required")]
    return (*min(places, key=len), "required") if places else ()
