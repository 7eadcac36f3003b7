"""An OpenAI-compatible server that computes nothing and answers exactly as a script says.

    python scripted_server.py PORT SCRIPT [CERTIFICATE]   SCRIPT is JSON: the fields of ``service_law.Script``

A token is a word with the space before it. ``GET /log`` gives, request by request, when it came and when its events
were sent, in seconds of the machine's monotonic clock.
"""

import asyncio
import heapq
import json
import ssl
import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from service_law import Law, Script

from headrace.bench.load.timer import timer

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

    def __init__(self):
        self.heap, self.count, self.timer = [], 0, timer(self.run)

    def at(self, moment, call, *args):
        self.count += 1
        heapq.heappush(self.heap, (moment, self.count, call, args))
        if self.heap[0][1] == self.count:
            self.timer.set(moment)

    def run(self):
        while self.heap and self.heap[0][0] <= time.monotonic():
            _, _, call, args = heapq.heappop(self.heap)
            call(*args)
        if self.heap:
            self.timer.set(self.heap[0][0])


class State:
    def __init__(self, script):
        self.script, self.agenda = script, Agenda()
        self.pieces = {(chat, ids): piece(chat, ids) for chat in (True, False) for ids in (True, False)}
        self.reset()

    def reset(self):
        self.law, self.zero, self.log = Law(self.script), None, []


def piece(chat, with_ids):
    choice = {"index": 0, "delta": {"content": " word"}} if chat else {"index": 0, "text": " word"}
    if with_ids:
        choice["token_ids"] = tokens_of("word")
    return event({"choices": [{**choice, "finish_reason": None}], "model": "scripted"})


class Connection(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, state):
        import httptools

        self.state, self.parser, self.answers = state, httptools.HttpRequestParser(self), 0
        self.used = False

    def connection_made(self, transport):
        self.transport = transport

    def write(self, data):
        if not self.transport.is_closing():  # the client may have gone
            self.transport.write(data)

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
        now, state = time.monotonic(), self.state
        if state.script.drop_reused and self.used:
            self.transport.close()
            return
        self.used = True
        match self.path:
            case "/v1/models":
                self.write(answer({"data": [{"id": "scripted", "max_model_len": 100_000}]}))
            case "/tokenize" if state.script.tokenizes:
                self.write(answer({"tokens": tokens_of(json.loads(self.body)["prompt"])}))
            case "/log":
                self.write(answer({"zero": state.zero, "requests": state.log}))
            case "/reset":
                state.reset()
                self.write(answer({}))
            case "/v1/completions" | "/v1/chat/completions":
                self.serve(json.loads(self.body), now)
            case _:
                self.write(answer({"error": "there is no such thing"}, b"404 Not Found"))

    def refusal(self, body):
        refused = [name for name in self.state.script.refuses if name in body]
        if isinstance(body.get("prompt"), list) and not self.state.script.ids:
            refused.append("prompt")
        return refused[0] if refused else None

    def serve(self, body, now):
        state, script = self.state, self.state.script
        if (refused := self.refusal(body)) is not None:
            self.write(answer({"error": {"message": f"{refused} is not taken"}}, b"400 Bad Request"))
            return
        chat = "messages" in body
        prompt = body["messages"] if chat else body["prompt"]
        said = " ".join(message["content"] for message in prompt) if chat else prompt
        prompt_tokens = len(said) if isinstance(said, list) else len(tokens_of(said)) + script.overhead
        shape = chat, script.returns_ids and bool(body.get("return_token_ids"))
        tail = self.tail(chat, prompt_tokens, body["max_tokens"], timings=body.get("timings", False))
        if self.id == "probe":
            self.write(HEAD + state.pieces[shape] + tail(0.0))
            return
        state.zero = now if state.zero is None else state.zero
        arrival, (kind, after) = now - state.zero, script.fault(len(state.log))
        start, moments = state.law.admit(arrival, body["max_tokens"])
        entry = {"id": self.id, "received": arrival, "start": start, "events": moments, "kind": kind}
        state.log.append(entry | ({"prompt": prompt} if script.record else {}))
        last = (self.fail, kind) if kind else (self.finish, state.pieces[shape] + tail(start - arrival))
        shown = moments[:after] if kind else moments[:-1]
        head = HEAD if shown or kind != "http" else b""
        for moment in shown:
            state.agenda.at(state.zero + moment, self.write, head + state.pieces[shape])
            head = b""
        ends = (shown[-1] if shown else start) if kind else moments[-1]
        state.agenda.at(state.zero + ends, *last, head)

    def tail(self, chat, prompt_tokens, tokens, *, timings):
        """The end of an answer, as a function of the seconds in the queue."""

        def write(queue):
            choice = {"index": 0, "delta": {}} if chat else {"index": 0, "text": ""}
            end = event({"choices": [{**choice, "finish_reason": "length"}]})
            if self.state.script.usage:
                details = {"cached_tokens": self.state.script.cached}
                usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "prompt_tokens_details": details}
                end += event({"choices": [], "usage": usage} | ({"timings": {"queue": queue}} if timings else {}))
            return end + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

        return write

    def finish(self, rest, head):
        self.write(head + rest)
        self.answers += self.id != "probe"
        if self.answers == self.state.script.close_after:
            self.state.agenda.at(time.monotonic() + 0.02, self.transport.close)

    def fail(self, kind, head):
        match kind:
            case "http":
                self.write(answer({"error": {"message": "too much"}}, b"429 Too Many Requests"))
            case "event":
                broken = event({"error": {"message": "the engine failed", "code": 500}})
                self.write(head + broken + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            case "disconnect":
                self.transport.abort()
            case "truncate":
                self.write(head + b"0\r\n\r\n")
            case "noise":
                self.write(head + chunk(b"data: {not json\n\n"))
            case "no http":
                self.write(b"SSH-2.0-scripted\r\n")
            case "hang":
                self.write(head)
            case "old":
                self.write(b"HTTP/1.0 503 Busy\r\n\r\nall busy")
                self.transport.close()
            case "upgrade":
                self.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
            case "deep":
                self.write(head + chunk(b'data: {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"))
            case "strange":
                usage = {"prompt_tokens": 1 << 70, "completion_tokens": -5}
                odd = {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": usage, "timings": {"queue": -1}}
                self.write(head + event(odd) + b"0\r\n\r\n")


async def main(port, script, certificate=None):
    loop = asyncio.get_running_loop()
    tls = None
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    state = State(Script(**script))
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=4096, ssl=tls)
    sys.stderr.write("listening\n")
    sys.stderr.flush()
    await server.serve_forever()


@contextmanager
def scripted(script, certificate=None):
    """The server as a process of its own, with TLS if it gets a certificate; gives its address."""
    import subprocess

    from servers import free_port

    port = free_port()
    command = [sys.executable, __file__, str(port), json.dumps(script.as_dict())]
    if certificate is not None:
        command.append(str(certificate))
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        assert process.stderr.readline() == b"listening\n"
        yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


if __name__ == "__main__":
    import resource

    import uvloop

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    uvloop.run(main(int(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:]))
