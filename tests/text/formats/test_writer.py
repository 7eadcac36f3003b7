"""Writing calls: read back as they were, or refused."""

from __future__ import annotations

import json
import random

import pytest
from format_checks import read
from format_messages import NAMES, arguments, kinds_of, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.text.formats.call_reader import name_in
from headrace.text.formats.catalog import format_named, formats
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.writer import new_id, write_calls

with_calls = pytest.mark.parametrize(
    "found", [found for found in formats().values() if found.calls], ids=[n for n, f in formats().items() if f.calls]
)


@with_calls
def test_what_is_written_is_read(found: Format):
    calls = found.calls
    assert calls is not None
    written = 0

    @settings(max_examples=150)
    @given(seeds)
    def check(rng: random.Random) -> None:
        nonlocal written
        name = rng.choice(NAMES)
        made = ToolCall(name, json.dumps(arguments(rng)), new_id(calls, name, 0))
        try:
            text = write_calls(calls, [made])
        except InvalidInput:
            return
        written += 1
        (call,) = read(found, [text], tools=kinds_of([made]))
        assert isinstance(call, ToolCall)
        assert (call.name, json.loads(call.arguments)) == (name, json.loads(made.arguments))
        assert call.id in (made.id, None)

    check()
    assert written > 75


@with_calls
@given(name=st.text(max_size=6), key=st.text(max_size=6), value=st.text(max_size=12))
@settings(max_examples=60)
def test_any_name_key_and_string_is_read_or_refused(found: Format, name: str, key: str, value: str):
    calls = found.calls
    assert calls is not None
    made = ToolCall(name, json.dumps({key: value}))
    try:
        text = write_calls(calls, [made])
    except InvalidInput:
        return
    pieces = read(found, [text], tools=kinds_of([made]))
    assert [(p.name, json.loads(p.arguments)) for p in pieces if isinstance(p, ToolCall)] == [(name, {key: value})]


@with_calls
def test_calls_that_cannot_be_written(found: Format):
    calls = found.calls
    assert calls is not None
    for bad in ("", "[1]", "{", '{"a": NaN}', "[" * 100_000, '{"a": ' + "[" * 70 + "]" * 70 + "}"):
        with pytest.raises(InvalidInput) as caught:
            write_calls(calls, [ToolCall("f", bad)])
        assert caught.value.field == "arguments"
    assert write_calls(calls, []) == ""


def test_ids():
    kimi, mistral = format_named("kimi-k2").calls, format_named("mistral").calls
    assert kimi is not None
    assert mistral is not None
    assert new_id(kimi, "f", 3) == "functions.f:3"
    assert len(new_id(mistral, "f", 0)) == 9
    assert "functions.f:0" in write_calls(kimi, [ToolCall("f", "{}", "call_of_another_model")])
    assert '"id": "abcdefghi"' in write_calls(mistral, [ToolCall("f", "{}", "abcdefghi")])


@pytest.mark.parametrize(
    ("written", "name"),
    [("functions.f:0", "f"), ("functions.f:12", "f"), ("f:0", "f"), ("functions.f", "f"), ("f", "f"), ("a:b:1", "a:b")],
)
def test_names_in_ids(written: str, name: str):
    assert name_in("functions.$name:$index", written) == name
