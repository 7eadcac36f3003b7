"""Server-sent events and OpenAI's stream chunks, read with as little work a token as can be.

The format of a stream is that of the HTML standard, section 9.2 (server-sent events); of a field, only ``data``
matters here. A chunk is decoded into the few fields that are measured.
"""

from __future__ import annotations

import re

import msgspec

MAX_EVENT_BYTES = 8 << 20
DONE = b"[DONE]"
BOM = b"\xef\xbb\xbf"
NULL = msgspec.Raw(b"null")

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE = re.compile(rb"\r\n|\n|\r")


class OversizedEvent(ValueError):
    """An event is larger than ``MAX_EVENT_BYTES``."""


class EventSplitter:
    """Cuts a stream of bytes into the data of its events, however the bytes arrive."""

    __slots__ = ("_first", "_parts", "_size")

    def __init__(self) -> None:
        self._first = True
        self._parts: list[bytes] = []  # of an event that is not complete
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now, in order; events without data are left out.

        Args:
            data: The next bytes of the stream.

        Raises:
            OversizedEvent: The stream holds no end of an event for too long.
        """
        if self._first:
            data, self._first = data.removeprefix(BOM), False
        if self._parts:
            if b"\n" not in data and b"\r" not in data:  # a long event must not be joined anew for each piece
                self._hold(data)
                return []
            data = b"".join((*self._parts, data))
            self._parts, self._size = [], 0
        elif data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2 and b"\r" not in data:
            return [data[6:-2]]  # by far the most frequent: exactly one event of one line
        held = b"\r" if data.endswith(b"\r") else b""  # it may be half of a line break
        *events, rest = _END.split(data.removesuffix(held))
        self._hold(rest + held)
        return [found for event in events if (found := _data(event)) is not None]

    def _hold(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
        if self._size > MAX_EVENT_BYTES:
            raise OversizedEvent(f"an event of the stream is over {MAX_EVENT_BYTES >> 20} MiB")


def _data(event: bytes) -> bytes | None:
    """The joined ``data`` lines of an event, or None if it has none."""
    lines = [line for line in _LINE.split(event) if line.startswith(b"data:") or line == b"data"]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


class Delta(msgspec.Struct, gc=False):
    """What a chat chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = NULL


class Choice(msgspec.Struct, gc=False):
    """What a chunk says of an answer."""

    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def has_output(self) -> bool:
        """Whether the chunk carries something that the model wrote."""
        if self.text or self.token_ids:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning_content or delta.reasoning or _says_something(delta.tool_calls)
        )


def _says_something(value: msgspec.Raw) -> bool:
    return bytes(value) not in (b"null", b"[]")


class PromptTokensDetails(msgspec.Struct):
    """Of the prompt's tokens, those from the prefix cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class Timings(msgspec.Struct):
    """Headrace's own; other servers' ``timings`` have other fields, which are passed over."""

    queue: float | None = None


class Chunk(msgspec.Struct):
    """A chunk of a stream, of ``/v1/completions`` or ``/v1/chat/completions``."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: msgspec.Raw = NULL

    @property
    def failed(self) -> bool:
        """Whether it reports an error."""
        return _says_something(self.error)


decode_chunk = msgspec.json.Decoder(Chunk).decode


def error_message(body: bytes) -> str:
    """What an error body says, in one line of at most 300 characters."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = body.decode("utf-8", "replace")
    for key in ("error", "message"):
        if isinstance(value, dict):
            value = value.get(key, value)
    return " ".join(str(value).split())[:300]
