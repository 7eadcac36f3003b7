"""How a trace is made to fit: its clock, its lengths, how much of it. And what its readers share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.bench.workload.records import Session, Workload
from headrace.errors import InvalidInput

MOST_TOKENS = 10_000_000
MOST_HASH = 1 << 62
MOST_TIME = 1e15  # milliseconds or seconds; the clock of the epoch fits
MOST_FACTOR = 1e6

TOO_LONG = "longer than the context"
AFTER_TOO_LONG = "in a session after a turn longer than the context"


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do to a trace.

    Attributes:
        scale: Factor of all times, arrivals and think times: 0.5 replays twice as fast.
        shrink: Divisor of all lengths, prompts, answers and blocks, at least 1: prefixes stay shared as they were.
        limit: Read only the first so many requests, or of the agents' traces so many files.
        context_length: Leave out requests whose prompt and answer, after the division, are longer together.

    Raises:
        InvalidInput: A value out of range.
    """

    scale: float = 1.0
    shrink: float = 1.0
    limit: int | None = None
    context_length: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and 0 < self.scale <= MOST_FACTOR):
            raise InvalidInput(f"{self.scale!r} must be above 0 and up to {MOST_FACTOR:g}", field="scale")
        if not (math.isfinite(self.shrink) and 1 <= self.shrink <= MOST_FACTOR):
            raise InvalidInput(f"{self.shrink!r} must be from 1 to {MOST_FACTOR:g}", field="shrink")
        if self.limit is not None and self.limit < 1:
            raise InvalidInput(f"{self.limit} must be at least 1", field="limit")
        if self.context_length is not None and self.context_length < 2:
            raise InvalidInput(
                f"{self.context_length} must be at least 2, a prompt and an answer", field="context_length"
            )

    def fits(self, prompt: int, output: int) -> bool:
        """Whether a request of these lengths, already divided, is to be sent."""
        return self.context_length is None or prompt + output <= self.context_length


def workload_of_trace(
    name: str, path: Path, options: TraceOptions, sessions: list[Session], skipped: dict[str, int]
) -> Workload:
    """The sessions in the order in which they begin, with what they were made from.

    Raises:
        InvalidInput: There are none.
    """
    counts = {reason: count for reason, count in skipped.items() if count}
    if not sessions and not counts:
        raise InvalidInput("it holds no request", field=str(path))
    if not sessions:
        raise InvalidInput(
            f"none of its requests fits a context of {options.context_length} tokens; divide the lengths by more",
            field=str(path),
        )
    parameters: dict[str, str | int | float | None] = {
        "file": path.name,
        "scale": options.scale,
        "shrink": options.shrink,
        "limit": options.limit,
        "context_length": options.context_length,
    }
    return Workload(name, parameters, tuple(sorted(sessions, key=lambda session: session.start or 0.0)), counts)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what a file's reading raises into InvalidInput that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidInput(f"cannot be read: {reason}", field=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 text at byte {error.start}", field=str(path)) from error
