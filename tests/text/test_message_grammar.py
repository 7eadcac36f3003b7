"""Grammars of messages against the readers and writers made of the same data, and against the tools' schemas."""

from __future__ import annotations

import json
import random
import re
from functools import cache

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from spelled import spelling_tokenizer

from headrace.text.conversation import AnswerForm, Conversation, Tool, ToolChoice
from headrace.text.formats.catalog import formats
from headrace.text.formats.kinds import argument_kinds
from headrace.text.formats.pieces import Text, Thought, ToolCall, joined
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.writer import write_calls
from headrace.text.grammar import GrammarEngine
from headrace.text.output_grammar import output_grammar

CALLING = [name for name, found in formats().items() if found.calls is not None]
brief_or_long = pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.bars)])

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 0, "maximum": 31},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
}
MIXED = {
    "type": "object",
    "properties": {
        "flag": {"type": "boolean"},
        "name": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "size": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "where": {"type": "object", "properties": {"x": {"type": "number"}, "deep": {"type": "boolean"}}},
    },
    "required": ["flag", "where"],
}
TOOLS = (Tool("get_weather", None, WEATHER), Tool("now"), Tool("ns.mixed-1", None, MIXED))
SCHEMAS = {tool.name: tool.parameters or {"type": "object", "maxProperties": 0} for tool in TOOLS}

text = st.text(st.sampled_from("aZ09 ü中🦄\"\\\n\t{}<>,:'[]|="), max_size=12)
plain = st.text(st.sampled_from("aZ09 ü中🦄,:'."), min_size=1, max_size=12)
numbers = st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
weather = st.fixed_dictionaries(
    {"city": text}, optional={"days": st.integers(0, 31), "unit": st.sampled_from(["C", "F"])}
)
mixed = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "where": st.fixed_dictionaries({}, optional={"x": numbers, "deep": st.booleans()}),
    },
    optional={
        "name": st.none() | plain,
        "tags": st.lists(text, max_size=3),
        "size": numbers | plain.filter(lambda s: not re.match(r"\s*[-0-9\[{tfnTFN]", s)),
    },
)
calls = st.one_of(
    weather.map(lambda a: ("get_weather", a)), st.just(("now", {})), mixed.map(lambda a: ("ns.mixed-1", a))
)


@cache
def control_tokens(name: str) -> tuple[str, ...]:
    """What looks like a control token in a format."""
    pattern = r"<\|[^ >]*?\|?>|<[a-z_]+\|>|<｜[^>]*?｜>|\[/?[A-Z_]+\]"
    return tuple(dict.fromkeys(token for marker in formats()[name].markers for token in re.findall(pattern, marker)))


@cache
def vocabulary(name: str, spelled: bool) -> tuple:
    tokenizer = spelling_tokenizer(() if spelled else control_tokens(name))
    return tokenizer, GrammarEngine(tokenizer)


def grammar(name: str, spelled: bool, choice: ToolChoice, primed: str = "", **more):
    tokenizer, engine = vocabulary(name, spelled)
    asked = Conversation([], TOOLS, choice, **more)
    source = output_grammar(tokenizer, formats()[name], asked, primed).source
    return tokenizer, engine.compile(source).matcher()


def accepts(name: str, spelled: bool, message: str, choice: ToolChoice, primed: str = "", **more) -> bool:
    tokenizer, matcher = grammar(name, spelled, choice, primed, **more)
    tokens = tokenizer.encode(message, add_special_tokens=False)
    return matcher._matcher.validate_tokens(tokens) == len(tokens) and follow(matcher, tokens).may_end


def follow(matcher, tokens):
    for token in tokens:
        matcher.accept(token)
    return matcher


def in_schema_order(name: str, arguments: dict) -> dict:
    """Arguments in the order in which a grammar has them."""
    return _ordered(SCHEMAS[name], arguments)


def _ordered(schema: dict, value: dict) -> dict:
    order = schema.get("properties", {})
    keys = sorted(value, key=list(order).index)
    return {k: _ordered(order[k], value[k]) if isinstance(value[k], dict) else value[k] for k in keys}


@brief_or_long
@pytest.mark.parametrize("spelled", [True, False])
@pytest.mark.parametrize("name", CALLING)
def test_what_is_written_is_accepted_and_read_back(name: str, spelled: bool, examples: int):
    found = formats()[name]
    most = 3 if found.calls.parallel else 1

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(calls, min_size=1, max_size=most), st.sampled_from(["", "Let me see. "]))
    def check(made, before):
        pieces = [ToolCall(tool, json.dumps(in_schema_order(tool, args), ensure_ascii=False)) for tool, args in made]
        try:
            written = write_calls(found.calls, pieces)
        except ValueError:
            return
        kinds = {tool.name: argument_kinds(tool.parameters) for tool in TOOLS}
        reader = FormatReader(found, kinds)
        read = [piece for piece in reader.push(written) + reader.finish() if isinstance(piece, ToolCall)]
        if [(one.name, json.loads(one.arguments)) for one in read] != [
            (one.name, json.loads(one.arguments)) for one in pieces
        ]:
            # A string that holds what ends it: nothing in such a format can escape it.
            assert found.calls.arguments.syntax == "pairs" or found.calls.arguments.quote != '"'
            return
        assert accepts(name, spelled, written, ToolChoice("required")), written
        assert accepts(name, spelled, written, ToolChoice("auto")), written
        if before and not found.calls.at_start and not found.answer.open:
            assert accepts(name, spelled, before + written, ToolChoice("auto"))
            assert not accepts(name, spelled, before + written, ToolChoice("required"))
        if len(made) > 1:
            assert not accepts(name, spelled, written, ToolChoice("required"), parallel_tool_calls=False)
            assert not accepts(name, spelled, written, ToolChoice("auto"), parallel_tool_calls=False)

    check()


@pytest.mark.parametrize("name", ["hermes", "deepseek-v3", "qwen3-coder", "gemma-4"])
def test_spaces_after_commas_and_colons_are_as_the_format_says(name: str):
    """A record, arguments that are JSON, those within pairs, and a dialect."""
    found = formats()[name]
    where = {"flag": True, "where": {"x": 1, "deep": False}}
    for spaced in (True, False):
        arguments = replace(found.calls.arguments, spaced=spaced)
        one = replace(found, calls=replace(found.calls, arguments=arguments))
        written = write_calls(one.calls, [ToolCall("ns.mixed-1", json.dumps(where))])
        assert (", " in written) == spaced
        tokenizer, engine = vocabulary(name, True)
        source = output_grammar(tokenizer, one, Conversation([], TOOLS, ToolChoice("required")), "").source
        tokens = tokenizer.encode(written, add_special_tokens=False)
        matcher = engine.compile(source).matcher()
        assert matcher._matcher.validate_tokens(tokens) == len(tokens), written


def walk(tokenizer, matcher, guide: list[str], random_: random.Random, steps: int = 400) -> str | None:
    """A random text that the grammar accepts, or None if it comes to no end."""
    out: list[int] = []
    for step in range(steps):
        if matcher.may_end and random_.random() < 0.8:
            break
        if random_.random() < 0.5 + step / steps:
            closing = [*guide[: random_.randrange(2 * len(guide))], *random_.sample(guide, len(guide))]
            for words in closing:
                tokens = tokenizer.encode(words, add_special_tokens=False)
                if tokens and matcher._matcher.validate_tokens(tokens) == len(tokens):
                    follow(matcher, tokens)
                    out += tokens
                    break
            else:
                continue
            continue
        mask = matcher.mask()
        bits = [t for t in range(tokenizer.vocab_size) if mask[t >> 5] >> (t & 31) & 1]
        bits = [
            t for t in bits if t not in tokenizer.eos_token_ids and (t > 255 or 32 <= tokenizer.token_bytes(t)[0] < 127)
        ]
        if not bits:
            continue
        token = random_.choice(bits)
        matcher.accept(token)
        out.append(token)
    return tokenizer.decode(out, skip_special_tokens=False) if matcher.may_end else None


@brief_or_long
@pytest.mark.parametrize("spelled", [True, False])
@pytest.mark.parametrize("name", CALLING)
def test_whatever_a_required_call_may_be_is_one(name: str, spelled: bool, examples: int):
    found = formats()[name]
    closers = [found.reasoning.close.strip()] if found.reasoning else []
    closers += [f"}}}}{found.calls.end}", f"}}{found.calls.end}", *found.markers, '"', "}", "]", ")"]
    guide = [*closers, "{", "true", "0", "1", ", ", ",", '": ', "'", "\n", "C", *SCHEMAS]
    kinds = {tool.name: argument_kinds(tool.parameters) for tool in TOOLS}
    ended = 0
    wanted = max(examples // 4, 2)
    for seed in range(40 * wanted):
        if ended == wanted:
            break
        tokenizer, matcher = grammar(name, spelled, ToolChoice("required"))
        message = walk(tokenizer, matcher, guide, random.Random(seed))
        if message is None:
            continue
        ended += 1
        reader = FormatReader(found, kinds)
        read = joined(reader.push(message) + reader.finish())
        made = [piece for piece in read if isinstance(piece, ToolCall)]
        assert made, (message, read)
        assert not [piece for piece in read if isinstance(piece, Text)], (message, read)
        for call in made:
            jsonschema.Draft202012Validator(SCHEMAS[call.name]).validate(json.loads(call.arguments))
    assert ended == wanted


@pytest.mark.parametrize("name", CALLING)
def test_where_no_tool_may_be_called_no_call_is_written(name: str):
    found = formats()[name]
    written = write_calls(found.calls, [ToolCall("now", "{}")])
    assert not accepts(name, True, written, ToolChoice("none"))
    if not found.answer.open:
        assert accepts(name, True, "Nothing to call.", ToolChoice("none"))


@pytest.mark.parametrize("name", [name for name in CALLING if formats()[name].reasoning is not None])
def test_reasoning_comes_before_a_required_call(name: str):
    found = formats()[name]
    call = write_calls(found.calls, [ToolCall("now", "{}")])
    thought = found.reasoning.open + "Hm, <why>?" + found.reasoning.close
    must = ToolChoice("required")
    for spelled in (True, False):
        assert accepts(name, spelled, thought + call, must)
        rest = thought.removeprefix(found.reasoning.open.rstrip()) + call
        assert accepts(name, spelled, rest, must, found.reasoning.open.rstrip())
        assert not accepts(name, spelled, thought, must)
        reader = FormatReader(found, {"now": {}})
        read = joined(reader.push(thought + call) + reader.finish())
        assert [type(piece) for piece in read] == [Thought, ToolCall]


@pytest.mark.parametrize("name", list(formats()))
def test_an_answer_of_some_form(name: str):
    found = formats()[name]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = Conversation([], answer=AnswerForm("json_schema", schema))
    tokenizer, engine = vocabulary(name, True)
    compiled = engine.compile(output_grammar(tokenizer, found, asked, "").source)
    for answer, good in (('{"a": 3}', True), ('{"a": "3"}', False), ("Hello", False)):
        message = found.answer.open + answer + found.answer.close
        matcher = compiled.matcher()
        tokens = tokenizer.encode(message, add_special_tokens=False)
        fits = matcher._matcher.validate_tokens(tokens) == len(tokens)
        assert fits == good
