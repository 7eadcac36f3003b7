"""Clients that go away, never read, or read slowly: what they asked for is stopped, and nobody else notices."""

import asyncio
import json
import socket
import time

import httpx
import pytest
from servers import NAME, sse

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("at_rest")]
LONG = {"model": NAME, "prompt": [28] * 30, "max_tokens": 2000, "ignore_eos": True, "temperature": 0}


def begin(server, body, path="/v1/completions"):
    """Send a request and leave the connection open, unread."""
    data = json.dumps(body).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting, so that the window stays small
    s.connect(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    s.sendall(head.encode() + data)
    return s


def running(server):
    return len(server.state()["state"]["running"])


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_while_decoding(server, stream):
    aborted = server.metrics()["headrace_requests_aborted_total"]
    connection = begin(server, {**LONG, "stream": stream})
    server.wait(lambda: running(server) == 1)
    connection.close()
    server.assert_comes_to_rest(5)
    assert server.metrics()["headrace_requests_aborted_total"] == aborted + 1


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_during_a_long_prefill(server, stream):
    tokens = server.metrics()["headrace_generation_tokens_total"]
    connection = begin(server, {**LONG, "prompt": [29] * 4000, "max_tokens": 5, "stream": stream, "cache_salt": "a"})
    server.wait(lambda: running(server) == 1)
    connection.close()
    server.assert_comes_to_rest(10)
    assert server.metrics()["headrace_generation_tokens_total"] == tokens, "the prefill ran to its end"


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_while_queued(server, stream):
    crowd = begin(server, {**LONG, "n": 16})
    server.wait(lambda: running(server) == 16)
    queued = [begin(server, {**LONG, "prompt": [i] * 20, "stream": stream}) for i in range(5, 9)]
    server.wait(lambda: len(server.state()["state"]["waiting"]) == 4)
    for connection in queued:
        connection.close()
    server.wait(lambda: not server.state()["state"]["waiting"], 5)
    assert running(server) == 16
    assert server.state()["state"]["admitted"] == 16
    crowd.close()
    server.assert_comes_to_rest(5)


def test_mass_abort(server):
    aborted = server.metrics()["headrace_requests_aborted_total"]
    bodies = [{**LONG, "prompt": [100 + i] * (10 + 3 * i), "stream": i % 2 == 0} for i in range(64)]
    connections = [begin(server, body) for body in bodies]
    server.wait(lambda: server.state()["state"]["admitted"] == 64)
    for connection in connections:
        connection.close()
    server.assert_comes_to_rest(10)
    assert server.metrics()["headrace_requests_aborted_total"] == aborted + 64


def test_disconnect_before_the_request_is_whole(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    time.sleep(0.2)
    connection.close()
    server.wait(lambda: server.metrics()["headrace_http_requests_in_flight"] == 1, 5)  # which is the question itself


def test_sixty_four_streams(server):
    async def ask():
        async with httpx.AsyncClient(
            base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=64)
        ) as client:

            async def read(i):
                body = {**LONG, "prompt": [300 + i] * (1 + i % 20), "max_tokens": 2 + i % 3, "stream": True}
                body["return_token_ids"] = True
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    assert answer.status_code == 200
                    events = list(sse([line async for line in answer.aiter_lines()]))
                assert events[-1] == "[DONE]"
                return sum(len(event["choices"][0]["token_ids"]) for event in events[:-1])

            return await asyncio.gather(*[read(i) for i in range(64)])

    assert asyncio.run(ask()) == [2 + i % 3 for i in range(64)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_disconnect_while_a_grammar_waits_for_its_trial(server, path):
    slow = "start: T\nT: /([a-z ]*a[a-z ]{30}b)*/ & /([a-z ]*[a-m][a-z ]{31}c)*/ & ~/.*x.{17}y%d.*/\n"
    asked = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    gone = [begin(server, {"model": NAME, **asked, "grammar": slow % (n + 100 * len(path))}, path) for n in range(30)]
    time.sleep(0.5)
    for connection in gone:
        connection.close()
    # Each of the others would take two seconds.
    answer = server.http.post(path, json={"model": NAME, **asked, "choice": [path]}, timeout=30)
    assert answer.status_code == 200
