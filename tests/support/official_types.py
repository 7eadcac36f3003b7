"""Answers and events against the types of the official clients, strictly: nothing missing, nothing of another type,
nothing that the types do not know."""

import json

import pydantic
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent

RESPONSE = pydantic.TypeAdapter(Response)
RESPONSE_EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
MESSAGE = pydantic.TypeAdapter(Message)
MESSAGE_EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)
# What the client's types leave out: of a response, and of the log probabilities in events.
UNTYPED = {"store", "bytes"}


def strictly(adapter, data):
    """What ``data`` (JSON) says, as the client's own type."""
    parsed = adapter.validate_json(data, strict=True)
    assert_no_extras(parsed)
    return parsed


def assert_no_extras(value):
    if isinstance(value, pydantic.BaseModel):
        assert set(value.model_extra or ()) <= UNTYPED, value
        for name in type(value).model_fields:
            assert_no_extras(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            assert_no_extras(item)


def events(lines):
    """Name and data of each event of a stream of lines."""
    name = None
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            assert json.loads(data)["type"] == name
            yield name, data
