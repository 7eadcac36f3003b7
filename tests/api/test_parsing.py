"""Bytes to requests: the table of bad bodies, what must be accepted, and fuzzing (only ``ApiError`` may escape)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import string
import sys
import threading
from pathlib import Path
from typing import get_type_hints

import agent_cases
import pytest
from anthropic.types import MessageCountTokensParams, OutputConfigParam, ToolParam
from anthropic.types import message_create_params as message_params
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import EmbeddingCreateParams
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import FunctionToolParam
from openai.types.responses import response_create_params as response_params
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.shared_params import Reasoning as ReasoningParam

from headrace.api import parsing
from headrace.api.anthropic.request import (
    AnthropicTool,
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
)
from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.api.embeddings import EmbeddingRequest
from headrace.api.errors import ApiError
from headrace.api.messages import AssistantMessage
from headrace.api.responses.request import InputTokensRequest, ReasoningConfig, ResponsesRequest, ResponseTool


def _load_cases():
    spec = importlib.util.spec_from_file_location("api_cases", Path(__file__).with_name("cases.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


cases = _load_cases()
PARSERS = {
    cases.CHAT: parsing.parse_chat,
    cases.TEXT: parsing.parse_completion,
    cases.EMBED: parsing.parse_embedding,
    cases.TOKENIZE: parsing.parse_tokenize,
    cases.DETOKENIZE: parsing.parse_detokenize,
    agent_cases.RESPONSES: parsing.parse_response,
    agent_cases.INPUT_TOKENS: parsing.parse_input_tokens,
    agent_cases.MESSAGES: parsing.parse_messages,
    agent_cases.COUNT: parsing.parse_count_tokens,
}
LOCAL = [case for case in cases.CASES if not case.needs_server]


def test_the_table_is_long_and_its_names_are_unique():
    assert len(LOCAL) >= 60
    names = [case.name for case in cases.CASES + cases.ACCEPTED]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", LOCAL, ids=lambda case: case.name)
def test_bad_body_is_refused_with_its_field_named(case):
    with pytest.raises(ApiError) as caught:
        PARSERS[case.path](case.body)
    error = caught.value
    assert error.status in case.status
    assert error.param == case.param, error.message
    if case.code:
        assert error.code == case.code
    body = json.loads(error.body())
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert 0 < len(body["error"]["message"]) <= 600


@pytest.mark.parametrize(
    "case", [case for case in cases.CASES if case.needs_server and case.code != "invalid"], ids=lambda case: case.name
)
def test_what_only_a_server_can_judge_is_well_formed(case):
    if case.method == "POST" and case.path in PARSERS and case.status != (415,):
        PARSERS[case.path](case.body)


@pytest.mark.parametrize("case", cases.ACCEPTED, ids=lambda case: case.name)
def test_odd_body_is_accepted(case):
    PARSERS[case.path](case.body)


OFFICIAL = [
    (chat_params.CompletionCreateParamsBase, ChatRequest),
    (text_params.CompletionCreateParamsBase, CompletionRequest),
    (EmbeddingCreateParams, EmbeddingRequest),
    (response_params.ResponseCreateParamsBase, ResponsesRequest),
    (InputTokenCountParams, InputTokensRequest),
    (message_params.MessageCreateParamsBase, MessagesRequest),
    (MessageCountTokensParams, CountTokensRequest),
    (ReasoningParam, ReasoningConfig),
    (FunctionToolParam, ResponseTool),
    (ToolParam, AnthropicTool),
    (OutputConfigParam, OutputConfig),
]


@pytest.mark.parametrize(("params", "kind"), OFFICIAL)
def test_every_field_of_the_official_clients_is_known(params, kind):
    names = set(get_type_hints(params))
    if params.__name__.startswith(("CompletionCreate", "ResponseCreate", "MessageCreate")):
        names.add("stream")
    assert names - set(kind.__struct_encode_fields__) == set()


REQUIRED = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionRequest: {"model": "m", "prompt": "a"},
    EmbeddingRequest: {"model": "m", "input": "a"},
    ResponsesRequest: {"model": "m", "input": "a"},
    InputTokensRequest: {"input": "a"},
    MessagesRequest: {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
    CountTokensRequest: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
}


@pytest.mark.parametrize("kind", REQUIRED)
def test_every_optional_field_takes_null(kind):
    required = REQUIRED[kind]
    nulls = {name: None for name in kind.__struct_fields__ if name not in required}
    request = parsing.parse(json.dumps({**required, **nulls}).encode(), kind).request
    assert request == parsing.parse(json.dumps(required).encode(), kind).request


def test_sampling_arguments_of_a_chat():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "a"}],
        "temperature": 0,
        "stop": "x",
        "logit_bias": {"5": 1, "0": -1.5},
        "stop_token_ids": [3],
        "max_completion_tokens": 7,
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 1,
    }
    assert parsing.parse_chat(json.dumps(body).encode()).request.sampling() == {
        "temperature": 0.0,
        "stop": ("x",),
        "logit_bias": {5: 1.0, 0: -1.5},
        "stop_token_ids": (3,),
        "max_tokens": 7,
        "logprobs": 2,
        "seed": 1,
    }


def test_sampling_arguments_of_a_completion():
    def sampling(**fields):
        return parsing.parse_completion(json.dumps({"model": "m", "prompt": "a", **fields}).encode()).request.sampling()

    assert sampling() == {"max_tokens": 16}
    assert sampling(min_tokens=40) == {"max_tokens": 40, "min_tokens": 40}
    assert sampling(logprobs=0, echo=True) == {"max_tokens": 16, "logprobs": 0, "prompt_logprobs": 0}
    assert sampling(logprobs=3, max_tokens=1) == {"max_tokens": 1, "logprobs": 3}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_prompts_one_by_one(prompt, prompts):
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    assert [prompt for _, prompt in parsing.parse_completion(body).request.prompts()] == prompts


def test_messages_for_a_template():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "Ann"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
                {"id": "2", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]
    request = parsing.parse_chat(json.dumps({"model": "m", "messages": messages}).encode()).request
    plain = request.template_messages()
    assert plain[0] == {"role": "system", "content": "a\nb"}
    assert plain[1] == {"role": "user", "content": "c", "name": "Ann"}
    assert plain[2]["content"] == ""
    assert plain[2]["tool_calls"][0] == {
        "id": "1",
        "type": "function",
        "function": {"name": "f", "arguments": {"x": 1}},
    }
    assert plain[2]["tool_calls"][1]["function"]["arguments"] == "[" * 100_000
    assert plain[3] == {"role": "tool", "tool_call_id": "1", "content": "4"}
    assert request.template_messages(developer_as="developer")[0]["role"] == "developer"
    assert isinstance(request.messages[2], AssistantMessage)


def test_lenient_ignores_unknown_fields_and_says_so():
    body = {"model": "m", "messages": [{"role": "user", "content": "a", "x\r\né": 1}], "max_token": 3, "n": 2}
    parsed = parsing.parse_chat(json.dumps(body).encode(), lenient=True)
    assert parsed.request.n == 2
    assert len(parsed.warnings) == 2
    assert any("max_token" in warning and "max_tokens" in warning for warning in parsed.warnings)
    assert all(" " <= c <= "~" for warning in parsed.warnings for c in warning)
    assert parsing.warning_header(parsed.warnings) == " ".join(parsed.warnings)
    assert parsing.warning_header(parsing.parse_completion(b'{"model": "m", "prompt": "a"}').warnings) is None


@pytest.mark.parametrize(
    ("prompt", "accepted"), [([1.0, 2], True), ([[3.0]], True), ([1.5], False), ([-1.0], False), ([1e300], False)]
)
def test_a_number_without_fraction_is_an_integer(prompt, accepted):
    body = json.dumps({"model": "m", "prompt": prompt, "n": 2.0, "temperature": 1.0}).encode()
    if not accepted:
        with pytest.raises(ApiError, match="prompt"):
            parsing.parse_completion(body)
        return
    request = parsing.parse_completion(body).request
    ids = prompt[0] if isinstance(prompt[0], list) else prompt
    assert [given for _, given in request.prompts()] == [[int(t) for t in ids]]
    assert type(request.n) is int
    assert type(request.temperature) is float


def test_ids_to_be_embedded_may_be_written_as_whole_fractions():
    body = json.dumps({"model": "m", "input": [[1.0, 2], [3.0]]}).encode()
    assert parsing.parse_embedding(body).request.inputs() == [("input[0]", [1, 2]), ("input[1]", [3])]


def test_template_variables_keep_their_fractions():
    body = (
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "n": 1.0, "chat_template_kwargs": {"a": [1.0]}}'
    )
    request = parsing.parse_chat(body).request
    assert type(request.chat_template_kwargs["a"][0]) is float


def test_lenient_has_limits():
    body = {"model": "m", "prompt": "a", **{f"x{i}": 0 for i in range(100)}}
    with pytest.raises(ApiError, match="Unknown field"):
        parsing.parse_completion(json.dumps(body).encode(), lenient=True)
    for tail in ('"n": 0, "x": 1', '"x": 1, "n": 0', '"x": 1e999', '"x": 1, "temperature": 1e999', '"x": NaN'):
        with pytest.raises(ApiError):
            parsing.parse_completion(f'{{"model": "m", "prompt": "a", {tail}}}'.encode(), lenient=True)


def test_a_deep_stack_does_not_let_recursion_errors_out():
    outcome = []

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
            return
        with pytest.raises(ApiError):
            parsing.parse_chat(b'{"model": "m", "messages": [], "chat_template_kwargs": {"a": ' + b"[" * 5000)
        outcome.append(True)

    thread = threading.Thread(target=descend, args=(700,))
    thread.start()
    thread.join()
    assert outcome


KEYS = st.text(max_size=4) | st.sampled_from(["role", "content", "type", "text", "input", "output", "call_id"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.sampled_from(["user", "assistant", "text", "function", "json_object", "5", ""])
    | st.sampled_from(["message", "input_text", "function_call", "tool_use", "tool_result", "image", "any", "enabled"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
REQUESTS = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
NAMES = sorted({"tokens", "return_token_strs", *(name for kind in REQUESTS for name in kind.__struct_fields__)})
VALID = [case.body for case in cases.ACCEPTED]


def _survives(body: bytes) -> None:
    for parser in PARSERS.values():
        for lenient in (False, True):
            with contextlib.suppress(ApiError):
                parser(body, lenient=lenient)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64) | st.text(string.printable, max_size=32).map(str.encode))
def test_any_bytes(body):
    _survives(body)


@settings(max_examples=300, deadline=None)
@given(VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_any_json(value):
    _survives(json.dumps(value).encode())


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(VALID), st.sampled_from(NAMES), VALUES, st.data())
def test_valid_requests_with_one_part_replaced(body, name, value, data):
    tree = json.loads(body.removeprefix(b"\xef\xbb\xbf"))
    node = tree
    while data.draw(st.booleans()):
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        inner = [(key, child) for key, child in items if isinstance(child, dict | list) and child]
        if not inner:
            break
        name, child = data.draw(st.sampled_from(inner))
        if data.draw(st.booleans()):
            break
        node = child
    if isinstance(node, dict):
        node[name] = value
    elif node:
        node[data.draw(st.integers(0, len(node) - 1))] = value
    _survives(json.dumps(tree).encode())


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_valid_requests_with_bytes_damaged(body, data):
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"[", b"}", b"\\ud800", b"1e999"])
        )
        if not damaged:
            break
    _survives(bytes(damaged))
