"""Each call of a message has an id of its own, whatever the model writes."""

from __future__ import annotations

import pytest

from headrace.gateway.tool_calls import CallIds
from headrace.text.formats.catalog import formats
from headrace.text.formats.pieces import Text, ToolCall


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
