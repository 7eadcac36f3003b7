"""The end of a server: a drain that lets work finish, tells what it cuts off, and does not last for ever.

Most run in front of a stub replica, which starts at once.
"""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from servers import NAME, Server, sse

pytestmark = pytest.mark.model
SCRIPT = Path(__file__).parents[1] / "support" / "stub_server.py"
ASK = {"model": NAME, "prompt": [28], "max_tokens": 2, "ignore_eos": True}


@pytest.fixture
def ending(smollm2, tmp_path):
    servers = []

    def start(*flags, script=SCRIPT):
        servers.append(Server(smollm2, tmp_path, *flags, script=script))
        return servers[0].wait_ready()

    yield start
    for server in servers:
        server.close()


def read_later(server, **options):
    """A stream that a thread reads; returns (thread, events), with the first event there."""
    events, began = [], threading.Event()

    def read():
        body = {**ASK, "stream": True, **options}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
            for event in sse(answer.iter_lines()):
                events.append(event)
                began.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(20)
    return thread, events


def test_sigterm_lets_streams_finish(ending):
    server = ending("--kv-memory", "32MiB", script=None)
    keep = httpx.Client(base_url=server.url)
    assert keep.get("/ready").status_code == 200
    thread, events = read_later(server, max_tokens=12)
    replica = server.replica()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/ready")  # nobody listens for new connections
    thread.join(30)
    assert events[-1] == "[DONE]"
    assert sum(bool(e["choices"]) for e in events[:-1]) == 12
    assert server.process.wait(10) == 0
    assert not replica.is_running()


def test_requests_that_outlast_the_drain_are_told(ending):
    server = ending("0.1", "1")
    thread, events = read_later(server, max_tokens=600)
    outcome = []
    whole = threading.Thread(
        target=lambda: outcome.append(
            httpx.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 600}, timeout=60)
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
    server = ending("0.1")
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
    server = ending("0.1")
    ask = json.dumps({**ASK, "max_tokens": 15}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
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
