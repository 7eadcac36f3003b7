"""What a server is and takes: found out by asking it, before any load."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import httpx
import msgspec
import numpy as np

from headrace.bench.load.events import DONE, EventSplitter, OversizedEvent, decode_chunk, error_message
from headrace.bench.load.exchange import known
from headrace.bench.load.http import Address
from headrace.bench.results.samples import UNKNOWN
from headrace.bench.results.schema import Target
from headrace.bench.workload.prompts import Lexicon, ids, text
from headrace.errors import HeadraceError

PROBE_TOKENS = 8
PROBE_SECONDS = 120.0
NOT_OFFERED = (400, 404, 405, 415, 422, 501)  # by these a server says that it has no such thing, or no such field
# Templates strip a message's spaces, and a word without its space may be another number of tokens: this goes first.
CHAT_HEAD = "Words:"

MOST_IDS = 1 << 31
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)  # of what a server says
T = TypeVar("T")
Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server and how to ask it.

    Attributes:
        target: What the result file tells of it.
        address: Where it listens.
        headers: Sent with every request.
        extra_body: Fields added to every request.
        ignores_eos: Whether it takes ``ignore_eos``, so that answers have the length asked for.
        returns_ids: Whether it tells the token ids of an answer when asked.
        counts_by_ids: It tells no ``usage``: the answer's tokens are counted by their ids.
        tells_timings: Whether it tells the time in its queue when asked.
        overhead: Tokens that it adds to a prompt, such as a template's.
    """

    target: Target
    address: Address
    headers: dict[str, str]
    extra_body: dict[str, Any]
    ignores_eos: bool
    returns_ids: bool
    counts_by_ids: bool
    tells_timings: bool
    overhead: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How to ask, as the user wants it.

    Attributes:
        api: Endpoint.
        prompts: As token ids, as text, or whichever the server takes, ids first.
        ignore_eos: Ask for answers of exactly the length wanted.
        model: Name to ask for; None takes the first that the server lists.
        headers: Added to every request.
        extra_body: Fields added to every request.
    """

    api: Api = "completions"
    prompts: Literal["auto", "tokens", "text"] = "auto"
    ignore_eos: bool = True
    model: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}


class Model(msgspec.Struct, frozen=True):
    """The model to ask for, what it holds at most (None: not told), and what its server calls itself."""

    name: str
    context_length: int | None
    server: str | None


class Reply(msgspec.Struct, frozen=True):
    """What a small request brought: its refusal, or what it tells."""

    refused: str | None = None
    status: int = 200
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tells_ids: bool = False
    tells_queue: bool = False


class Inquirer:
    """Asks a server about itself, over ordinary HTTP.

    Args:
        url: Its address, with or without ``/v1``.
        headers: Sent with every request.

    Raises:
        InvalidInput: The address is none.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.address = Address(url)
        self._http = httpx.Client(
            base_url=self.address.url,
            headers={**headers, "X-Request-Id": "probe", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(PROBE_SECONDS, connect=5),
            # As the load itself goes: no proxies, the system's certificates.
            trust_env=False,
            verify=ssl.create_default_context(),
        )
        # What goes with a prompt to be tokenized; nothing stands for llama.cpp's form.
        self._forms: tuple[dict[str, Any], ...] = ({"add_special_tokens": False}, {})

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def model(self, name: str | None) -> Model:
        """What it tells of a model, by default the first that it lists.

        A name that it does not list is taken as it is: not every server lists all.

        Raises:
            HeadraceError: It does not answer, or is no OpenAI-compatible server.
        """
        response = self._ask("GET", "/v1/models")
        calls_itself = response.headers.get("server")
        try:
            entries = [] if response.is_error else [dict(entry) for entry in response.json()["data"]]
        except UNREADABLE:
            raise HeadraceError(f"what answers at {self.address.url} is no OpenAI-compatible server") from None
        if name is not None:
            listed = next((entry for entry in entries if entry.get("id") == name), {})
            return Model(name, _context_length(listed), calls_itself)
        if response.is_error:
            raise HeadraceError(f"{self.address.url}/v1/models answers {response.status_code}: {_says(response)}")
        first = entries[0] if entries else {}
        if not isinstance(first.get("id"), str) or not first["id"].isprintable() or not first["id"]:
            raise HeadraceError(f"{self.address.url} lists no model that can be named; name it with --model")
        return Model(first["id"], _context_length(first), calls_itself)

    def tokenize(self, content: str, model: str) -> list[int]:
        """Token ids of a text, without special tokens, as vLLM's, headrace's or llama.cpp's ``/tokenize`` tells them.

        Raises:
            HeadraceError: It has no such endpoint, or refuses.
        """
        for form in self._forms:
            body = {"model": model, **({"prompt": content, **form} if form else {"content": content})}
            response = self._ask("POST", "/tokenize", body)
            if response.is_error and response.status_code not in NOT_OFFERED:
                raise HeadraceError(f"{self.address.url}/tokenize answers {response.status_code}: {_says(response)}")
            try:
                tokens = [] if response.is_error else [int(token) for token in response.json()["tokens"]]
            except UNREADABLE:
                tokens = []
            if any(not 0 <= token < MOST_IDS for token in tokens):
                raise HeadraceError(f"{self.address.url}/tokenize tells token ids that cannot be")
            if tokens:
                self._forms = (form,)
                return tokens
        said = f"{response.status_code}: {_says(response)}"
        raise HeadraceError(
            f"{self.address.url}/tokenize does not tell the tokens of a text ({said}); "
            "name the model's files with --tokenizer"
        )

    def try_request(self, api: Api, body: dict[str, Any]) -> Reply:
        """One small streamed request.

        Raises:
            HeadraceError: It does not answer, or not with a stream.
        """

        def ask() -> Reply:
            with self._http.stream("POST", PATHS[api], json=body) as response:
                if response.is_redirect:
                    where = response.headers.get("location", "nowhere")
                    return Reply(refused=f"{response.status_code}, see {where}", status=response.status_code)
                if response.is_error:
                    response.read()
                    return Reply(refused=f"{response.status_code}: {_says(response)}", status=response.status_code)
                return _read(response)

        return self._reached(ask)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return self._reached(lambda: self._http.request(method, path, json=body))

    def _reached(self, ask: Callable[[], T]) -> T:
        """What a call brings. Servers close a kept-alive connection as they like, so one that is lost is tried anew."""
        try:
            try:
                return ask()
            except httpx.RemoteProtocolError:
                return ask()
        except httpx.RequestError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> HeadraceError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return HeadraceError(f"no server answers at {self.address.url}: {error or type(error).__name__}")
        return HeadraceError(f"{self.address.url} does not answer as it should: {error or type(error).__name__}")


def inquire(inquirer: Inquirer, question: Question, model: Model, lexicon: Lexicon) -> Server:
    """Find out how the server can be asked.

    The first combination that it takes is used: token ids before text, ``ignore_eos`` before none.

    Raises:
        HeadraceError: It takes none of them, or tells no token counts.
    """
    refusals: list[str] = []
    for prompts, ignores in _combinations(question):
        body = _probe(question, lexicon, model.name, prompts, ignores=ignores)
        reply = inquirer.try_request(question.api, body)
        if reply.refused is None:
            more = inquirer.try_request(question.api, {**body, "return_token_ids": True, "timings": True})
            target = Target(
                url=inquirer.address.url,
                model=model.name,
                api=question.api,
                prompts=prompts,
                server=model.server,
                context_length=model.context_length,
            )
            return _server(inquirer.address, question, target, reply, ignores=ignores, more=more)
        refusals.append(reply.refused)
        if reply.status not in (*NOT_OFFERED, 500) or reply.status == 404:  # no other form would change this
            break
    raise HeadraceError(f"{inquirer.address.url}{PATHS[question.api]} refuses: {refusals[0]}")


def _server(
    address: Address, question: Question, target: Target, reply: Reply, *, ignores: bool, more: Reply
) -> Server:
    by_ids = reply.output_tokens is None
    if by_ids and not more.tells_ids:
        raise HeadraceError(
            f"{address.url} tells neither usage in its stream (stream_options.include_usage) nor token ids "
            "(return_token_ids), and tokens cannot be counted by chunks"
        )
    notes = []
    if reply.prompt_tokens is not None and reply.prompt_tokens < PROBE_TOKENS:
        notes.append(f"The server counts {reply.prompt_tokens} tokens in a prompt of {PROBE_TOKENS}.")
    if question.prompts == "auto" and target.prompts == "text" and question.api == "completions":
        notes.append("The server takes no token ids as prompt; text of as many tokens is sent.")
    if question.ignore_eos and not ignores:
        notes.append("The server takes no ignore_eos; answers may be shorter than asked for.")
    return Server(
        target=msgspec.structs.replace(target, notes=notes),
        address=address,
        headers=question.headers,
        extra_body=question.extra_body,
        ignores_eos=ignores,
        returns_ids=more.tells_ids,
        counts_by_ids=by_ids,
        tells_timings=more.tells_queue,
        overhead=0 if reply.prompt_tokens is None else max(reply.prompt_tokens - PROBE_TOKENS, 0),
    )


def _combinations(question: Question) -> Iterator[tuple[Literal["tokens", "text"], bool]]:
    for ignores in (True, False) if question.ignore_eos else (False,):
        if question.api == "completions" and question.prompts != "text":
            yield "tokens", ignores
        if question.api == "chat" or question.prompts != "tokens":
            yield "text", ignores


def _probe(question: Question, lexicon: Lexicon, model: str, prompts: str, *, ignores: bool) -> dict[str, Any]:
    words = np.arange(PROBE_TOKENS) % len(lexicon.ids)
    body: dict[str, Any] = {"model": model, "max_tokens": 2, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if question.api == "chat":
        body["messages"] = [{"role": "user", "content": CHAT_HEAD + text(lexicon, words, begins=False)}]
    else:
        body["prompt"] = ids(lexicon, words).tolist() if prompts == "tokens" else text(lexicon, words)
    if ignores:
        body["ignore_eos"] = True
    return {**body, **question.extra_body}


def _read(response: httpx.Response) -> Reply:
    """What a stream tells of itself."""
    splitter = EventSplitter()
    prompt_tokens = output_tokens = UNKNOWN
    tells_ids = tells_queue = False
    chunks = 0
    try:
        for data in response.iter_bytes():
            for event in splitter.feed(data):
                if event == DONE:
                    continue
                chunk = decode_chunk(event)
                chunks += 1
                if chunk.failed:
                    return Reply(refused=error_message(bytes(chunk.error)), status=500)
                tells_ids = tells_ids or any(choice.token_ids for choice in chunk.choices or ())
                tells_queue = tells_queue or (chunk.timings is not None and chunk.timings.queue is not None)
                if (usage := chunk.usage) is not None:
                    prompt_tokens = known(usage.prompt_tokens, prompt_tokens)
                    output_tokens = known(usage.completion_tokens, output_tokens)
    except (msgspec.DecodeError, OversizedEvent, RecursionError) as error:
        return Reply(refused=f"its stream is not in OpenAI's form: {error}")
    if not chunks:
        kind = response.headers.get("content-type", "nothing")
        return Reply(refused=f"{response.status_code} with {kind}, where a stream of events was asked for")
    return Reply(
        prompt_tokens=None if prompt_tokens == UNKNOWN else prompt_tokens,
        output_tokens=None if output_tokens == UNKNOWN else output_tokens,
        tells_ids=tells_ids,
        tells_queue=tells_queue,
    )


def _context_length(entry: Mapping[str, Any]) -> int | None:
    """As headrace, vLLM and SGLang (``max_model_len``) or llama.cpp (``meta.n_ctx``) tell it."""
    meta = entry.get("meta")
    found = entry.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 1 else None


def _says(response: httpx.Response) -> str:
    return error_message(response.content) or response.reason_phrase
