"""Server-sent events (WHATWG HTML, section 9.2).

Streams of completions are data lines, then ``[DONE]``. Those of the Responses and Messages APIs name each event.
"""

from __future__ import annotations

from headrace.api.answers import encode
from headrace.api.anthropic.errors import AnthropicError
from headrace.api.anthropic.events import MessageEvent
from headrace.api.chat_answers import ChatCompletionChunk
from headrace.api.completion_answers import Completion
from headrace.api.errors import ApiError
from headrace.api.responses.events import StreamEvent

CONTENT_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"Content-Type": CONTENT_TYPE, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def event(chunk: ChatCompletionChunk | Completion) -> bytes:
    """One chunk as an event. JSON escapes line breaks, so that one data line always holds it."""
    return b"data: " + encode(chunk) + b"\n\n"


def named_event(record: StreamEvent | MessageEvent | AnthropicError) -> bytes:
    """One record as an event that bears the name of its type."""
    name = str(record.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + encode(record) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """An error after the headers are out: the official client raises ``APIError`` for it. End the stream after it."""
    return b"data: " + error.body() + b"\n\n"
