"""A tiny model, the command line in this process, and a server that says what it is told to."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tiny_folder import save_tiny
from typer.testing import CliRunner

from headrace.cli.app import app


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a small random model."""
    return str(save_tiny(tmp_path_factory.mktemp("tiny"))[0])


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run ``headrace`` with arguments, in this process, with an empty cache."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)

    def invoke(*args, stdin=None):
        return CliRunner().invoke(app, [str(a) for a in args], input=stdin, catch_exceptions=False)

    return invoke


@dataclass
class FakeServer:
    """Answers chat completions with the pieces in ``pieces``, and remembers what it was asked."""

    url: str = ""
    pieces: list = field(default_factory=lambda: ["Hel", "lo", " wörld"])
    models: list = field(default_factory=lambda: ["first", "second"])
    tail: list = field(default_factory=lambda: ["[DONE]"])
    refuse: tuple | None = None
    requests: list = field(default_factory=list)
    headers: list = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def _send(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        fake = self.server.fake
        fake.headers.append(dict(self.headers))
        if fake.refuse:
            return self._send(*fake.refuse)
        return self._send(200, {"data": [{"id": name} for name in fake.models]})

    def do_POST(self):
        fake = self.server.fake
        fake.headers.append(dict(self.headers))
        fake.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if fake.refuse:
            return self._send(*fake.refuse)
        events = [json.dumps({"choices": [{"delta": {"role": "assistant"}}]}), ": a comment"]
        events += [json.dumps({"choices": [{"delta": {"content": piece}}]}) for piece in fake.pieces]
        lines = [e if e.startswith(":") else f"data: {e}" for e in [*events, *fake.tail]]
        return self._send(200, "".join(f"{line}\n\n" for line in lines).encode(), "text/event-stream")


@pytest.fixture
def fake():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.fake = FakeServer(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.fake
    server.shutdown()
    server.server_close()
