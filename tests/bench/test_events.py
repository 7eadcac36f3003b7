"""The stream reader, beside the one of OpenAI's client."""

import time
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from headrace.bench.load.events import (
    MAX_EVENT_BYTES,
    EventSplitter,
    OversizedEvent,
    decode_chunk,
    error_message,
)

LINES = st.sampled_from(
    [b"data: {}", b"data:x", b"data", b"event: y", b": note", b"id: 3", b"data:  two", b"dataset: z"]
)
BREAKS = st.sampled_from([b"\n", b"\r\n"])


def cut(data, places):
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


def split(pieces):
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@given(st.lists(st.lists(LINES, max_size=4), max_size=6), BREAKS, st.lists(st.integers(0, 10_000), max_size=20))
def test_events_are_those_of_openai_s_client(events, line_break, places):
    data = b"".join(b"".join(line + line_break for line in event) + line_break for event in events)
    expected = [event.data.encode() for event in SSEDecoder().iter_bytes(iter([data]))]
    # An event whose data lines are all empty is reported by us and the standard, not by every client.
    got = [event for event in split(cut(data, places)) if event.strip(b"\n")]
    assert got == [event for event in expected if event.strip(b"\n")]


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=20))
def test_noise_gives_the_same_events_however_it_is_cut(data, places):
    data = data.replace(b"\r", b"\n")  # a lone carriage return is held back until its other half could have come
    assert split(cut(data, places)) == split([data] if data else [])


@given(st.binary(max_size=300))
def test_noise_is_never_more_than_a_decoding_error(data):
    for event in split([data]):
        with suppress(msgspec.DecodeError):
            decode_chunk(event)


def test_a_byte_order_mark_is_no_part_of_the_first_event():
    assert split([b"\xef\xbb\xbfdata: {}\n\n"]) == [b"{}"]


def test_a_long_event_in_many_pieces_is_read_in_time():
    pieces = [b"data: "] + [b"x" * 1000] * 5000 + [b"\n", b"\n"]
    began = time.process_time()
    assert [len(event) for event in split(pieces)] == [5_000_000]
    assert time.process_time() - began < 2, "joining it anew for each piece takes minutes"


def test_an_endless_event_is_refused():
    with pytest.raises(OversizedEvent):
        split([b"x" * (1 << 20)] * (2 + MAX_EVENT_BYTES // (1 << 20)))


@pytest.mark.parametrize(
    ("chunk", "output"),
    [
        (b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}', False),
        (b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": null}}]}', False),
        (b'{"choices": [{"delta": {"content": "a"}}]}', True),
        (b'{"choices": [{"delta": {"reasoning_content": "a"}}]}', True),
        (b'{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}', True),
        (b'{"choices": [{"delta": {"tool_calls": []}}]}', False),
        (b'{"choices": [{"text": "a"}]}', True),
        (b'{"choices": [{"text": "", "token_ids": [3]}]}', True),
        (b'{"choices": [{"text": "", "finish_reason": "length"}]}', False),
        (b'{"choices": [], "usage": {"prompt_tokens": 3}, "timings": {"prompt_ms": 4.0}}', False),
    ],
)
def test_what_counts_as_output(chunk, output):
    assert any(choice.has_output for choice in decode_chunk(chunk).choices) is output


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no\\n room", "code": 3}}', "no room"),
        (b'{"message": "gone"}', "gone"),
        (b'{"error": "flat"}', "flat"),
        (b"<html>busy", "<html>busy"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_error_bodies_become_one_line(body, message):
    assert error_message(body) == message
