"""Pieces of a message to items and blocks, whole and in events: the events add up to what is whole."""

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from official_types import MESSAGE_EVENT, RESPONSE_EVENT, strictly

from headrace.api.anthropic.message import ThinkingBlock, ToolUseBlock, call_id, signature_of, tool_use_id
from headrace.api.responses.output import sealed, unsealed
from headrace.engine.messages import PositionLogprobs
from headrace.gateway.job import SampleDelta
from headrace.gateway.message_writer import BlockWriter
from headrace.gateway.response_writer import OutputWriter
from headrace.models.opening import open_checkpoint
from headrace.text.formats.pieces import Text, Thought, ToolCall, joined
from headrace.text.tokenizer import load_tokenizer

DATA = Path(os.environ.get("HEADRACE_TEST_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
TEXTS = st.text(min_size=1, max_size=4)
CALLS = st.builds(ToolCall, st.sampled_from(["f", "g"]), st.sampled_from(["{}", '{"a": [1]}']), st.text(min_size=1))
PIECES = st.builds(Text, TEXTS) | st.builds(Thought, TEXTS) | CALLS
STEPS = st.lists(st.lists(PIECES, max_size=3), max_size=8)


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return load_tokenizer(open_checkpoint(smollm2).tokenizer)


def written(steps, *, seals=False, events=True, tokenizer=None, logprobs=()):
    """The writer after steps, and its events as the client's types."""
    writer = OutputWriter(tokenizer, seals_reasoning=seals, wants_events=events)
    for i, pieces in enumerate(steps):
        writer.take(SampleDelta(0, pieces, [], list(logprobs[i]) if logprobs else [], None, 0, None, 0))
    writer.end("completed")
    return writer, [strictly(RESPONSE_EVENT, msgspec.json.encode(event)) for event in writer.drain()]


def accumulated(events):
    """Items from events, as a client puts them together; every event must be in its place."""
    items, parts = [], {}
    for number, event in enumerate(events, 2):
        assert event.sequence_number == number
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert event.output_index == len(items)
            items.append(event.item)
            parts[event.output_index] = ""
            continue
        assert event.output_index == len(items) - 1
        item = items[-1]
        if kind == "output_item.done":
            assert event.item.id == item.id
            items[-1] = event.item
        elif kind.endswith(".delta"):
            parts[event.output_index] += event.delta
        elif kind.endswith(("text.done", "arguments.done")):
            whole = event.arguments if "arguments" in kind else event.text
            assert whole == parts[event.output_index]
        else:
            assert kind in ("content_part.added", "content_part.done")
        if kind != "output_item.done":
            assert event.item_id == item.id
    return items, parts


def said(item):
    return item.arguments if item.type == "function_call" else item.content[0].text


@given(STEPS, st.booleans())
def test_events_of_a_response_add_up_to_its_items(steps, seals):
    writer, events = written(steps, seals=seals)
    items, parts = accumulated(events)
    assert [item.id for item in items] == [item.id for item in writer.items]
    assert [said(item) for item in items] == list(parts.values())
    kinds = {"Text": "message", "Thought": "reasoning", "ToolCall": "function_call"}
    expected = joined([piece for pieces in steps for piece in pieces]) or [Text("")]
    assert [item.type for item in items] == [kinds[type(piece).__name__] for piece in expected]
    assert [said(item) for item in items] == [getattr(p, "arguments", None) or p.text for p in expected]
    for item in items:
        assert item.status == "completed"
        if item.type == "reasoning":
            assert (unsealed(item.encrypted_content) == said(item)) if seals else item.encrypted_content is None


@given(STEPS)
def test_a_whole_response_has_the_same_items(steps):
    def plain(writer):
        return [{**msgspec.to_builtins(item), "id": None} for item in writer.items]

    whole, events = written(steps, events=False)
    assert events == []
    assert plain(whole) == plain(written(steps)[0])


@given(STEPS)
def test_events_of_a_message_add_up_to_its_blocks(steps):
    writer = BlockWriter()
    events = [event for pieces in steps for event in writer.take(pieces)] + writer.close()
    blocks, texts = [], []
    for event in events:
        strictly(MESSAGE_EVENT, msgspec.json.encode(event))
        match event.__struct_config__.tag:
            case "content_block_start":
                assert event.index == len(blocks)
                blocks.append(event.content_block)
                texts.append("")
            case "content_block_delta":
                assert event.index == len(blocks) - 1
                texts[-1] += next(iter(msgspec.structs.asdict(event.delta).values()))
            case "content_block_stop":
                assert event.index == len(blocks) - 1
    for text, block in zip(texts, writer.blocks, strict=True):
        if isinstance(block, ToolUseBlock):
            assert json.loads(text) == block.input
        elif isinstance(block, ThinkingBlock):
            assert text == block.thinking + signature_of(block.thinking)
        else:
            assert text == block.text
    assert [type(block) for block in blocks] == [type(block) for block in writer.blocks]
    whole = BlockWriter()
    whole.take(joined([piece for pieces in steps for piece in pieces]))
    whole.close()
    assert whole.blocks == writer.blocks


@given(st.text())
def test_ids_of_calls_come_back(identifier):
    shown = tool_use_id(identifier)
    assert re.fullmatch("[a-zA-Z0-9_-]+", shown)
    assert call_id(shown) == identifier


@pytest.mark.parametrize("identifier", ["call_1", "functions.get_weather:0", "toolu_b64_", "toolu_b64_A", ""])
def test_ids_that_models_write(identifier):
    assert call_id(tool_use_id(identifier)) == identifier


@pytest.mark.parametrize("identifier", ["toolu_b64_%", "toolu_b64_A", "toolu_b64__w", "toolu_b64_Y2FsbF8x"])
def test_ids_of_other_servers_stay(identifier):
    assert call_id(identifier) == identifier


@given(st.text(), st.text())
def test_sealed_reasoning_comes_back(text, other):
    assert unsealed(sealed(text)) == text
    assert unsealed(other) is None or sealed(unsealed(other)) == other


def test_log_probabilities_go_with_their_texts(tokenizer):
    def entries(text):
        return [PositionLogprobs(token, -1.0, 1, []) for token in tokenizer.encode(text)]

    steps = [[], [Text("Hi there")], [Thought("hm")], [Thought("so"), Text(" yes")], [ToolCall("f", "{}", "1")]]
    logprobs = [entries("Hi"), entries(" there"), entries("hm"), entries("so") + entries(" yes"), entries("{}")]
    writer, events = written(steps, tokenizer=tokenizer, logprobs=logprobs)
    texts = [item.content[0] for item in writer.items if hasattr(item, "role")]
    assert [part.text for part in texts] == ["Hi there", " yes"]
    assert ["".join(entry.token for entry in part.logprobs) for part in texts] == ["Hi there", " yes"]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert ["".join(entry.token for entry in event.logprobs) for event in deltas] == ["Hi there", " yes"]


def test_events_have_the_fields_and_the_order_of_a_recorded_stream():
    """Recorded from OpenAI's server (openai/gpt-oss, compatibility-test); its reasoning had no content to send."""
    file = DATA / "gpt_oss_compat" / "responses_basic-event-stream.txt"
    if not file.exists():
        pytest.skip("no recorded streams")
    recorded = [json.loads(line[6:]) for line in file.read_text().splitlines() if line.startswith("data: {")]
    body = [event for event in recorded if event.get("output_index") == 1]
    text = [event["delta"] for event in body if event["type"] == "response.output_text.delta"]
    writer = OutputWriter(None, seals_reasoning=False, wants_events=True)
    for delta in text:
        writer.take(SampleDelta(0, [Text(delta)], [], [], None, 0, None, 0))
    writer.end("completed")
    ours = [msgspec.to_builtins(event) for event in writer.drain()]
    assert [event["type"] for event in ours] == [event["type"] for event in body]
    for event, theirs in zip(ours, body, strict=True):
        assert set(event) == set(theirs)
        for name in ("item", "part"):
            assert set(event.get(name, ())) == set(theirs.get(name, ()))
    from headrace.api.responses.output import Response

    assert set(recorded[0]["response"]) <= set(Response.__struct_encode_fields__)
