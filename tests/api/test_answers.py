"""Answers and errors through the official client's own types, which nobody here wrote."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.pagination import SyncPage
from openai.types import Completion as OpenAICompletion
from openai.types import Model as OpenAIModel
from openai.types.chat import ChatCompletion as OpenAIChat
from openai.types.chat import ChatCompletionChunk as OpenAIChunk

from headrace.api import errors, sse
from headrace.api.answers import encode, new_id, timings, unix_time, usage
from headrace.api.chat_answers import AnswerMessage, ChatChoice, ChatCompletion, ChatCompletionChunk, ChunkChoice, Delta
from headrace.api.completion_answers import Completion, CompletionChoice
from headrace.api.logprobs import ChatLogprobs, completion_logprobs, token_logprob, top_logprob
from headrace.api.server_answers import DebugAnswer, Model, ModelList, Status
from headrace.errors import InvalidInput

TOP = [top_logprob("a", -0.5, b"a"), top_logprob("<eos>", -1.5, None)]
LOGPROBS = ChatLogprobs([token_logprob("a", -0.5, b"a", TOP)])


def chat_answer(**extra) -> ChatCompletion:
    choice = ChatChoice(
        index=0,
        message=AnswerMessage(content="aé\u2028"),
        logprobs=LOGPROBS,
        finish_reason="stop",
        stop_reason="\n",
        token_ids=[5],
    )
    return ChatCompletion(
        id=new_id("chatcmpl"),
        created=unix_time(),
        model="m",
        choices=[choice],
        usage=usage(10, 2, 8),
        **extra,
    )


def test_chat_completion_in_the_official_types():
    stamps = {"received": 100.0, "tokenized": 100.25, "first_token": 101.0, "last_token": 102.0}
    durations = timings({"time_to_first_token": 1.0, "end_to_end": 2.0}, stamps)
    parsed = OpenAIChat.model_validate_json(encode(chat_answer(timings=durations, prompt_token_ids=[1, 2])))
    assert parsed.choices[0].message.content == "aé\u2028"
    assert parsed.choices[0].message.role == "assistant"
    assert parsed.choices[0].finish_reason == "stop"
    assert parsed.choices[0].logprobs.content[0].top_logprobs[1].bytes is None
    assert parsed.choices[0].logprobs.content[0].bytes == [97]
    assert parsed.usage.total_tokens == 12
    assert parsed.usage.prompt_tokens_details.cached_tokens == 8
    assert parsed.choices[0].model_extra == {"stop_reason": "\n", "token_ids": [5]}
    assert parsed.model_extra["prompt_token_ids"] == [1, 2]
    assert parsed.model_extra["timings"]["time_to_first_token"] == 1.0
    assert parsed.model_extra["timings"]["stamps"]["tokenized"] == 0.25
    assert parsed.model_extra["timings"]["stamps"]["routed"] is None


def test_extensions_are_absent_unless_asked_for():
    choice = ChatChoice(index=0, message=AnswerMessage(content="a"), finish_reason="length")
    answer = ChatCompletion(id="x", created=1, model="m", choices=[choice], usage=usage(1, 1))
    plain = json.loads(encode(answer))
    known = set(OpenAIChat.model_fields)
    assert set(plain) <= known
    assert set(plain["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "a", "refusal": None}


def chunk(**fields) -> ChatCompletionChunk:
    return ChatCompletionChunk(id="x", created=1, model="m", **fields)


def test_chat_chunks_in_the_official_types():
    first = chunk(choices=[ChunkChoice(index=0, delta=Delta("assistant", ""))], usage=None)
    text = chunk(choices=[ChunkChoice(index=0, delta=Delta(content="a"), logprobs=LOGPROBS)])
    last = chunk(choices=[ChunkChoice(index=0, delta=Delta(), finish_reason="length")])
    counts = chunk(choices=[], usage=usage(3, 4))
    parsed = [OpenAIChunk.model_validate_json(encode(one)) for one in (first, text, last, counts)]
    assert (parsed[0].choices[0].delta.role, parsed[0].choices[0].delta.content) == ("assistant", "")
    assert json.loads(encode(first))["usage"] is None
    assert "usage" not in json.loads(encode(text))
    assert parsed[1].choices[0].delta.content == "a"
    assert parsed[1].choices[0].logprobs.content[0].token == "a"
    assert json.loads(encode(last))["choices"][0]["delta"] == {}
    assert parsed[2].choices[0].finish_reason == "length"
    assert parsed[3].choices == []
    assert parsed[3].usage.completion_tokens == 4


def test_completions_in_the_official_types():
    logprobs = completion_logprobs(
        ["Hé", "llo", "llo"],
        [None, -1.0, -math.inf],
        [None, [("llo", -1.0), ("x", -2.0), ("llo", -3.0)], []],
        [4, 6, 9],
    )
    assert logprobs.text_offset == [4, 6, 9]
    assert logprobs.token_logprobs == [None, -1.0, -9999.0]
    assert logprobs.top_logprobs == [None, {"llo": -1.0, "x": -2.0}, {}]
    generated = completion_logprobs(["a"], [-1.0], [[("a", -1.0)]], [0])
    choices = [CompletionChoice(index=i, text="a", logprobs=generated, finish_reason="stop") for i in (0, 1)]
    answer = Completion(id="x", created=1, model="m", choices=choices, usage=usage(1, 2))
    parsed = OpenAICompletion.model_validate_json(encode(answer))
    assert [choice.index for choice in parsed.choices] == [0, 1]
    assert parsed.choices[0].logprobs.top_logprobs == [{"a": -1.0}]


def test_models_in_the_official_types():
    model = Model(id="m", created=1, max_model_len=8192)
    listed = ModelList(data=[model])
    parsed = SyncPage[OpenAIModel].model_validate_json(encode(listed))
    assert parsed.data[0].id == "m"
    assert parsed.data[0].owned_by == "headrace"


@given(st.text())
def test_an_event_is_one_line_of_data(text):
    event = sse.event(chunk(choices=[ChunkChoice(index=0, delta=Delta(content=text))]))
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert b"\n" not in event[:-2]
    assert b"\r" not in event
    parsed = OpenAIChunk.model_validate_json(event[6:])
    assert parsed.choices[0].delta.content == text


@given(st.text(st.characters(exclude_categories=())), st.none() | st.text(st.characters(exclude_categories=())))
def test_error_bodies_hold_any_text(message, param):
    error = errors.bad_request(message, param=param)
    detail = json.loads(error.body())["error"]
    assert len(detail["message"]) <= 600
    assert json.loads(sse.error_event(error).removeprefix(b"data: "))["error"] == detail


def test_errors_have_their_status_and_headers():
    wait = errors.overloaded(0.2)
    assert (wait.status, wait.headers) == (429, {"Retry-After": "1"})
    assert errors.unavailable("Loading.", retry_after_s=2.5).headers == {"Retry-After": "3"}
    assert errors.unauthorized().headers == {"WWW-Authenticate": "Bearer"}
    assert errors.method_not_allowed("GET", "/x", ["POST", "HEAD"]).headers == {"Allow": "HEAD, POST"}
    refused = errors.from_invalid_input(InvalidInput("is out of range", field="logit_bias.9", code="out_of_vocabulary"))
    assert (refused.status, refused.param, refused.code) == (400, "logit_bias.9", "out_of_vocabulary")
    assert refused.message == "logit_bias.9: is out of range"
    assert errors.from_invalid_input(InvalidInput("no")).param is None


@pytest.mark.parametrize("answer", [Status(), DebugAnswer(state={"slots": 1}, problems=["x"])])
def test_other_answers_are_json(answer):
    assert isinstance(msgspec.json.decode(encode(answer)), dict)
