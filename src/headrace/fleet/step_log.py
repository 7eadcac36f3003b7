"""``StepLog``: the engine's steps as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from headrace.engine.messages import EngineStats
from headrace.errors import InvalidInput

PLANNER, EXECUTOR = 1, 2
MICRO = 1_000_000


class StepLog:
    """Appends each step to a file, in the array form of Google's Trace Event Format (which needs no closing bracket).

    Two lanes show a step and its part in the executor; counters show queue and pages. No token and no text is written.

    Args:
        path: The file; a later process with the same file goes on behind what is there.

    Raises:
        InvalidInput: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}", field="step_log") from error
        self._last = 0
        if not self._file.tell():
            self._file.write("[\n")
        for lane, name in ((PLANNER, "step"), (EXECUTOR, "executor")):
            self._write({"ph": "M", "name": "thread_name", "tid": lane, "args": {"name": name}})

    def step(self, stats: EngineStats, tokens: int) -> None:
        """Append a step, unless it was appended before.

        Args:
            stats: The engine's, after it.
            tokens: Tokens that came out of it.
        """
        if stats.step == self._last:
            return
        self._last = stats.step
        about = {"step": stats.step, "tokens": tokens, "running": stats.running, "waiting": stats.waiting}
        for lane, name, seconds in (
            (PLANNER, f"step {stats.step}", stats.step_seconds),
            (EXECUTOR, "forward and sampling", stats.forward_seconds),
        ):
            began = (stats.ended - seconds) * MICRO
            self._write({"ph": "X", "name": name, "tid": lane, "ts": began, "dur": seconds * MICRO, "args": about})
        pages = {"used": stats.pages_used, "cached": stats.pages_cached}
        for name, values in (("samples", {"running": stats.running, "waiting": stats.waiting}), ("pages", pages)):
            self._write({"ph": "C", "name": name, "ts": time.monotonic() * MICRO, "args": values})

    def _write(self, event: dict[str, object]) -> None:
        line = msgspec.json.encode({"pid": os.getpid(), **event}).decode()
        self._file.write(line + ",\n")
