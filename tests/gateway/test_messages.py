"""The Messages API with Anthropic's client, against the real server."""

import asyncio
import json
import re

import anthropic
import jsonschema
import openai
import pydantic
import pytest
from official_types import MESSAGE, MESSAGE_EVENT, events, strictly
from servers import NAME

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
    },
}
NOW = {"name": "now", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}
ANY = {"type": "any", "disable_parallel_tool_use": True}
MUST = {"tools": [WEATHER, NOW], "tool_choice": ANY, "max_tokens": 120}


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0) as one:
        yield one


def greedy(content="Name three rivers.", **options):
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return {"model": NAME, "messages": messages, "max_tokens": 8, "extra_body": {"temperature": 0}, **options}


@pytest.fixture
def ask(claude):
    return lambda *args, **options: claude.messages.create(**greedy(*args, **options))


def plain(content="Name three rivers.", **options):
    body = greedy(content, **options)
    return {**body.pop("extra_body"), **body}


def stream_of(server, *args, **options):
    """The events of a stream, each strictly of the client's type."""
    with server.http.stream("POST", "/v1/messages", json=plain(*args, stream=True, **options)) as answer:
        assert answer.status_code == 200, answer.read()
        found = list(events(answer.iter_lines()))
    assert [name for name, _ in found][1] == "ping"
    return [strictly(MESSAGE_EVENT, data) for name, data in found if name != "ping"]


def test_a_text(ask, chat):
    answer = ask()
    (block,) = answer.content
    assert block.text == chat().choices[0].message.content
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 8
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req-")
    counted = chat().usage
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted.prompt_tokens


def test_the_answer_is_strictly_of_the_clients_type(server):
    for body in (plain(), plain(**MUST)):
        strictly(MESSAGE, server.http.post("/v1/messages", json=body).content)


def test_a_streamed_text_is_the_whole_text(server, ask):
    found = stream_of(server)
    whole = ask()
    assert [event.type for event in found][:2] == ["message_start", "content_block_start"]
    assert [event.type for event in found][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event.delta.text for event in found if event.type == "content_block_delta"]
    assert "".join(deltas) == whole.content[0].text
    assert found[-2].delta.stop_reason == "max_tokens"
    assert found[-2].usage.output_tokens == whole.usage.output_tokens


def test_the_clients_stream_helper(claude, ask):
    with claude.messages.stream(**greedy()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == text == ask().content[0].text
    assert final.stop_reason == "max_tokens"
    with claude.messages.stream(**greedy("Weather in Oslo?", **MUST)) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].input == ask("Weather in Oslo?", **MUST).content[0].input


def test_system_and_blocks(ask, chat):
    messages = [{"role": "system", "content": "Talk of\ncats."}, {"role": "user", "content": "Hello\nthere!"}]
    expected = chat(messages).choices[0].message.content
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Talk of", **cached}, {"type": "text", "text": "cats."}]
    blocks = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there!", **cached}]
    assert ask([{"role": "user", "content": blocks}], system=system).content[0].text == expected
    assert ask("Hello\nthere!", system="Talk of\ncats.").content[0].text == expected


def test_a_begun_answer_is_continued(ask, chat):
    begun = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": "The river"}]
    expected = chat(begun, extra_body={"continue_final_message": True}).choices[0].message.content
    assert ask(begun).content[0].text == expected


def test_json_is_not_begun_by_the_caller(ask, chat):
    begun = [{"role": "user", "content": "Name a river."}, {"role": "assistant", "content": '{"name":'}]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(begun, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert refused.value.body["error"]["param"] == "output_config.format.schema"
    with pytest.raises(openai.BadRequestError) as refused:
        chat(begun, response_format={"type": "json_object"}, extra_body={"continue_final_message": True})
    assert refused.value.param == "response_format"
    assert chat(begun, extra_body={"continue_final_message": True, "choice": [' "Po"}']}).choices[0].message.content


def test_stop_sequences(ask, server):
    free = ask(max_tokens=12).content[0].text
    stop = free[10:13]
    answer = ask(max_tokens=12, stop_sequences=["never seen", stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == free[: free.index(stop)]
    end = stream_of(server, max_tokens=12, stop_sequences=[stop])[-2].delta
    assert (end.stop_reason, end.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("choice", "names"),
    [(ANY, {"get_weather", "now"}), ({"type": "tool", "name": "now"}, {"now"}), ({"type": "none"}, set())],
)
def test_choices_of_tools(ask, server, choice, names):
    options = {**MUST, "tool_choice": choice}
    answer = ask("What is the weather in Paris?", **options)
    used = [block for block in answer.content if block.type == "tool_use"]
    assert {block.name for block in used} <= names
    assert bool(used) == bool(names)
    assert (answer.stop_reason == "tool_use") == bool(names)
    for block in used:
        schema = {tool["name"]: tool["input_schema"] for tool in (WEATHER, NOW)}[block.name]
        jsonschema.validate(block.input, schema)
        assert re.fullmatch("[a-zA-Z0-9_-]+", block.id)
    found = stream_of(server, "What is the weather in Paris?", **options)
    inputs = [e.delta.partial_json for e in found if e.type == "content_block_delta" and "json" in e.delta.type]
    assert [json.loads(text) for text in inputs] == [block.input for block in used]


def test_a_loop_with_a_tool(claude, chat):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = claude.messages.create(**greedy(messages, **MUST))
    messages.append({"role": "assistant", "content": first.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "Sunny."}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": "And tell me of it."}]})
    second = claude.messages.create(**greedy(messages, **{**MUST, "tool_choice": {"type": "none"}}))
    assert second.content[0].type == "text"
    used = first.content[0]
    call = {"id": used.id, "type": "function", "function": {"name": used.name, "arguments": json.dumps(used.input)}}
    same = [
        messages[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": used.id, "content": "Sunny."},
        {"role": "user", "content": "And tell me of it."},
    ]
    functions = [{**tool, "parameters": tool["input_schema"]} for tool in (WEATHER, NOW)]
    tools = [
        {"type": "function", "function": {name: f[name] for name in ("name", "description", "parameters")}}
        for f in functions
    ]
    expected = chat(same, tools=tools, tool_choice="none", max_tokens=120).choices[0].message.content
    assert second.content[0].text == expected


def test_earlier_reasoning_and_failed_tools_are_taken(ask):
    answer = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "No clock."}
    messages = [{"role": "user", "content": "The time?"}, {"role": "assistant", "content": answer}]
    assert ask([*messages, {"role": "user", "content": [result]}], tools=[NOW]).content


def test_counting_tokens(claude, ask):
    for options in ({}, {"system": "Be brief."}, {"tools": [WEATHER], "tool_choice": {"type": "auto"}}):
        body = {name: value for name, value in greedy(**options).items() if name not in ("max_tokens", "extra_body")}
        usage = ask(**options).usage
        counted = claude.messages.count_tokens(**body)
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


class Verdict(pydantic.BaseModel):
    """A form for answers."""

    sure: bool


def test_parse_with_a_model_of_pydantic(claude):
    answer = claude.messages.parse(**greedy("Is it sure?", max_tokens=60, output_format=Verdict))
    assert isinstance(answer.parsed_output, Verdict)


def test_thinking(ask):
    assert ask(thinking={"type": "disabled"}).content
    assert ask(thinking={"type": "adaptive"}).content
    enabled = {"type": "enabled", "budget_tokens": 1024}
    with pytest.raises(anthropic.BadRequestError) as caught:  # this model has no reasoning to switch on
        ask(thinking=enabled, max_tokens=2000)
    assert caught.value.body["error"]["param"] == "thinking"
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(output_config={"effort": "low"})
    assert caught.value.body["error"]["param"] == "output_config.effort"


def test_the_context_may_end_an_answer(small):
    with anthropic.Anthropic(api_key="from-flag", base_url=small.url, max_retries=0) as client:
        schema = {"type": "string", "minLength": 400}  # it cannot end before
        options = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        answer = client.messages.create(**greedy("Hi", max_tokens=1000, **options))
        usage = answer.usage
        assert answer.stop_reason == "model_context_window_exceeded"
        assert usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens == 64


def test_models(claude):
    (model,) = claude.models.list()
    assert model.id == model.display_name == NAME
    assert model.max_input_tokens > 1000
    assert claude.models.retrieve(NAME) == model
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("claude")


@pytest.mark.parametrize(
    ("options", "kind", "error"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"content": "hello " * 100_000}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"max_token": 1}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_anthropics_shape(claude, options, kind, error, stream):
    with pytest.raises(kind) as caught:
        claude.messages.create(**greedy(**options, stream=stream))
    body = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", error)
    assert body["request_id"] == caught.value.request_id
    assert body["request_id"].startswith("req-")


def test_routes_that_are_not_there_have_anthropics_shape_too(server):
    for method, path in (("POST", "/v1/messages/batches"), ("GET", "/v1/messages")):
        body = server.http.request(method, path).json()
        assert body["type"] == "error"
    assert "param" in server.http.post("/v1/messageshm").json()["error"]


def test_keys(small):
    with anthropic.Anthropic(api_key="from-flag", base_url=small.url, max_retries=0) as client:
        assert client.messages.create(**greedy("Hi", max_tokens=1)).usage.output_tokens == 1
        assert client.models.list().data
    with anthropic.Anthropic(auth_token="from-file", base_url=small.url, max_retries=0) as client:
        assert client.messages.count_tokens(model=NAME, messages=[{"role": "user", "content": "Hi"}]).input_tokens
    with anthropic.Anthropic(api_key="wrong", base_url=small.url, max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**greedy("Hi", max_tokens=1))
        assert caught.value.body["error"]["type"] == "authentication_error"


def test_async_client(server):
    async def both():
        async with anthropic.AsyncAnthropic(api_key="none", base_url=server.url, max_retries=0) as client:
            whole = await client.messages.create(**greedy())
            async with client.messages.stream(**greedy()) as stream:
                return whole.content[0].text, "".join([text async for text in stream.text_stream])

    whole, streamed = asyncio.run(both())
    assert whole == streamed


def test_closing_a_stream_ends_the_work(claude, server):
    before = server.metrics()["headrace_requests_aborted_total"]
    with claude.messages.stream(**greedy("Count to one thousand.", max_tokens=2000)) as stream:
        next(iter(stream))
    server.assert_comes_to_rest(5)
    assert server.metrics()["headrace_requests_aborted_total"] == before + 1
