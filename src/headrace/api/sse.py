"""Server-sent events (WHATWG HTML, section 9.2), as OpenAI's streams use them: data lines only, then ``[DONE]``."""

from __future__ import annotations

from headrace.api.answers import ChatCompletionChunk, Completion, encode
from headrace.api.errors import ApiError

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(chunk: ChatCompletionChunk | Completion) -> bytes:
    """One chunk as an event. JSON escapes line breaks, so that one data line always holds it."""
    return b"data: " + encode(chunk) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """An error after the headers are out: the official client raises ``APIError`` for it. End the stream after it."""
    return b"data: " + error.body() + b"\n\n"
