"""The Responses API with the official client, against the real server."""

import json

import jsonschema
import openai
import pydantic
import pytest
from official_types import RESPONSE, RESPONSE_EVENT, events, strictly
from servers import NAME

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 24}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
    },
}
NOW = {"type": "function", "name": "now", "description": "The time."}
MUST = {"tools": [WEATHER, NOW], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 120}


@pytest.fixture
def respond(client):
    def ask(content="Name three rivers.", **options):
        options = {"model": NAME, "input": content, "max_output_tokens": 8, "temperature": 0, **options}
        return client.responses.create(**{name: value for name, value in options.items() if value is not ...})

    return ask


def stream_of(server, content="Name three rivers.", **options):
    """The events of a stream, each strictly of the client's type."""
    body = {"model": NAME, "input": content, "max_output_tokens": 8, "temperature": 0, "stream": True, **options}
    with server.http.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        found = [strictly(RESPONSE_EVENT, data) for _, data in events(answer.iter_lines())]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    return found


def kinds(found):
    """The types of events, several deltas in a row as one."""
    names = [event.type.removeprefix("response.") for event in found]
    return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]


HEAD = ["created", "in_progress"]
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta"]
MESSAGE_END = ["output_text.done", "content_part.done", "output_item.done"]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]


def test_a_text(respond, chat):
    answer = respond()
    assert answer.output_text == chat().choices[0].message.content
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    usage = answer.usage
    assert usage.output_tokens == 8
    assert usage.total_tokens == usage.input_tokens + 8
    assert answer.id.startswith("resp_")
    assert answer.output[0].id.startswith("msg_")


def test_the_answer_is_strictly_of_the_clients_type(server):
    body = {"model": NAME, "input": "Hi", "max_output_tokens": 4, "instructions": "Be brief.", "metadata": {"a": "b"}}
    body |= {"tools": [WEATHER], "reasoning": {"effort": "none"}, "text": {"format": {"type": "text"}}, "user": "u"}
    parsed = strictly(RESPONSE, server.http.post("/v1/responses", json=body).content)
    assert parsed.instructions == "Be brief."
    assert parsed.metadata == {"a": "b"}
    assert parsed.tools[0].name == "get_weather"
    assert parsed.reasoning.effort == "none"


def test_a_streamed_text_is_the_whole_text(server, respond):
    found = stream_of(server)
    assert kinds(found) == [*HEAD, *MESSAGE, *MESSAGE_END, "incomplete"]
    whole, last = respond(), found[-1].response
    assert "".join(event.delta for event in found if event.type == "response.output_text.delta") == whole.output_text
    assert last.output_text == whole.output_text
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert last.output[0].id == found[2].item.id


def test_a_whole_answer_ends_completed(server):
    options = {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [True]}}}}
    found = stream_of(server, max_output_tokens=20, **options)
    assert kinds(found)[-1] == "completed"
    assert json.loads(found[-1].response.output_text) is True
    assert found[-1].response.output[0].status == "completed"


def test_instructions_are_the_system_message(respond, chat):
    messages = [{"role": "system", "content": "Talk of cats."}, {"role": "user", "content": "Hello!"}]
    assert respond("Hello!", instructions="Talk of cats.").output_text == chat(messages).choices[0].message.content
    items = [{"role": "developer", "content": [{"type": "input_text", "text": "Talk of cats."}]}]
    items += [{"type": "message", "role": "user", "content": "Hello!", "status": "completed"}]
    assert respond(items).output_text == chat(messages).choices[0].message.content


def test_a_required_call(respond, server):
    answer = respond("What is the weather in Paris?", **MUST)
    (call,) = answer.output
    assert answer.status == "completed"
    assert (call.type, call.status, call.id[:3]) == ("function_call", "completed", "fc_")
    found = stream_of(server, "What is the weather in Paris?", **MUST)
    assert kinds(found) == [*HEAD, *CALL, "completed"]
    streamed = found[-1].response.output[0]
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "function", "name": "now"}, {"now"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}, {"now"}),
        ("none", set()),
    ],
)
def test_choices_of_tools(respond, choice, names):
    answer = respond("What time is it?", **{**MUST, "tool_choice": choice, "max_output_tokens": 60})
    assert {item.name for item in answer.output if item.type == "function_call"} == names


def test_a_loop_with_a_tool_by_items(client):
    items = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"model": NAME, "temperature": 0, "tools": [WEATHER]}
    first = client.responses.create(input=items, tool_choice="required", parallel_tool_calls=False, **options)
    items += first.output
    for call in first.output:
        jsonschema.validate(json.loads(call.arguments), WEATHER["parameters"])
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."})
    second = client.responses.create(input=items, tool_choice="none", max_output_tokens=24, **options)
    assert second.output[0].type == "message"
    by_id = client.responses.create(
        input=items[-1:], previous_response_id=first.id, tool_choice="none", max_output_tokens=24, **options
    )
    assert by_id.output_text == second.output_text
    assert by_id.usage.input_tokens == second.usage.input_tokens
    listed = client.responses.input_items.list(by_id.id, order="asc")
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]


def test_the_clients_stream_helper(client):
    with client.responses.stream(model=NAME, input="What is the weather in Oslo?", temperature=0, **MUST) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in seen
    assert final.output[0].name in ("get_weather", "now")


class Verdict(pydantic.BaseModel):
    """A form for answers."""

    sure: bool
    rivers: list[str] = pydantic.Field(max_length=2)


def test_parse_with_a_model_of_pydantic(client):
    answer = client.responses.parse(
        model=NAME, input="Name a river.", text_format=Verdict, max_output_tokens=200, temperature=0
    )
    assert answer.status in ("completed", "incomplete")
    if answer.status == "completed":
        assert isinstance(answer.output_parsed, Verdict)
    with client.responses.stream(
        model=NAME, input="Sure?", text_format=Verdict, max_output_tokens=200, temperature=0
    ) as stream:
        assert list(stream)[-1].type in ("response.completed", "response.incomplete")


def test_log_probabilities(server, respond):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = respond(**options).output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    found = stream_of(server, **options)
    streamed = [e for event in found if event.type == "response.output_text.delta" for e in event.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in part.logprobs]
    assert respond().output[0].content[0].logprobs == []
    calls = respond("Weather in Paris?", **MUST, include=["message.output_text.logprobs"]).output
    assert [item.type for item in calls] == ["function_call"]


def test_previous_responses(client, respond, chat):
    first = respond("My name is Ann.", instructions="Be brief.")
    second = respond("What is my name?", previous_response_id=first.id)
    messages = [{"role": "user", "content": "My name is Ann."}, {"role": "assistant", "content": first.output_text}]
    messages += [{"role": "user", "content": "What is my name?"}]  # and no instructions
    assert second.output_text == chat(messages).choices[0].message.content
    assert second.previous_response_id == first.id
    client.responses.delete(first.id)
    third = respond("And mine?", previous_response_id=second.id)  # it holds all that was before it
    assert third.usage.input_tokens > second.usage.input_tokens
    items = client.responses.input_items.list(third.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant", "user"]


def test_references_to_items(client, respond, chat):
    first = respond("My name is Ann.")
    (said,) = client.responses.input_items.list(first.id).data
    items = [{"type": "item_reference", "id": said.id}, {"type": "item_reference", "id": first.output[0].id}]
    messages = [{"role": "user", "content": "My name is Ann."}, {"role": "assistant", "content": first.output_text}]
    more = {"role": "user", "content": "What is my name?"}
    assert respond([*items, more]).output_text == chat([*messages, more]).choices[0].message.content
    with pytest.raises(openai.BadRequestError) as caught:
        respond([{"type": "item_reference", "id": "msg_nothing"}])
    assert caught.value.param == "input[0].id"


def test_stored_responses(client, respond, server):
    made = respond(metadata={"k": "v"})
    assert client.responses.retrieve(made.id) == made
    streamed = stream_of(server)[-1].response
    assert client.responses.retrieve(streamed.id).output_text == made.output_text
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for gone in (made.id, respond(store=False).id, "resp_nothing"):
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(gone)
        with pytest.raises(openai.NotFoundError):
            client.responses.input_items.list(gone)
        with pytest.raises(openai.BadRequestError) as caught:
            respond(previous_response_id=gone)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_pages_of_input_items(client, respond):
    items = [{"role": "user", "content": f"{i}"} for i in range(5)]
    made = respond(items)
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert texts == ["0", "1", "2", "3", "4"]
    assert [item.content[0].text for item in client.responses.input_items.list(made.id, limit=3)][:2] == ["4", "3"]
    for options in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(made.id, **options)
        assert caught.value.param == next(iter(options))


def test_input_tokens(client, respond):
    options = {"tools": [WEATHER], "instructions": "Be brief."}
    counted = client.responses.input_tokens.count(model=NAME, input="Name three rivers.", **options)
    made = respond(**options)
    assert counted.input_tokens == made.usage.input_tokens
    more = client.responses.input_tokens.count(model=NAME, input="And?", previous_response_id=made.id)
    assert more.input_tokens == respond("And?", previous_response_id=made.id).usage.input_tokens


def test_errors_of_the_text_layer_name_the_callers_fields(respond):
    for options, param in (
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"content": "hello " * 100_000}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}}}, None),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            respond(**options)
        assert param is None or caught.value.param == param
        assert caught.value.param.split(".")[0] in {"reasoning", "max_output_tokens", "input", "text"}
