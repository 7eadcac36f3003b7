"""Answers of a given form, tools and reasoning, without a server."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest

from headrace import InvalidInput, SamplingParams
from headrace.engine.messages import Finish, TokenDelta
from headrace.llm.collect import RequestCollector
from headrace.llm.inputs import Job
from headrace.text.formats.catalog import format_named
from headrace.text.prompt import Prompt
from headrace.text.reading import Reading
from headrace.text.stream import MessageForm

TALK = [{"role": "user", "content": "what is the weather?"}]
WILD = SamplingParams(temperature=1.5, seed=5, max_tokens=200)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"regex": r"[ab]{3}-\d{2}"}, r"[ab]{3}-\d{2}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "x" ("y" | "z")'}, "xy|xz"),
    ],
)
def test_texts_are_of_the_form_that_is_asked_for(llm, options, pattern):
    params = SamplingParams(temperature=1.5, seed=1, n=3, max_tokens=40)
    (output,) = llm.generate("the quick", params, **options)
    assert all(re.fullmatch(pattern, sample.text) for sample in output.outputs)
    assert {sample.finish_reason for sample in output.outputs} == {"stop"}
    (answer,) = llm.chat(TALK, params, **options)
    assert all(re.fullmatch(pattern, sample.text) for sample in answer.outputs)
    streamed = "".join(piece.text for piece in llm.stream("the quick", params, **options) if piece.index == 1)
    assert streamed == output.outputs[1].text


def test_an_answer_follows_a_schema(llm):
    wanted = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
    (output,) = llm.chat(TALK, WILD, response_format=wanted)
    assert output.outputs[0].finish_reason == "stop"
    jsonschema.validate(json.loads(output.outputs[0].text), SCHEMA)


@pytest.mark.parametrize("stop", [(), ("never written",)])
def test_a_required_call_is_returned_as_one(llm, stop):
    params = SamplingParams(temperature=1.5, seed=5, max_tokens=300, stop=stop)
    options = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    (output,) = llm.chat(TALK, params, **options)
    (sample,) = output.outputs
    (call,) = sample.tool_calls
    assert (sample.text, sample.reasoning, call.name) == ("", "", "get_weather")
    assert call.id
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    pieces = list(llm.stream_chat(TALK, params, **options))
    (streamed,) = [call for piece in pieces for call in piece.tool_calls]
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)
    assert "get_weather" in output.prompt


def test_a_call_that_is_cut_is_text(llm):
    params = SamplingParams(temperature=0, max_tokens=10)
    (output,) = llm.chat(TALK, params, tools=[TOOL], tool_choice="required")
    (sample,) = output.outputs
    assert (sample.finish_reason, sample.tool_calls) == ("length", [])
    assert sample.text == llm.get_tokenizer().decode(sample.token_ids, skip_special_tokens=True)


def test_reasoning_is_apart(llm):
    tokenizer = llm.get_tokenizer()
    tokens = tokenizer.encode("<think>the cat</think>sleeps", add_special_tokens=False)
    params = SamplingParams(max_tokens=100)
    form = MessageForm(format_named("hermes"), Reading())
    collector = RequestCollector(tokenizer, Job(Prompt(np.array([1]), None), params, form, 0.0, 0.0), "0")
    deltas = [collector.push(TokenDelta(0, 0, [token])) for token in tokens]
    deltas.append(collector.push(TokenDelta(0, 0, [], finish=Finish("stop"))))
    assert "".join(delta.reasoning for delta in deltas) == "the cat"
    assert "".join(delta.text for delta in deltas) == "sleeps"
    (sample,) = collector.output().outputs
    assert (sample.reasoning, sample.text, sample.tool_calls) == ("the cat", "sleeps", [])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"regex": "("}, "regex"),
        ({"regex": "a", "choice": ["b"]}, "choice"),
        ({"choice": []}, "choice"),
        ({"grammar": "start: ("}, "grammar"),
        ({"choise": ["a"]}, "choise"),
    ],
)
def test_bad_forms_are_named(llm, options, field):
    for call in (lambda: llm.generate("a", WILD, **options), lambda: llm.chat(TALK, WILD, **options)):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"minLength": -1}}}},
            "response_format.json_schema.schema.minLength",
        ),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"tools": {1, 2}}, None),
        ({"tools": [1]}, "tools[0]"),
        ({"regex": b"a"}, None),
        ({"regex": float("nan")}, None),
        ({"regex": "\ud800"}, "regex"),
        ({"n": 3}, "n"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"stop": ["a"]}, "stop"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"grammar": "start: nobody"}, "grammar"),
        ({"tools": [object()]}, None),
    ],
)
def test_bad_options_of_a_chat_are_named(llm, options, field):
    with pytest.raises(InvalidInput) as caught:
        llm.chat(TALK, WILD, **options)
    assert caught.value.field == field


def test_what_binds_the_engine_is_not_for_callers(llm):
    for name in ("grammar", "reading"):
        with pytest.raises(InvalidInput) as caught:
            llm.generate("a", SamplingParams(**{name: 'start: "a"'}))
        assert caught.value.field == f"sampling_params.{name}"


def test_a_message_keeps_its_place_where_tools_are_told(llm):
    with pytest.raises(InvalidInput) as caught:
        llm.chat([{"role": "user", "content": 3}], tools=[TOOL])
    assert caught.value.field == "messages[0].content"


def test_options_are_looked_at_though_there_is_nothing_to_answer(llm):
    for call in (llm.chat, llm.generate):
        with pytest.raises(InvalidInput) as caught:
            call([], regex="(", choice=["a"])
        assert caught.value.field == "choice"


def test_sampling_parameters_are_no_options(llm):
    with pytest.raises(InvalidInput) as caught:
        llm.generate("a", ignore_eos=True)
    assert caught.value.field == "ignore_eos"


def test_a_form_says_where_an_answer_ends(llm):
    with pytest.raises(InvalidInput) as caught:
        llm.generate(["a", "b"], [WILD, SamplingParams(ignore_eos=True)], regex="a")
    assert caught.value.field == "sampling_params[1].ignore_eos"
