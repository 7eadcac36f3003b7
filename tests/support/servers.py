"""Real servers for tests: `headrace serve` as a process of its own, with its log in a file."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

NAME = "smol"
READY_SECONDS = 90


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A running server.

    Attributes:
        url: Where it listens.
        process: The gateway.
        log: File of its standard error.

    Args:
        model: File of the model.
        folder: Where its log goes.
        flags: Further options.
        script: Run this in place of ``headrace serve``.
    """

    def __init__(self, model, folder, *flags, script=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"server-{self.port}.log"
        command = [sys.executable, "-m", "headrace.cli", "serve", str(model), "--port", str(self.port)]
        command += ["--threads", "1", "--name", NAME, "--debug", *flags]
        if script is not None:
            command = [sys.executable, str(script), str(self.port), str(model), *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.http = httpx.Client(base_url=self.url, timeout=60)

    # --- waiting and asking -------------------------------------------------------------------------------------

    def is_ready(self):
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self, seconds=READY_SECONDS):
        self.wait(self.is_ready, seconds)
        return self

    def wait(self, condition, seconds=30, pause=0.05):
        """Wait until ``condition()`` is true; returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, f"the server ended:\n{self.log.read_text()}"
            assert time.monotonic() - began < seconds, f"waited {seconds} s:\n{self.log.read_text()[-4000:]}"
            time.sleep(pause)
        return time.monotonic() - began

    def client(self, **options):
        return openai.OpenAI(**{"api_key": "none", "base_url": f"{self.url}/v1", "max_retries": 0, **options})

    def async_client(self, **options):
        return openai.AsyncOpenAI(**{"api_key": "none", "base_url": f"{self.url}/v1", "max_retries": 0, **options})

    def metrics(self):
        """Samples of /metrics: name, or (name, label value, ...), to value."""
        values = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                values[(sample.name, *sample.labels.values()) if sample.labels else sample.name] = sample.value
        return values

    def state(self, check=True):
        answer = self.http.get("/debug/state", params={"check": "1"} if check else {})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def is_idle(self):
        state = self.state()
        assert state["problems"] == []
        state = state["state"]
        return not any(state[what] for what in ("running", "waiting", "admitted", "transfers"))

    def assert_comes_to_rest(self, seconds=20):
        """Nothing runs, waits or holds a page any more, and the invariants hold."""
        self.wait(self.is_idle, seconds)
        values = self.metrics()
        names = ("headrace_requests_running", "headrace_requests_waiting", "headrace_kv_page_use_ratio")
        assert [values[name] for name in (*names, ("headrace_kv_pages", "used"))] == [0, 0, 0, 0]

    # --- processes ----------------------------------------------------------------------------------------------

    def replica(self):
        """The engine's process."""
        (child,) = self._replicas()
        return child

    def has_replica(self):
        return bool(self._replicas())

    def _replicas(self):
        living = [p for p in psutil.Process(self.process.pid).children() if p.status() != psutil.STATUS_ZOMBIE]
        return [p for p in living if {"headrace.fleet.replica", "--replica"} & set(p.cmdline())]

    def end(self, sig=signal.SIGTERM, seconds=30):
        """Signal the gateway and wait for its end; returns the exit status."""
        self.process.send_signal(sig)
        return self.process.wait(seconds)

    def close(self):
        self.http.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    child.kill()
                self.process.kill()
                self.process.wait()


@contextmanager
def running(model, folder, *flags, ready=True, script=None):
    """A server, until the block ends."""
    server = Server(model, folder, *flags, script=script)
    try:
        yield server.wait_ready() if ready else server
    finally:
        server.close()


def sse(lines):
    """The events of a stream of lines, decoded; ``[DONE]`` as it is."""
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def raw(server, data, *, seconds=10, half_close=False):
    """What comes back for bytes on a fresh connection, until the server closes it or falls silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as s:
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            received = b""
            while chunk := s.recv(65536):
                received += chunk
        except TimeoutError:
            pass
        except ConnectionError:
            pass
        return received


def assert_same_logprobs(parts, whole):
    """The log probabilities of a streamed completion, joined, are those of the whole one."""
    for name in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for part in parts for value in getattr(part, name)]
        assert joined == pytest.approx(getattr(whole, name), abs=1e-4), name
    tops = [top for part in parts for top in part.top_logprobs]
    assert len(tops) == len(whole.top_logprobs)
    for top, expected in zip(tops, whole.top_logprobs, strict=True):
        assert top == (None if expected is None else pytest.approx(expected, abs=1e-4))
