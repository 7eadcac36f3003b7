"""Tools with odd schemas in every format: what cannot be written so that it is read as meant is refused."""

from __future__ import annotations

import json

import pytest
from spelled import spelling_tokenizer

from headrace.errors import InvalidInput
from headrace.text.conversation import Conversation, Tool, ToolChoice
from headrace.text.formats.catalog import formats
from headrace.text.formats.kinds import argument_kinds
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.writer import write_calls
from headrace.text.grammar import GrammarEngine
from headrace.text.model_text import ModelText
from headrace.text.output_grammar import output_grammar

CALLING = [name for name, found in formats().items() if found.calls is not None]
SPELLED = spelling_tokenizer(template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
ENGINE = GrammarEngine(SPELLED)
in_every_format = pytest.mark.parametrize("name", CALLING)


def conversation(schema, mode="required"):
    return Conversation([{"role": "user", "content": "Hi"}], (Tool("f", None, schema),), ToolChoice(mode))


def of(schema, **more):
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], **more}


@in_every_format
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": ["a"]},
        {"type": "object", "properties": {}, "required": 5},
        {"type": "object", "properties": {"x": {"type": "string"}}, "required": [["x"]]},
        *(
            of(schema)
            for schema in (
                {"type": 5},
                {"type": [["string"]]},
                {"enum": True},
                {"anyOf": 5},
                {"type": "string", "maxLength": "5"},
                {"type": "array", "minItems": {}},
                {"type": "object", "properties": 1.5},
            )
        ),
    ],
)
def test_what_is_no_schema_is_refused(name: str, schema):
    with pytest.raises(InvalidInput):
        output_grammar(SPELLED, formats()[name], conversation(schema), "")
    assert output_grammar(SPELLED, formats()[name], conversation(schema, "auto"), "").relaxed


@in_every_format
@pytest.mark.parametrize("keyword", ["anyOf", "properties"])
def test_definitions_that_are_used_twice_cost_no_more(name: str, keyword: str):
    """Written out, these are 2 to the power of 40 and more."""
    definitions = {"d0": {"type": "string"}}
    for i in range(40 if keyword == "anyOf" else 12):
        below = {"$ref": f"#/$defs/d{i}"}
        members = {key: {**below, "title": key} for key in "abcdefgh"}
        one = {"anyOf": [below, {**below, "title": "b"}]} if keyword == "anyOf" else {"properties": members}
        definitions[f"d{i + 1}"] = one if keyword == "anyOf" else {"type": "object", **one}
    schema = of({"$ref": f"#/$defs/d{len(definitions) - 1}"}, **{"$defs": definitions})
    assert argument_kinds(schema).keys() == {"x"}
    output_grammar(SPELLED, formats()[name], conversation(schema, "auto"), "")


def assert_refused_or_read_as_meant(name: str, schema, arguments):
    found = formats()[name]
    try:
        source = output_grammar(SPELLED, found, conversation(schema), "").source
        written = write_calls(found.calls, [ToolCall("f", json.dumps(arguments, ensure_ascii=False))])
    except InvalidInput:
        return
    tokens = SPELLED.encode(written, add_special_tokens=False)
    assert ENGINE.compile(source).matcher()._matcher.validate_tokens(tokens) == len(tokens)
    reader = FormatReader(found, {"f": argument_kinds(schema)})
    pieces = reader.push(written) + reader.finish()
    assert [json.loads(piece.arguments) for piece in pieces if isinstance(piece, ToolCall)] == [arguments]


ODD = ['a"b', "a/b", "a\\b", "a\nb", "$x", "</parameter>", "</tool_call>", "a=b", "a b", "x>y", "</arg_key>", "", " a ",
       "名", "a,b", "a:b", "'q'", "true", "12", "x\ty", "</arg_value>", "{}", '<|"|>', "<tool_call|>"]  # fmt: skip


# One format of each way to write arguments; the others are for the long run.
BRIEF = ("generic", "glm-4.5", "llama4-pythonic", "gemma-4", "qwen3-coder")
in_each_syntax = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BRIEF else pytest.mark.bars) for name in CALLING]
)


@in_each_syntax
@pytest.mark.parametrize("key", ODD)
def test_odd_names_of_arguments(name: str, key: str):
    schema = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    assert_refused_or_read_as_meant(name, schema, {key: 1})


@in_each_syntax
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("other", ["other", 5])
def test_odd_values_of_an_enum(name: str, value: str, other: object):
    assert_refused_or_read_as_meant(name, of({"enum": [value, other]}), {"x": value})


@in_each_syntax
@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("kind", ["array", ["array", "string"]])
def test_odd_strings_within_an_array(name: str, value: str, kind: str | list[str]):
    assert_refused_or_read_as_meant(name, of({"type": kind, "items": {"type": "string"}}), {"x": [value]})


@in_every_format
def test_only_the_values_of_an_enum_that_the_rest_allows(name: str):
    schema = of({"type": "integer", "enum": ["a", 1, 7], "maximum": 5})
    source = output_grammar(SPELLED, formats()[name], conversation(schema), "").source
    compiled = ENGINE.compile(source)
    for value, is_valid in ((1, True), (7, False), ("a", False)):
        written = write_calls(formats()[name].calls, [ToolCall("f", json.dumps({"x": value}))])
        tokens = SPELLED.encode(written, add_special_tokens=False)
        assert (compiled.matcher()._matcher.validate_tokens(tokens) == len(tokens)) == is_valid


@pytest.mark.parametrize("name", ["llama4-pythonic", "glm-4.5", "qwen3-coder"])
def test_ordinary_names_and_values_are_enforced(name: str):
    schema = of({"enum": ["a b", "C"]}, additionalProperties=False)
    assert not output_grammar(SPELLED, formats()[name], conversation(schema, "auto"), "").relaxed


@in_every_format
def test_the_same_conversation_has_the_same_prompt(name: str):
    text = ModelText(SPELLED, formats()[name])
    first, second = (text.prompt(conversation(of({"type": "string"}))).text for _ in range(2))
    assert first == second
    assert "name_of_the_tool" in first
