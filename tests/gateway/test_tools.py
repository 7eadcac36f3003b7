"""Tools, reasoning and constrained output with the official client, against the real server."""

import json
import re
import time

import jsonschema
import openai
import pytest
from servers import NAME

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"enum": ["C", "F"]}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "now", "description": "The time."}}
TOOLS = [WEATHER, TIME]
SCHEMAS = {
    "get_weather": WEATHER["function"]["parameters"],
    "now": {"type": "object", "maxProperties": 0},
}
MUST = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}


def assert_calls(calls):
    assert calls
    for call in calls:
        assert call.type == "function"
        assert re.fullmatch(r"call_[A-Za-z0-9]{24}", call.id)
        jsonschema.Draft202012Validator(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))
    assert len({call.id for call in calls}) == len(calls)


def streamed(chunks):
    """Contents, calls and ends of a stream, by choice, put together as clients do it."""
    contents, calls, ends = {}, {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            contents[choice.index] = contents.get(choice.index, "") + (choice.delta.content or "")
            for part in choice.delta.tool_calls or ():
                known = calls.setdefault(choice.index, [])
                if part.index == len(known):
                    known.append({"id": part.id, "name": part.function.name, "arguments": ""})
                known[part.index]["arguments"] += part.function.arguments
            if choice.finish_reason:
                assert choice.index not in ends
                ends[choice.index] = choice.finish_reason
    return contents, calls, ends


def test_a_required_call(chat):
    (choice,) = chat("What is the weather in Paris?", **MUST).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert_calls(choice.message.tool_calls)


def test_streamed_is_whole(chat):
    whole = chat("What is the weather in Paris?", **MUST).choices[0].message.tool_calls
    contents, calls, ends = streamed(chat("What is the weather in Paris?", stream=True, **MUST))
    assert (contents, ends) == ({0: ""}, {0: "tool_calls"})
    assert [(call["name"], call["arguments"]) for call in calls[0]] == [
        (call.function.name, call.function.arguments) for call in whole
    ]


def test_a_tool_without_arguments_is_called_with_an_empty_object(chat):
    options = {**MUST, "tool_choice": {"type": "function", "function": {"name": "now"}}}
    assert chat("What time is it?", **options).choices[0].message.tool_calls[0].function.arguments == "{}"
    _, calls, _ = streamed(chat("What time is it?", stream=True, **options))
    assert [(call["name"], call["arguments"]) for call in calls[0]] == [("now", "{}")]


def test_only_some_tools_are_allowed(chat):
    allowed = [{"type": "function", "function": {"name": "now"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}}
    message = chat("The weather in Paris?", **{**MUST, "tool_choice": choice}).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["now"]


def test_no_tool_is_called_where_none_may_be(chat):
    message = chat("The weather in Paris?", **{**MUST, "tool_choice": "none", "max_tokens": 40}).choices[0].message
    assert message.tool_calls is None
    assert "<tool_call>" not in message.content


def test_two_samples_with_log_probabilities(chat):
    answer = chat("What is the weather in Paris?", n=2, logprobs=True, temperature=1, seed=3, **MUST)
    for choice in answer.choices:
        assert_calls(choice.message.tool_calls)
    tokens = [entry.token for choice in answer.choices for entry in choice.logprobs.content]
    assert len(tokens) == answer.usage.completion_tokens
    for choice in answer.choices:
        text = "".join(entry.token for entry in choice.logprobs.content)
        assert text.startswith("<tool_call>[")
        assert choice.message.tool_calls[0].function.arguments in text


def test_log_probabilities_change_nothing(chat):
    plain, told = (chat("The weather in Oslo?", logprobs=flag, **MUST).choices[0] for flag in (False, True))
    assert plain.message.tool_calls[0].function == told.message.tool_calls[0].function


@pytest.mark.parametrize("stop", ["a", ["\n", '"'], ["tool_call", "}"]])
def test_stop_strings_do_not_end_calls(chat, stop):
    message = chat("What is the weather in Paris?", stop=stop, **MUST).choices[0]
    assert message.finish_reason == "tool_calls"
    assert_calls(message.message.tool_calls)


def test_stop_strings_end_the_text_beside_tools(chat):
    free = chat("Name three rivers.", tools=TOOLS, max_tokens=40).choices[0].message.content
    stop = free[5:8]
    expected = free[: free.index(stop)]
    whole = chat("Name three rivers.", tools=TOOLS, max_tokens=40, stop=stop).choices[0]
    assert (whole.message.content, whole.finish_reason) == (expected, "stop")
    contents, _, _ = streamed(chat("Name three rivers.", tools=TOOLS, max_tokens=40, stop=stop, stream=True))
    assert contents == {0: expected}


def test_a_call_that_is_cut_is_none(chat):
    choice = chat("What is the weather in Paris?", **{**MUST, "max_tokens": 12}).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content.startswith("<tool_call>[")
    assert choice.message.malformed_tool_calls == 1


def test_a_client_that_goes_away_inside_a_call(chat, server):
    chunks = chat("Weather in Paris?", stream=True, **{**MUST, "max_tokens": 2000, "parallel_tool_calls": True})
    next(iter(chunks))
    chunks.close()
    server.assert_comes_to_rest()


def test_results_go_back_to_the_model(chat):
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = chat(asked, **MUST).choices[0].message
    asked.append(message.model_dump(exclude_none=True))
    results = {"role": "tool", "content": '{"sky": "clear"}'}
    asked += [{**results, "tool_call_id": call.id} for call in message.tool_calls]
    answer = chat(asked, tools=TOOLS, max_tokens=20)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > chat(asked[:1], tools=TOOLS, max_tokens=1).usage.prompt_tokens


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Hm.", "tool_calls": []},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": ""}}],
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{not JSON"}}],
        },
    ],
)
def test_odd_histories_are_served(chat, message):
    assert chat([{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "Go on."}], tools=TOOLS)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_by_schema(chat, stream):
    answer = chat("Tell me of Ann.", response_format=schema_format(PERSON), max_tokens=100, stream=stream)
    text = streamed(answer)[0][0] if stream else answer.choices[0].message.content
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(text))


def test_other_forms_of_an_answer(chat, complete):
    assert chat("Sky?", extra_body={"choice": ["blue", "green"]}).choices[0].message.content in ("blue", "green")
    assert re.fullmatch("[a-z]{3}-[0-9]{2}", chat(extra_body={"regex": "[a-z]{3}-[0-9]{2}"}).choices[0].message.content)
    grammar = 'start: item ("," item)*\nitem: "x" | "y"'
    for written in (grammar, 'root ::= item ("," item)*\nitem ::= "x" | "y"'):
        text = chat(extra_body={"grammar": written}, max_tokens=9).choices[0].message.content
        assert re.fullmatch("[xy](,[xy])*,?", text)
    assert re.fullmatch(" [0-9]{4}", complete("In the year", extra_body={"regex": " [0-9]{4}"}).choices[0].text)
    answer = chat("A person, as JSON.", response_format={"type": "json_object"}, max_tokens=200, frequency_penalty=0.5)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"response_format": schema_format({"type": "strin"})}, "response_format.json_schema.schema.type", "type"),
        (
            {"response_format": schema_format({"$ref": "http://example.com/x"})},
            "response_format.json_schema.schema.$ref",
            "$ref",
        ),
        ({"extra_body": {"regex": "(a"}}, "regex", "regular expression"),
        ({"extra_body": {"grammar": "start: <|im_end|>"}}, "grammar", "control token"),
        ({"extra_body": {"grammar": "nothing"}}, "grammar", "grammar"),
    ],
)
def test_what_cannot_be_enforced_is_refused(chat, options, param, says):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(**options)
    assert caught.value.param == param
    assert says in caught.value.message


def strange_tool(**more):
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a)\\1$"}}}
    return {"type": "function", "function": {"name": "strange", "parameters": parameters, **more}}


def test_a_tool_that_cannot_be_enforced(client, chat):
    """It is refused where it must be enforced, else served with a warning."""
    for options in ({"tools": [strange_tool(strict=True)]}, {"tools": [strange_tool()], "tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(**options)
        assert caught.value.param == "tools[0].function.parameters.properties.x.pattern"
    messages = [{"role": "user", "content": "Hi"}]
    raw = client.chat.completions.with_raw_response.create(
        model=NAME, messages=messages, tools=[strange_tool()], max_tokens=4
    )
    assert "strange" in raw.headers["x-headrace-warning"]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize(("field", "value"), [("response_format", {"type": "json_object"}), ("choice", ["yes", "no"])])
def test_a_form_that_binds_nothing_is_told(server, choice, field, value):
    """Where a call must come there is no other answer; where it may, there is one, of that form."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "tool_choice": choice}
    answer = server.http.post("/v1/chat/completions", json={**body, "tools": [WEATHER], field: value})
    assert answer.status_code == 200
    told = answer.headers.get("x-headrace-warning")
    assert (told is None) == (choice == "auto")
    assert told is None or f"'{field}' binds nothing" in told


def test_calls_are_counted(chat, server):
    def count(outcome):
        return server.metrics().get(("headrace_tool_calls_total", "generic", outcome), 0.0)

    before = count("parsed"), count("cut")
    made = len(chat("What is the weather in Paris?", **MUST).choices[0].message.tool_calls)
    chat("What is the weather in Paris?", **{**MUST, "max_tokens": 12})
    assert (count("parsed"), count("cut")) == (before[0] + made, before[1] + 1)


def test_a_hostile_schema_is_refused_in_time(chat):
    definitions = {"d0": {"type": "string"}}
    for i in range(60):
        below = {"$ref": f"#/$defs/d{i}"}
        definitions[f"d{i + 1}"] = {"anyOf": [{"allOf": [below, {"minLength": i}]}, {"not": below}]}
    schema = {"$defs": definitions, "$ref": "#/$defs/d60"}
    begun = time.monotonic()
    with pytest.raises(openai.BadRequestError):
        chat(response_format=schema_format(schema))
    assert time.monotonic() - begun < 30
