"""Keys, the queue's bound, CORS, and the end of a server."""

import json
import os
import signal
import threading
import time

import httpx
import openai
import pytest
from servers import NAME, Server, sse

pytestmark = pytest.mark.model
ASK = {"model": NAME, "prompt": "Once", "max_tokens": 2}


# --- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["from-flag", "from-file", "ключ"])
def test_keys_open(small, key):
    headers = {"Authorization": f"Bearer {key}".encode()}
    assert small.http.post("/v1/completions", json=ASK, headers=headers).status_code == 200
    headers = {"Authorization": f"bEARER   {key}".encode()}
    assert small.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer wrong", "Basic from-flag", "from-flag", "Bearer from-flag2", "Bearer \xff"]
)
def test_other_keys_do_not(small, value):
    answer = httpx.get(f"{small.url}/v1/models", headers={"Authorization": value.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_all_but_the_open_routes_are_protected(small):
    document = small.http.get("/openapi.json").json()
    paths = [(method, path) for path, item in document["paths"].items() for method in item]
    assert len(paths) > 9
    with httpx.Client(base_url=small.url) as stranger:
        for method, path in [*paths, ("get", "/nothing"), ("get", "/v1/models/"), ("options", "/v1/models")]:
            answer = stranger.request(method, path.replace("{model}", NAME))
            is_open = path in ("/health", "/ready", "/metrics", "/openapi.json", "/docs", "/")
            assert answer.status_code == (200 if is_open else 401), path


def test_the_official_client_shows_its_key(small):
    assert small.client(api_key="from-file").models.list().data[0].id == NAME
    with pytest.raises(openai.AuthenticationError):
        small.client(api_key="wrong").models.list()


# --- the queue ----------------------------------------------------------------------------------------------------


def test_full_queue_is_a_429_and_the_official_client_waits(small):
    """Two run, nobody may wait."""
    client = small.client(api_key="from-flag")
    body = {"model": NAME, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    streams = [client.completions.create(prompt=[40 + i], stream=True, **body) for i in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(prompt="c", **body)
    assert caught.value.code == "queue_full"
    assert caught.value.type == "rate_limit_error"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.RateLimitError):
        client.completions.create(prompt="c", stream=True, **body)

    for stream in streams:
        threading.Thread(target=list, args=(stream,)).start()
    patient = small.client(api_key="from-flag", max_retries=5)
    assert patient.completions.create(prompt="c", model=NAME, max_tokens=1).usage.completion_tokens == 1
    small.assert_comes_to_rest()


def test_a_request_larger_than_the_queue_is_served_alone(small):
    small.assert_comes_to_rest()
    answer = small.http.post("/v1/completions", json={**ASK, "n": 5})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 5


def test_refused_requests_cost_no_place(small):
    for _ in range(5):
        small.http.post("/v1/completions", json={**ASK, "max_tokens": 1000})
        small.http.post("/v1/completions", json={**ASK, "temperature": 7})
    assert small.state()["state"]["admitted"] == 0


# --- CORS ---------------------------------------------------------------------------------------------------------


def test_cors(server, small):
    page = {"Origin": "https://page.example"}
    ask = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = server.http.options("/v1/chat/completions", headers=ask)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["x-request-id"]

    for answer in (
        server.http.post("/v1/completions", json=ASK, headers=page),
        server.http.post("/v1/completions", json={}, headers=page),
        server.http.get("/nothing", headers=page),
    ):
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    stranger = {"Origin": "https://other.example"}
    assert "access-control-allow-origin" not in server.http.get("/health", headers=stranger).headers
    assert server.http.options("/v1/models", headers={**ask, **stranger}).status_code == 400
    assert "access-control-allow-origin" not in small.http.get("/health", headers=page).headers


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ending(smollm2, tmp_path):
    servers = []

    def start(*flags):
        servers.append(Server(smollm2, tmp_path, "--kv-memory", "32MiB", *flags))
        return servers[0].wait_ready()

    yield start
    for server in servers:
        server.close()


def read_later(server, **options):
    """A stream that a thread reads; returns (thread, events), with the first event there."""
    events, began = [], threading.Event()

    def read():
        body = {**ASK, "stream": True, "ignore_eos": True, **options}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            for event in sse(answer.iter_lines()):
                events.append(event)
                began.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(20)
    return thread, events


def test_sigterm_lets_streams_finish(ending):
    server = ending()
    keep = httpx.Client(base_url=server.url)
    assert keep.get("/ready").status_code == 200
    thread, events = read_later(server, max_tokens=20)
    replica = server.replica()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/ready")  # nobody listens for new connections
    thread.join(30)
    assert events[-1] == "[DONE]"
    assert sum(bool(e["choices"]) for e in events[:-1]) == 20
    assert server.process.wait(10) == 0
    assert not replica.is_running()


def test_requests_that_outlast_the_drain_are_told(ending):
    server = ending("--drain-timeout", "1")
    thread, events = read_later(server, max_tokens=600)
    outcome = []
    whole = threading.Thread(
        target=lambda: outcome.append(
            httpx.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 600, "ignore_eos": True}, timeout=60)
        )
    )
    whole.start()
    server.wait(lambda: server.metrics()["headrace_requests_running"] == 2)
    began = time.monotonic()
    assert server.end() == 0
    assert time.monotonic() - began < 6
    thread.join(5)
    whole.join(5)
    assert events[-1]["error"]["code"] == "engine_unavailable"
    assert "shutting down" in events[-1]["error"]["message"]
    assert outcome[0].status_code == 503


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(ending, second):
    server = ending()
    thread, events = read_later(server, max_tokens=600)
    replica = server.replica()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    began = time.monotonic()
    server.end(second)
    assert time.monotonic() - began < 3
    thread.join(5)
    assert events[-1] != "[DONE]"
    assert not replica.is_running()


def test_sigterm_while_loading(smollm2, tmp_path):
    server = Server(smollm2, tmp_path, "--kv-memory", "32MiB")
    try:
        server.wait(server.has_replica)
        began = time.monotonic()
        assert server.end() == 0
        assert time.monotonic() - began < 3
    finally:
        server.close()


def test_sigterm_while_draining_says_unready(ending):
    """A connection that is kept busy while the server drains still gets an honest answer."""
    server = ending()
    ask = json.dumps({**ASK, "max_tokens": 30, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(head % len(ask) + ask + b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        server.wait(lambda: server.metrics()["headrace_requests_running"] == 1)
        os.kill(server.process.pid, signal.SIGTERM)
        received = b""
        while chunk := s.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1 or b"HTTP/1.1 503" in received
    assert server.process.wait(10) == 0
