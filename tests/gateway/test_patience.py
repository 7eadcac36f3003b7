"""Time limits, and failures that a real engine does not show at will: a stub replica, a gateway of short patience."""

import json
import signal
import socket
import time
from pathlib import Path

import httpx
import openai
import pytest
from servers import NAME, raw, running, sse
from stub_server import ODD

pytestmark = pytest.mark.model
SCRIPT = Path(__file__).parents[1] / "support" / "stub_server.py"


@pytest.fixture(scope="module")
def stub(smollm2, tmp_path_factory):
    with running(smollm2, tmp_path_factory.mktemp("stub"), script=SCRIPT) as server:
        yield server


def body(kind=None, **fields):
    return {"model": NAME, "prompt": [28 if kind is None else ODD[kind]] * 4, "max_tokens": 4, **fields}


def stream(server, **fields):
    with server.http.stream("POST", "/v1/completions", json={**body(**fields), "stream": True}) as answer:
        return answer.status_code, list(answer.iter_lines())


def admitted(server):
    return server.state(check=False)["state"]["admitted"]


def test_plain(stub):
    answer = stub.http.post("/v1/completions", json=body(return_token_ids=True)).json()
    assert answer["choices"][0]["token_ids"] == [28] * 4


def test_slow_heads_are_cut_off(stub):
    began, connections = time.monotonic(), []
    for data in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost:"):
        connections.append(socket.create_connection(("127.0.0.1", stub.port), timeout=5))
        connections[-1].sendall(data)
    for connection in connections:
        with connection:
            assert connection.recv(100) == b""
            assert 0.5 < time.monotonic() - began < 3


def test_a_byte_at_a_time_is_cut_off(stub):
    with socket.create_connection(("127.0.0.1", stub.port), timeout=5) as s:
        began = time.monotonic()

        def trickle():
            for byte in b"GET /health HTTP/1.1\r\n" + b"a" * 1000:
                s.sendall(bytes([byte]))
                time.sleep(0.02)

        with pytest.raises(ConnectionError):
            trickle()
        assert time.monotonic() - began < 5


def test_a_slow_answer_is_not_a_slow_head(stub):
    answer = stub.http.post("/v1/completions", json=body("silent", max_tokens=150))  # longer than a head may take
    assert answer.json()["usage"]["completion_tokens"] == 150
    assert stub.http.get("/health").status_code == 200


def test_slow_bodies_get_a_408(stub):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for data in (head + b"Content-Length: 50\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"):
        began = time.monotonic()
        answer = raw(stub, data, seconds=5)
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
        assert time.monotonic() - began < 3


def begin_deaf(stub):
    """A stream whose client never reads."""
    data = json.dumps(body("large", max_tokens=4000, n=16, logprobs=5, stream=True)).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting, so that the window stays small
    s.connect(("127.0.0.1", stub.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    s.sendall(head.encode() + b"\r\n\r\n" + data)
    return s


def test_a_client_that_stalls_holds_up_nobody_and_is_cut_off(stub):
    with begin_deaf(stub):
        stub.wait(lambda: admitted(stub) == 16)
        gaps = []
        while admitted(stub):
            last = time.monotonic()
            for chunk in stub.client().completions.create(**body(max_tokens=50), stream=True):
                assert chunk.choices[0].text
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
        stub.wait(lambda: stub.metrics()["headrace_requests_running"] == 0)
    assert len(gaps) >= 50
    assert max(gaps) < 1


def test_silence_is_broken_by_comments(stub):
    status, lines = stream(stub, kind="silent")
    assert status == 200
    comments = [i for i, line in enumerate(lines) if line.startswith(":")]
    assert 3 <= len(comments) <= 6
    assert comments[-1] < min(i for i, line in enumerate(lines) if line.startswith("data:"))
    assert list(sse(lines))[-1] == "[DONE]"


def test_an_engine_error_fails_only_its_request(stub):
    client = stub.client()
    for kind in ("error", "refused"):
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(**body(kind))
        assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    with pytest.raises(openai.InternalServerError):
        list(client.completions.create(**body("refused"), stream=True))  # before the stream began: a status
    chunks = client.completions.create(**body("error"), stream=True)
    assert next(chunks).choices[0].text
    with pytest.raises(openai.APIError) as caught:
        next(chunks)
    assert caught.value.code == "internal_error"
    prompts = [[28, 28], [ODD["error"]], [28]]
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model=NAME, prompt=prompts, max_tokens=100)
    stub.wait(lambda: admitted(stub) == 0)
    assert stub.metrics()["headrace_samples_finished_total", "error"] == 5
    assert stub.http.post("/v1/completions", json=body()).status_code == 200


def test_a_bug_is_a_500_with_an_id_and_readable_by_pages(stub):
    answer = stub.http.get("/", headers={"X-Request-Id": "mine", "Origin": "https://page.example"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "a bug" not in answer.text
    stub.wait(lambda: "RuntimeError: a bug" in stub.log.read_text(), 5)
    for line in stub.log.read_text().splitlines():
        assert json.loads(line)["message"]


@pytest.mark.parametrize("kind", ["endless step", "noise"])
def test_a_replica_that_makes_no_sense_is_replaced(stub, kind):
    replica = stub.replica()
    restarts = stub.metrics()["headrace_engine_restarts_total"]
    _, lines = stream(stub, kind=kind, max_tokens=4000)
    assert "engine_unavailable" in lines[-1] or "engine_unavailable" in lines[-2]  # a whole answer, or an event
    stub.wait(lambda: stub.metrics()["headrace_engine_restarts_total"] == restarts + 1)
    stub.wait_ready()
    assert stub.replica().pid != replica.pid
    assert stub.http.post("/v1/completions", json=body()).status_code == 200


def test_a_gateway_that_was_held_up_keeps_its_engine(stub):
    """It heard nothing for longer than the engine may be silent; and what waited for it is sent as it came."""
    restarts = stub.metrics()["headrace_engine_restarts_total"]
    with stub.http.stream("POST", "/v1/completions", json=body(max_tokens=150, n=2, stream=True)) as answer:
        events = sse(answer.iter_lines())
        chunks = [next(events)]
        stub.process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        stub.process.send_signal(signal.SIGCONT)
        chunks += [event for event in events if event != "[DONE]"]
    assert stub.metrics()["headrace_engine_restarts_total"] == restarts
    for index in (0, 1):
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert reasons == [None] * 149 + ["length"]


def test_requests_that_meet_a_dying_engine_are_told_so(stub):
    """In the instants in which the engine is dead and the gateway does not know it yet."""
    data = json.dumps(body(stream=True)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    connections = [socket.create_connection(("127.0.0.1", stub.port), timeout=10) for _ in range(40)]
    restarts = stub.metrics()["headrace_engine_restarts_total"]
    stub.replica().kill()
    for connection in connections:
        time.sleep(0.004)
        connection.sendall(head.encode() + data)
    for connection in connections:
        with connection:
            answer = b"".join(iter(lambda c=connection: c.recv(65536), b""))
        assert b"engine_unavailable" in answer
    stub.wait(lambda: stub.metrics()["headrace_engine_restarts_total"] == restarts + 1)
    stub.wait_ready()
    assert admitted(stub) == 0
    assert stub.http.post("/v1/completions", json=body()).status_code == 200


def test_connections_are_kept_alive(stub):
    with httpx.Client(base_url=stub.url) as client:
        ports = set()
        for _ in range(3):
            with client.stream("GET", "/health") as answer:
                answer.read()
                ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
        assert len(ports) == 1
