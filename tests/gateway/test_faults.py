"""The engine is killed, stopped, or cannot start: clients are told, and the gateway recovers by itself."""

import asyncio
import os
import signal
import threading
import time

import openai
import psutil
import pytest
from servers import NAME, Server, running

pytestmark = pytest.mark.model
STREAMS = 16
# From the loss of the engine to readiness, less the time that the model takes to load.
RECOVERY_SECONDS = 15


@pytest.fixture(scope="module")
def mortal(smollm2, tmp_path_factory):
    began = time.monotonic()
    with running(smollm2, tmp_path_factory.mktemp("mortal"), "--kv-memory", "64MiB", "--max-running", "16") as server:
        server.load_seconds = time.monotonic() - began
        yield server


async def _streams(server, at_tokens, strike):
    """Start streams, strike when all have begun, and return how each ended and how long after the strike."""
    begun, ends = asyncio.Semaphore(0), []
    async with server.async_client() as client:

        async def one(i):
            try:
                stream = await client.completions.create(
                    model=NAME,
                    prompt=[1000 + i] * 4,
                    max_tokens=1000,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                seen = 0
                async for _ in stream:
                    seen += 1
                    if seen == at_tokens:
                        begun.release()
                ends.append("ended")
            except openai.APIError as error:
                ends.append((type(error), error.code, time.monotonic()))

        tasks = [asyncio.create_task(one(i)) for i in range(STREAMS)]
        for _ in range(STREAMS):
            await asyncio.wait_for(begun.acquire(), 120)
        struck = time.monotonic()
        strike()
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        return [(kind, code, at - struck) for kind, code, at in ends]


def _recovers(server, struck):
    ready = server.wait(server.is_ready, RECOVERY_SECONDS + server.load_seconds)
    assert time.monotonic() - struck < RECOVERY_SECONDS + server.load_seconds
    answer = server.client().completions.create(model=NAME, prompt="Once", max_tokens=2)
    assert answer.usage.completion_tokens == 2
    server.assert_comes_to_rest()
    return ready


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_get_an_error_event_and_the_engine_comes_back(mortal, sig):
    restarts = mortal.metrics()["headrace_engine_restarts_total"]
    replica, gateway = mortal.replica(), mortal.process.pid
    struck = []

    def strike():
        struck.append(time.monotonic())
        replica.send_signal(sig)

    unready = threading.Event()

    def watch():
        while not unready.is_set():
            if mortal.http.get("/ready").status_code == 503:
                unready.set()
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    ends = asyncio.run(_streams(mortal, 3, strike))
    watcher.join(20)
    assert unready.is_set()
    assert len(ends) == STREAMS
    for kind, code, seconds in ends:
        assert kind is openai.APIError  # an event in the stream, not a broken connection
        assert code == "engine_unavailable"
        assert seconds < 10
    _recovers(mortal, struck[0])
    assert mortal.process.pid == gateway
    assert not replica.is_running() or replica.status() == psutil.STATUS_ZOMBIE
    values = mortal.metrics()
    assert values["headrace_engine_restarts_total"] == restarts + 1
    assert values["headrace_engine_up"] == 1


def test_kill_during_whole_answers_while_loading_and_twice_in_a_row(mortal):
    outcomes = []

    def ask():
        try:
            mortal.client().completions.create(
                model=NAME, prompt="Once", max_tokens=1000, extra_body={"ignore_eos": True}, timeout=60
            )
        except openai.InternalServerError as error:
            outcomes.append((error.status_code, error.code, error.response.headers["retry-after"]))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    mortal.wait(lambda: mortal.metrics()["headrace_requests_running"] == 3)
    struck = time.monotonic()
    mortal.replica().kill()
    for thread in threads:
        thread.join(10)
    assert outcomes == [(503, "engine_unavailable", "5")] * 3

    # While it is away requests are told so, and open routes answer.
    assert not mortal.is_ready()
    with pytest.raises(openai.InternalServerError) as caught:
        mortal.client().completions.create(model=NAME, prompt="Once", max_tokens=1)
    assert caught.value.status_code == 503
    assert mortal.http.get("/health").status_code == 200
    assert mortal.http.get("/v1/models").status_code == 200
    assert mortal.http.get("/debug/state").status_code == 503
    assert mortal.metrics()["headrace_engine_up"] == 0

    mortal.wait(mortal.has_replica)
    time.sleep(0.3)
    mortal.replica().kill()  # it is loading
    _recovers(mortal, struck)


@pytest.mark.parametrize("flags", [("--kv-memory", "100kB")])
def test_an_engine_that_cannot_start_ends_the_server_with_a_reason(smollm2, tmp_path, flags):
    with running(smollm2, tmp_path, *flags, ready=False) as server:
        assert server.process.wait(30) == 1
        last = server.log.read_text().splitlines()[-1]
    assert last.startswith("error: ")
    assert "KV memory" in last
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("damage", ["truncated", "not a model"])
def test_a_corrupt_file_ends_the_server_with_a_reason(smollm2, tmp_path, damage):
    file = tmp_path / "model.gguf"
    data = smollm2.read_bytes()
    file.write_bytes(data[: len(data) // 2] if damage == "truncated" else b"#!/bin/sh\n" * 100)
    with running(file, tmp_path, ready=False) as server:
        assert server.process.wait(30) == 1
        text = server.log.read_text()
    assert text.startswith("error: ")
    assert "model.gguf" in text
    assert "Traceback" not in text


def test_an_address_in_use_ends_the_server_with_a_reason(mortal, smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr("servers.free_port", lambda: mortal.port)
    with running(smollm2, tmp_path, "--kv-memory", "16MiB", "--context-length", "64", ready=False) as server:
        assert server.process.wait(30) == 1
        assert "--port" in server.log.read_text().splitlines()[-1]


def test_no_engine_outlives_a_gateway_killed_while_it_loads(smollm2, tmp_path):
    server = Server(smollm2, tmp_path, "--kv-memory", "16MiB", "--context-length", "64")
    try:
        server.wait(server.has_replica)
        assert_dies_with_its_gateway(server)
    finally:
        server.close()


def test_no_engine_outlives_a_killed_gateway(mortal):
    """The last test of this file: the server does not come back."""
    mortal.wait_ready()
    assert_dies_with_its_gateway(mortal)


def assert_dies_with_its_gateway(server):
    replica = server.replica()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(5)
    assert psutil.wait_procs([replica], timeout=5)[1] == []
