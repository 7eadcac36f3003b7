"""Public schemas of tools: the valid ones are taken and enforced, the others refused with a reason."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from schema_cases import ByteGrammar, value_of

from headrace.errors import InvalidInput
from headrace.text.schema import Dialect, schema_rules


def lines(folder: Path, kind: str) -> list[str]:
    return [line for file in sorted(folder.glob(f"*__{kind}.jsonl")) for line in file.read_text().split("\n") if line]


def test_valid_schemas_are_enforced(tool_schemas: Path):
    ended = 0
    texts = lines(tool_schemas, "valid")
    assert len(texts) == 213
    for line in texts:
        schema = json.loads(line)
        start, rules = schema_rules(schema, field="schema", dialect=Dialect.TOOL)
        grammar = ByteGrammar(f'%llguidance {{"no_forcing": true}}\nstart: {start}\n{rules}')
        schema.pop("$id", None)  # some are no URI
        validator = Draft202012Validator(schema)
        for seed in range(3):
            text = grammar.walk(random.Random(seed))
            ended += text is not None
            assert text is None or validator.is_valid(value_of(text)), (schema, text)
    assert ended > 400


def test_invalid_schemas_are_refused(tool_schemas: Path):
    cases = [json.loads(line) for line in lines(tool_schemas, "invalid")]
    assert len(cases) == 182
    for case in cases:
        try:
            schema = json.loads(case["schema"])
        except ValueError:
            assert case["unmarshal"]
            continue
        with pytest.raises(InvalidInput):
            schema_rules(schema, field="schema", dialect=Dialect.TOOL)


@pytest.mark.parametrize(
    ("schema", "field", "reason"),
    [
        ({"type": "string", "minItems": 1}, ".minItems", "not allowed for the type string"),
        (
            {"type": "object", "properties": {"x": {"$ref": "#", "minLength": 1}}},
            ".properties.x.minLength",
            "beside $ref",
        ),
        ({"type": "object", "properties": {"$ref": {}}}, ".properties.$ref", "reserved"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, ".required", "'b'"),
        ({"type": "number", "enum": [1, "2"]}, ".enum[1]", "none of the declared types"),
        ({"type": "integer", "minimum": 1.5}, ".minimum", "must be an integer"),
        ({"type": "object", "patternProperties": {}}, ".patternProperties", "no keyword for tools"),
        ({"$defs": {"a/b": {}}, "type": "object"}, '.$defs["a/b"]', "contains '/'"),
        ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}, ".required", "infinite recursion"),
        (True, "", "must be an object"),
    ],
)
def test_the_place_and_the_reason_are_told(schema: Any, field: str, reason: str):
    with pytest.raises(InvalidInput) as refused:
        schema_rules(schema, field="tools[0].function.parameters", dialect=Dialect.TOOL)
    assert refused.value.field == "tools[0].function.parameters" + field
    assert reason in refused.value.message
