"""Each call of a message has an id of its own, whatever the model writes."""

from __future__ import annotations

import pytest

from headrace.text.call_ids import CallIds
from headrace.text.conversation import Conversation
from headrace.text.formats.catalog import formats
from headrace.text.formats.pieces import Text, ToolCall

EARLIER = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "tool_calls": [{"id": f"functions.f:{i}", "function": {"name": "f"}} for i in range(2)]},
    {"role": "tool", "tool_call_id": "functions.f:0", "content": "1"},
]


@pytest.mark.parametrize("written", [None, "functions.f:1", "functions.f:0", "same"])
@pytest.mark.parametrize("name", [name for name, found in formats().items() if found.calls is not None])
def test_ids_are_distinct_and_the_models_own_where_they_can_be(name: str, written: str | None):
    ids = CallIds(formats()[name].calls)
    pieces = [step for _ in range(4) for step in ids.given([Text("a"), ToolCall("f", "{}", written)])]
    assert pieces[::2] == [Text("a")] * 4
    given = [call.id for call in pieces[1::2]]
    assert len(set(given)) == 4
    assert all(given)
    assert written is None or given[0] == written


@pytest.mark.parametrize("written", [None, "functions.f:0"])
@pytest.mark.parametrize("name", ["kimi-k2", "cohere", "mistral", "hermes"])
def test_no_id_comes_again_in_a_later_message(name: str, written: str | None):
    used: list[str] = []
    for _ in range(3):
        ids = CallIds(formats()[name].calls, used)
        used += [piece.id for piece in ids.given([ToolCall("f", "{}", written)] * 2)]
    assert len(set(used)) == 6


def test_ids_go_on_counting():
    ids = CallIds(formats()["kimi-k2"].calls, Conversation(EARLIER).call_ids)
    assert ids.given([ToolCall("f", "{}", "functions.f:0")])[0].id == "functions.f:2"
