"""The gate: what the metaschema calls invalid, what is hostile, and what is merely arbitrary."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from schema_cases import ByteGrammar, schemas

from headrace.errors import InvalidInput
from headrace.text.schema import Dialect, Spacing, schema_rules
from headrace.text.schema.document import Document
from headrace.text.schema.keywords import ANNOTATIONS, COUNTS, FLAGS, LISTS, NUMBERS, SCHEMA_LISTS, SCHEMA_MAPS, SCHEMAS
from headrace.text.schema.refusal import Refused

KEYWORDS = sorted(
    SCHEMAS
    | SCHEMA_LISTS
    | SCHEMA_MAPS
    | COUNTS
    | NUMBERS
    | FLAGS
    | LISTS
    | ANNOTATIONS
    | {"type", "const", "required", "dependentRequired", "pattern", "$ref", "$dynamicRef", "$anchor", "$id", "$comment"}
)
wild_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.floats()
    | st.sampled_from(["", "a", "#", "object", "string", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=4),
    max_leaves=12,
)
wild_schemas = st.dictionaries(st.sampled_from(KEYWORDS), wild_values, max_size=4)
quick = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def taken(document: Any) -> bool:
    try:
        Document(document)
    except Refused:
        return False
    return True


@quick
@given(wild_schemas)
def test_what_is_not_valid_by_the_metaschema_is_refused(schema: Any):
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, OverflowError, ValueError):
        assert not taken(schema)


@quick
@given(schemas())
def test_what_is_valid_by_the_metaschema_passes_the_check_of_keywords(schema: Any):
    assert taken(schema)


@quick
@given(wild_values | wild_schemas, st.sampled_from(Dialect), st.sampled_from(Spacing))
def test_whatever_is_sent_is_compiled_or_an_invalid_input(document: Any, dialect: Dialect, spacing: Spacing):
    try:
        start, rules = schema_rules(document, field="f", dialect=dialect, spacing=spacing)
    except InvalidInput as error:
        field = str(error.field)
    else:
        ByteGrammar(f"start: {start}\n{rules}")
        return
    assert field.startswith("f")


def nested(depth: int, wrap: str = "not") -> Any:
    document: Any = {}
    for _ in range(depth):
        document = {wrap: document}
    return document


def chain(count: int) -> Any:
    defs = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return {"$defs": {**defs, f"d{count}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def product(count: int) -> Any:
    """As many alternatives as 4 to the power of ``count``."""
    return {
        "allOf": [
            {"anyOf": [{"required": [f"{n}{way}"], "properties": {f"{n}{way}": {"const": way}}} for way in "abcd"]}
            for n in range(count)
        ]
    }


HOSTILE: dict[str, Any] = {
    "deep": nested(100_000),
    "deep list": nested(100_000, "enum"),
    "deep enough to be recursive": nested(99),
    "long chain of references": chain(1900),
    "product of anyOf": product(12),
    "oneOf of many": {"oneOf": [{"required": [f"p{n}"]} for n in range(60)]},
    "not of a product": {"not": product(8)},
    "large enum": {"enum": [f"{n:040d}" for n in range(30_000)]},
    "one long string": {"const": "x" * (1 << 20)},
    "many properties": {"properties": {f"p{n}": {} for n in range(5000)}},
    "many required properties": {"required": [f"p{n}" for n in range(5000)]},
    "many patterns": {"allOf": [{"pattern": f"a.{{{n}}}b"} for n in range(9)]},
    "patterns that multiply": {
        "type": "string",
        "allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}$"} for n in range(20, 27)],
    },
    "pattern that doubles": {"type": "string", "pattern": "^(" + "(a|(?=x)b)" * 60 + ")?$"},
    "key that doubles": {"patternProperties": {"^(" + "(a|(?=x)b)" * 60 + ")?$": {"type": "null"}}},
    "regex bomb": {"type": "string", "not": {"pattern": "^(((a{1,900}){1,900}){1,900}){1,900}$"}},
    "pattern with length": {"type": "string", "pattern": "^(a|b)*c$", "minLength": 100_000},
    "many pattern properties": {"patternProperties": {f"a.{{{n}}}b": {"const": n} for n in range(40)}},
    "counts": {"contains": {"const": 1}, "minContains": 1000, "minItems": 5000},
    "counts of properties": {"properties": {f"p{n}": {} for n in range(400)}, "minProperties": 200},
    "large number": {"minimum": 10**4000},
    "small number": {"minimum": 5e-324},
    "large multiple": {"multipleOf": 99_999_999_999},
    "small multiple": {"multipleOf": 1e-300},
    "endless reference": {"$ref": "#"},
    "endless definitions": {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}},
    "no finite value": {"required": ["a"], "type": "object", "properties": {"a": {"$ref": "#"}}},
    "remote": {"$ref": "https://example.com/schema"},
    "infinity": {"maximum": float("inf")},
    "surrogate": {"const": "\ud800"},
    "no JSON": {"const": {1, 2}},
    "unevaluated": {"anyOf": [{"properties": {f"p{n}": {}}} for n in range(9)], "unevaluatedProperties": False},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_or_compiled_soon(name: str):
    try:
        start, rules = schema_rules(HOSTILE[name], field="schema")
    except InvalidInput:
        return
    assert len(rules) < 4 << 20
    ByteGrammar(f"start: {start}\n{rules}")


def test_a_grammar_is_the_same_text_every_time():
    schema = {
        "patternProperties": {"a": {}, "b": {"type": "null"}},
        "required": list("zyx"),
        "dependentRequired": {"q": ["r"]},
    }
    texts = {schema_rules(schema, field="s") for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{\n  "a": [\n    1,\n    2\n  ]\n}'),
        ({"type": "object"}, '{"a":[1,2],"b":{}}'),
        ({"type": "object"}, '{"a": [1, 2], "b": {}}'),
        ({"properties": {"a": {}, "b": {}}, "required": ["b"], "type": "object"}, '{\n\t"b": ""\n}'),
    ],
)
def test_flexible_spacing_takes_what_models_write(schema: Any, text: str):
    assert ByteGrammar.of_schema(schema, Spacing.FLEXIBLE).accepts(text)


def test_white_space_ends():
    grammar = ByteGrammar.of_schema(True, Spacing.FLEXIBLE)
    assert not grammar.accepts("[" + " " * 200 + "]")
    assert not grammar.accepts("[\n\n\n]" + "")
    assert grammar.walk(random.Random(1)) is not None


@pytest.mark.parametrize(
    ("schema", "digits"),
    [
        ({"type": "integer"}, 64),
        ({"type": "number"}, 64),
        ({"type": "number", "minimum": 0, "multipleOf": 0.01}, 64),
        ({"type": "integer", "minimum": 10**79}, 81),
    ],
)
def test_a_number_does_not_go_on_for_ever(schema: dict[str, Any], digits: int):
    grammar = ByteGrammar.of_schema(schema)
    assert grammar.accepts("3" * digits)
    assert not grammar.accepts("3" * (digits + 3))


def test_no_number_is_infinite():
    grammar = ByteGrammar.of_schema({"type": "number"})
    assert grammar.accepts("-1.5e-300")
    assert grammar.accepts("9" * 64 + "e199")
    assert not grammar.accepts("1e309")
    assert not grammar.accepts("1e200")
