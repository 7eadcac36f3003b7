"""Random schemas: what the grammar of one accepts is valid, and what is valid it accepts, says ``jsonschema``."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schema_cases import ByteGrammar, schemas, value_of, values

from headrace.errors import InvalidInput
from headrace.text.schema import Spacing


def compiled(schema: Any, spacing: Spacing) -> tuple[ByteGrammar | None, str]:
    """The grammar, or why there is none."""
    try:
        return ByteGrammar.of_schema(schema, spacing), ""
    except InvalidInput as refused:
        return None, refused.message


def check_schema(schema: Any, instances: list[Any], seed: int) -> None:
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    valid = [validator.is_valid(instance) for instance in instances]
    grammar, reason = compiled(schema, list(Spacing)[seed % 3])
    if grammar is None:
        assert not ("no finite value" in reason and any(valid)), (schema, instances)
        return
    assert [grammar.admits(instance) for instance in instances] == valid, (schema, instances)
    for n in range(4):
        text = grammar.walk(random.Random(seed + n))
        try:
            assert text is None or validator.is_valid(value_of(text)), (schema, text)
        except ValueError:
            continue


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(schemas(), st.lists(values, max_size=8), st.integers(0, 1 << 30))
def test_accepted_is_valid_and_valid_is_accepted(schema: Any, instances: list[Any], seed: int):
    check_schema(schema, instances, seed)


@pytest.mark.bars
@settings(max_examples=20_000, suppress_health_check=list(HealthCheck))
@given(schemas(leaves=14), st.lists(values, max_size=8), st.integers(0, 1 << 30))
def test_accepted_is_valid_and_valid_is_accepted_for_long(schema: Any, instances: list[Any], seed: int):
    check_schema(schema, instances, seed)
