"""An OpenAI-compatible server that computes nothing and answers exactly as a script says.

    python scripted_server.py PORT SCRIPT   SCRIPT is JSON: the fields of ``service_law.Script``

A token is a word with the space before it. ``GET /log`` gives, request by request, when it came and when its events
were sent, in seconds of the machine's monotonic clock.
"""

import asyncio
import heapq
import json
import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from service_law import Law, Script

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nServer: scripted\r\nTransfer-Encoding: chunked\r\n\r\n"
VOCABULARY = 50_000


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def answer(value, status=b"200 OK"):
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nServer: scripted\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def tokens_of(text):
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


class Agenda:
    """Calls at moments of the monotonic clock, all from one timer."""

    def __init__(self, loop):
        self.loop, self.heap, self.timer, self.count = loop, [], None, 0

    def at(self, moment, call, *args):
        self.count += 1
        heapq.heappush(self.heap, (moment, self.count, call, args))
        if self.heap[0][1] == self.count:
            self.arm()

    def arm(self):
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(max(self.heap[0][0] - time.monotonic(), 0), self.run)

    def run(self):
        self.timer = None
        while self.heap and self.heap[0][0] <= time.monotonic():
            _, _, call, args = heapq.heappop(self.heap)
            call(*args)
        if self.heap:
            self.arm()


class State:
    def __init__(self, script, loop):
        self.script, self.law, self.agenda = script, Law(script), Agenda(loop)
        self.zero, self.log, self.hung = None, [], []
        self.chat = self.piece(True)
        self.completion = self.piece(False)

    def piece(self, chat, text=" word"):
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        return event({"choices": [{**choice, "finish_reason": None}], "model": "scripted"})


class Connection(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, state):
        import httptools

        self.state, self.parser = state, httptools.HttpRequestParser(self)

    def connection_made(self, transport):
        self.transport = transport
        self.path, self.body, self.id = "", b"", ""

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_url(self, url):
        self.path, self.body, self.id = url.decode(), b"", ""

    def on_header(self, name, value):
        if name.lower() == b"x-request-id":
            self.id = value.decode()

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        now = time.monotonic()
        if self.path == "/v1/models":
            self.transport.write(answer({"data": [{"id": "scripted", "max_model_len": 100_000}]}))
        elif self.path == "/tokenize":
            self.transport.write(answer({"tokens": tokens_of(json.loads(self.body)["prompt"])}))
        elif self.path == "/log":
            self.transport.write(answer({"zero": self.state.zero, "requests": self.state.log}))
        elif self.path == "/reset":
            script = self.state.script
            self.state.law, self.state.zero, self.state.log = Law(script), None, []
            self.transport.write(answer({}))
        else:
            self.serve(json.loads(self.body), now)

    def serve(self, body, now):
        state, script = self.state, self.state.script
        chat = self.path.endswith("/chat/completions")
        prompt = body["messages"] if chat else body["prompt"]
        if isinstance(prompt, list) and not chat and not script.ids:
            self.transport.write(answer({"error": {"message": "prompt must be a string"}}, b"400 Bad Request"))
            return
        probe = self.id.startswith("probe")
        i = len(state.log)
        if chat:
            prompt_tokens = sum(len(tokens_of(message["content"])) for message in prompt) + script.overhead
        else:
            prompt_tokens = len(prompt) if isinstance(prompt, list) else len(tokens_of(prompt)) + script.overhead
        tokens = body["max_tokens"]
        piece = state.chat if chat else state.completion
        if probe:
            self.finish(HEAD + piece, body, prompt_tokens, tokens, 0)
            return
        state.zero = now if state.zero is None else state.zero
        kind, after = script.fault(i)
        start, moments = state.law.admit(now - state.zero, tokens)
        state.log.append({"id": self.id, "received": now - state.zero, "start": start, "events": moments, "kind": kind})
        at = state.zero
        if kind is not None:
            moments = moments[:after]
        elif len(moments) > 1:
            moments, last = moments[:-1], moments[-1]
        else:
            moments, last = [], moments[0]
        first = HEAD
        for moment in moments:
            state.agenda.at(at + moment, self.transport.write, first + piece)
            first = b""
        queue = start - (now - state.zero)
        if kind is None:
            state.agenda.at(at + last, self.finish, first + piece, body, prompt_tokens, tokens, queue)
        else:
            state.agenda.at(at + (moments[-1] if moments else start), self.fail, kind)

    def finish(self, head, body, prompt_tokens, tokens, queue):
        chat = self.path.endswith("/chat/completions")
        choice = {"index": 0, "delta": {}} if chat else {"index": 0, "text": ""}
        end = event({"choices": [{**choice, "finish_reason": "length"}]})
        if self.state.script.usage:
            usage = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": self.state.script.cached},
            }
            end += event({"choices": [], "usage": usage, "timings": {"queue": queue}})
        self.transport.write(head + end + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def fail(self, kind):
        if kind == "http":
            self.transport.write(answer({"error": {"message": "too much"}}, b"429 Too Many Requests"))
        elif kind == "event":
            broken = event({"error": {"message": "the engine failed", "code": 500}})
            self.transport.write(broken + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        elif kind == "disconnect":
            self.transport.abort()
        elif kind == "truncate":
            self.transport.write(b"0\r\n\r\n")
        elif kind == "noise":
            self.transport.write(chunk(b"data: {not json\n\n"))
        elif kind == "hang":
            self.state.hung.append(self)


async def main(port, script):
    loop = asyncio.get_running_loop()
    state = State(Script(**script), loop)
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=4096)
    sys.stderr.write("listening\n")
    sys.stderr.flush()
    await server.serve_forever()


@contextmanager
def scripted(script, cpu=None):
    """The server as a process of its own; gives its address."""
    import subprocess

    from servers import free_port

    port = free_port()
    command = [sys.executable, __file__, str(port), json.dumps(script.as_dict())]
    if cpu is not None:
        command = ["taskset", "-c", str(cpu), *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr.readline() == b"listening\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


if __name__ == "__main__":
    import resource

    import uvloop

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    uvloop.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
