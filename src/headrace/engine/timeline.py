"""The stamps of a request's life, and the durations that follow from them: the one place that computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec


class Timeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a request passed each stage, in seconds of the machine's monotonic clock; None: not reached."""

    received: float | None = None
    tokenized: float | None = None
    routed: float | None = None
    queued: float | None = None
    first_scheduled: float | None = None
    prefill_done: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def durations(self, output_tokens: int) -> Durations:
        """The intervals that people ask for, given how many tokens came out."""
        start = self.received if self.received is not None else self.queued
        decode = _between(self.first_token, self.last_token)
        return Durations(
            tokenize=_between(self.received, self.tokenized),
            queue=_between(self.queued, self.first_scheduled),
            prefill=_between(self.first_scheduled, self.prefill_done),
            time_to_first_token=_between(start, self.first_token),
            time_per_output_token=decode / (output_tokens - 1) if decode is not None and output_tokens > 1 else None,
            end_to_end=_between(start, self.last_token),
        )


class Durations(msgspec.Struct, frozen=True):
    """Intervals of a request in seconds; None where an end is missing.

    Attributes:
        tokenize: Received to tokenized.
        queue: Queued at the engine to first scheduled.
        prefill: First scheduled to the end of the prompt's computation.
        time_to_first_token: Received to first token (TTFT).
        time_per_output_token: Mean gap between output tokens (TPOT).
        end_to_end: Received to last token.
    """

    tokenize: float | None
    queue: float | None
    prefill: float | None
    time_to_first_token: float | None
    time_per_output_token: float | None
    end_to_end: float | None


def merged(lines: Iterable[Timeline]) -> Timeline:
    """The timeline of a request with several samples: the one with the earliest first token, to the latest last one."""
    known = list(lines)
    if not known:
        return Timeline()
    first = min(known, key=lambda line: line.first_token or math.inf)
    last = max((line.last_token for line in known if line.last_token is not None), default=None)
    return msgspec.structs.replace(first, last_token=last)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
