"""Structured logs: one JSON object a line, or one readable line a record. Never any prompt text."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# For programs that follow a request through several services; they read JSON.
_TRACE = frozenset({"trace_id", "span_id", "parent_id"})


class JsonFormatter(logging.Formatter):
    """A record as a JSON object: time (UTC, ISO 8601), level, logger, message, and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """A record as ``time level message key=value …``, for people: without the ids of traces."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        extra = " ".join(
            f"{key}={value}" for key, value in _extra(record).items() if value is not None and key not in _TRACE
        )
        line = f"{_utc(record.created)} {record.levelname.lower():7} {record.getMessage()} {extra}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(style: str, level: str = "INFO") -> None:
    """Send all logs of this process to standard error in one style, a ``LogFormat``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # uvicorn says "startup complete" while the model is being loaded; the gateway has its own words.
    for name in ("httpx", "asyncio", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"
