"""Texts of random allowed tokens: whatever a model does, what comes out is an instance of the schema."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from schema_cases import value_of

from headrace.text import Tokenizer
from headrace.text.grammar import GrammarEngine, json_schema_source
from headrace.text.schema import Spacing

SCHEMAS: list[Any] = [
    {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "integer", "maximum": 99}},
    {"type": "array", "items": {"enum": ["a", "ab", "abc", 1, 10]}, "uniqueItems": True, "minItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "contains": {"const": True}, "maxContains": 2, "maxItems": 9},
    {"type": "string", "pattern": "^(?!foo)[a-z]{2,8}( [A-Z]+)?$"},
    {"type": "string", "minLength": 3, "maxLength": 12},
    {"type": "number", "exclusiveMinimum": -3.75, "maximum": 12, "multipleOf": 0.25},
    {"type": "integer", "minimum": -100, "maximum": 300, "multipleOf": 7},
    {
        "properties": {
            "kind": {"enum": ["circle", "square"]},
            "radius": {"type": "integer", "minimum": 1, "maximum": 50},
        },
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "circle"}}},
        "then": {"required": ["radius"]},
        "else": {"properties": {"radius": False}},
        "unevaluatedProperties": False,
        "type": "object",
    },
    {
        "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "null"}, "l": {"$ref": "#/$defs/tree"}}}},
        "$ref": "#/$defs/tree",
        "unevaluatedProperties": False,
        "required": ["v"],
    },
]


def text_of(tokenizer: Tokenizer, engine: GrammarEngine, source: str, rng: random.Random) -> bytes | None:
    """A text of at most 120 tokens drawn from the masks, short ones for the most part; None: it did not end."""
    matcher, spelled = engine.compile(source).matcher(), b""
    for _ in range(120):
        mask = matcher.mask()
        if matcher.is_complete or (matcher.may_end and rng.random() < 0.5):
            return spelled
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        allowed = [token for token in allowed if token not in tokenizer.eos_token_ids]
        ending = [token for token in allowed if set(tokenizer.token_bytes(token)) <= set(b'"]}, 1')]
        token = rng.choice(ending if ending and rng.random() < 0.6 else allowed)
        matcher.accept(token)
        spelled += tokenizer.token_bytes(token)
    return None


def check(tokenizer: Tokenizer, rounds: int) -> None:
    engine, rng, ended = GrammarEngine(tokenizer), random.Random(1), 0
    for schema in SCHEMAS:
        validator = Draft202012Validator(schema)
        for spacing in Spacing:
            source = json_schema_source(schema, field="schema", spacing=spacing)
            for _ in range(rounds):
                text = text_of(tokenizer, engine, source, rng)
                if text is not None:
                    ended += 1
                    assert validator.is_valid(value_of(text.decode())), (schema, text)
    assert ended > rounds * len(SCHEMAS)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_random_texts_are_instances(request: pytest.FixtureRequest, name: str):
    check(request.getfixturevalue(name), 20)


@pytest.mark.model
def test_random_texts_of_a_real_vocabulary_are_instances(smollm2_tokenizer: Tokenizer):
    check(smollm2_tokenizer, 1)


def test_compact_json_is_what_python_writes(byte_level: Tokenizer):
    value = {"a": [1, {"b": None}, 'é\n\\"'], "c": {}, "d": [], "e": 1.5e-300}
    matcher = GrammarEngine(byte_level).compile(json_schema_source(True, field="s", spacing=Spacing.COMPACT)).matcher()
    by_bytes = {byte_level.token_bytes(token): token for token in range(byte_level.vocab_size)}
    for byte in json.dumps(value, ensure_ascii=False).encode():
        matcher.accept(by_bytes[bytes([byte])])
    assert matcher.is_complete
