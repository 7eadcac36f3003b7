"""Malformed and hostile requests over HTTP: each is refused in OpenAI's shape, and the server goes on."""

import importlib.util
import json
import socket
import sys
import time
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from servers import NAME, raw

from headrace.api.openapi import openapi_document
from headrace.api.schemas import Served

pytestmark = pytest.mark.model

# The table of the parser's tests; its folder is no package, and its name must not clash with ours.
_spec = importlib.util.spec_from_file_location("api_cases", Path(__file__).parents[1] / "api" / "cases.py")
cases = importlib.util.module_from_spec(_spec)
sys.modules["api_cases"] = cases
_spec.loader.exec_module(cases)


def send(server, case):
    headers = {"Content-Type": "application/json"} if case.method == "POST" else {}
    body = case.body.replace(b"MODEL", NAME.encode()) if len(case.body) < 1_000_000 else case.body
    return server.http.request(case.method, case.path, content=body, headers={**headers, **case.headers})


def assert_error(answer, status, param=None, code=None):
    assert answer.status_code in status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    assert error["param"] == param
    assert code is None or error["code"] == code


def assert_serves(server):
    answer = server.http.post("/v1/completions", json={"model": NAME, "prompt": "Hi", "max_tokens": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_is_refused(server, case):
    assert_error(send(server, case), case.status, case.param, case.code)
    assert server.http.get("/ready").status_code == 200


@pytest.mark.parametrize("case", cases.ACCEPTED, ids=lambda case: case.name)
def test_is_served(server, case):
    answer = send(server, case)
    assert answer.status_code == 200, answer.text


def test_the_server_still_serves(server):
    """Runs after the tables above."""
    assert_serves(server)
    server.assert_comes_to_rest()


# --- transport ----------------------------------------------------------------------------------------------------

CHAT = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SIZED = HEAD + b"Content-Length: %d\r\n\r\n" % len(CHAT)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\nnonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS hello
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n" + CHAT,
        HEAD + b"Content-Length: many\r\n\r\n" + CHAT,
        HEAD + b"Content-Length: 10\r\nContent-Length: 11\r\n\r\n" + CHAT,
        HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\n" + CHAT,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + CHAT,
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHAT,
    ],
)
def test_malformed_http_is_a_400(server, data):
    answer = raw(server, data, seconds=3)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4"), answer
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert b"x-request-id:" in head.lower()
    assert server.is_ready()


def test_endless_headers_are_refused(server):
    for data in (
        b"GET /health HTTP/1.1\r\n" + b"".join(b"A%d: %s\r\n" % (i, b"b" * 100) for i in range(5000)),
        b"GET /health HTTP/1.1\r\nA: " + b"b" * 500_000,
        b"GET /" + b"a" * 500_000,
    ):
        answer = raw(server, data, seconds=3)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431"), answer[:200]
        assert server.is_ready()
    assert raw(server, b"GET /health HTTP/1.1\r\nA: " + b"b" * 70_000, seconds=3).startswith(b"HTTP/1.1 431")


def test_long_path_is_not_found(server):
    assert_error(server.http.get("/" + "a" * 20_000), (404,))


@pytest.mark.parametrize("half_close", [False, True])
def test_unfinished_requests_hold_nobody_up(server, half_close):
    for data in (b"POST /v1/chat", HEAD, SIZED, SIZED + CHAT[:-5], HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        raw(server, data, seconds=0.2, half_close=half_close)
    assert server.is_ready()
    server.assert_comes_to_rest()


def test_body_in_pieces_is_served(server):
    def pieces():
        for i in range(0, len(CHAT), 7):
            yield CHAT[i : i + 7]

    answer = server.http.post("/v1/chat/completions", content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text


def test_body_longer_than_declared_spoils_only_its_connection(server):
    answer = raw(server, HEAD + b"Content-Length: 5\r\n\r\n" + CHAT, seconds=3)
    assert answer.startswith(b"HTTP/1.1 400")
    assert server.is_ready()


def test_pipelined_requests_are_answered_in_order_and_garbage_after_them_hurts_nobody(server):
    ask = b"GET /v1/models/%s HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = raw(server, ask % NAME.encode() + ask % b"b" + SIZED + CHAT + b"garbage\r\n\r\n", seconds=3)
    assert answer.index(b"HTTP/1.1 200") < answer.index(b"HTTP/1.1 404")
    assert server.is_ready()
    server.assert_comes_to_rest()


def test_a_head_behind_a_large_body_is_not_taken_for_a_large_head(server):
    body = json.dumps({"model": NAME, "prompt": "Hi", "max_tokens": 1}).encode() + b" " * 300_000
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    one, last = head.encode() + b"\r\n" + body, head.encode() + b"Connection: close\r\n\r\n" + body
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
            s.sendall(one + last[:30])
            time.sleep(0.2)
            s.sendall(last[30:])
            answers = b"".join(iter(lambda s=s: s.recv(65536), b""))
        assert answers.count(b"HTTP/1.1 200 OK") == 2


def test_large_body_with_expect_is_refused_before_it_is_sent(server):
    head = HEAD + b"Content-Length: 50000000\r\nExpect: 100-continue\r\n\r\n"
    answer = raw(server, head, seconds=0.5)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


def test_get_routes_take_head(server):
    for path in ("/health", "/ready", "/metrics", "/v1/models"):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


# --- context ------------------------------------------------------------------------------------------------------


def test_context_minus_one_is_served_and_context_is_refused(small):
    def ask(length, **options):
        return small.http.post("/v1/completions", json={"model": NAME, "prompt": [28] * length, **options})

    for options in ({}, {"max_tokens": 1}, {"max_tokens": 1, "stream": True}):
        answer = ask(63, **options)
        assert answer.status_code == 200, answer.text
        if not options.get("stream"):
            assert answer.json()["usage"]["completion_tokens"] == 1
            assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert_error(ask(64), (400,), "prompt", "context_length_exceeded")
    assert_error(ask(64, max_tokens=1), (400,), "prompt", "context_length_exceeded")
    assert_error(ask(63, max_tokens=2), (400,), "max_tokens", "context_length_exceeded")
    assert_error(ask(10, max_tokens=55), (400,), "max_tokens", "context_length_exceeded")
    assert_error(ask(10, min_tokens=55), (400,), "min_tokens", "context_length_exceeded")
    assert ask(10, max_tokens=54, stop_token_ids=list(range(49152))[:500]).status_code == 200


def test_a_prompt_as_long_as_the_context_is_embedded(small):
    def ask(length):
        return small.http.post("/v1/embeddings", json={"model": NAME, "input": [[28] * length]})

    assert ask(64).json()["usage"] == {"prompt_tokens": 64, "total_tokens": 64}
    assert_error(ask(65), (400,), "input[0]", "context_length_exceeded")


def test_default_length_of_a_completion_yields_to_the_context(small):
    answer = small.http.post("/v1/completions", json={"model": NAME, "prompt": [28] * 60, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_body_limit(small):
    body = json.dumps({"model": NAME, "prompt": "a" * 99_000}).encode()
    answer = small.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert_error(answer, (400,), "prompt", "context_length_exceeded")
    answer = small.http.post(
        "/v1/completions", content=body + b" " * 2000, headers={"Content-Type": "application/json"}
    )
    assert_error(answer, (413,), None, "request_too_large")


# --- schemathesis -------------------------------------------------------------------------------------------------

SERVED = Served(models=(NAME,), vocab_size=49152, context_length=64, hidden_size=576, auth=True)
schema = schemathesis.openapi.from_dict(openapi_document(SERVED))
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def test_the_published_schema_is_the_one_tested_here(small):
    assert small.http.get("/openapi.json").json() == json.loads(json.dumps(openapi_document(SERVED)))


def tame(case):
    """Keep the work of a valid body small; what is wrong in it stays wrong."""
    body = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("n"), int | float) and 1 < body["n"] <= 128:
        body["n"] = 1
        body.pop("best_of", None)
    for name in ("prompt", "input"):
        if case.path in ("/v1/completions", "/v1/embeddings") and isinstance(body.get(name), list):
            del body[name][2:]
    lengths = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}
    if case.path in lengths and all(
        body.get(name) is None for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
    ):
        body[lengths[case.path]] = 2
    given = body.get("max_tokens")
    if case.path == "/v1/messages" and type(given) is int and 2 < given < 2**31:
        body["max_tokens"] = 2


# What no schema knows: how many tokens a text has, what is stored, what this model's template can be told, and the
# rules between fields of which the parser's tests take care.
UNKNOWABLE = (
    "context_length_exceeded",
    "item_not_found",
    "previous_response_not_found",
    "request_too_large",
    "unreadable_reasoning",
    "unsupported_schema",
)
BETWEEN_FIELDS = (
    "reasoning",
    "reasoning_effort",
    "thinking",
    "output_config",
    "output_format",
    "tool_choice",
    "regex",
    "choice",
    "grammar",
    "min_tokens",
    "ignore_eos",
)
SAID_OF_OTHERS = ("Two tools", "Only text can be continued", "The last message is the assistant's")


def unsayable(body):
    """Whether a body breaks what JSON Schema cannot express."""
    numbers = body if isinstance(body, dict) else {}
    low = numbers.get("min_tokens")
    highs = (numbers.get("max_tokens"), numbers.get("max_completion_tokens"))
    return isinstance(low, int | float) and any(isinstance(high, int | float) and low > high for high in highs)


def is_known_to_no_schema(answer):
    if answer.status_code not in (400, 413):
        return False
    error = answer.json()["error"]
    root = (error["param"] or "").split(".")[0]
    return error["code"] in UNKNOWABLE or root in BETWEEN_FIELDS or error["message"].startswith(SAID_OF_OTHERS)


def check_against_schema(server, case):
    assume(not unsayable(case.body))
    tame(case)
    answer = case.call(base_url=server.url, headers={"Authorization": "Bearer from-flag"})
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "deadline_unmet"  # as it may be, for the body says by when
        return
    assert answer.status_code < 500, answer.text
    if not is_known_to_no_schema(answer):
        case.validate_response(answer)


@schema.parametrize()
@settings(max_examples=6, deadline=None, suppress_health_check=QUIET)
def test_schema(small, case):
    check_against_schema(small, case)


@pytest.mark.bars
@schema.parametrize()
@settings(max_examples=150, deadline=None, suppress_health_check=QUIET)
def test_schema_at_length(small, case):
    check_against_schema(small, case)
