"""Latencies of requests, and what must be true of the samples that they are taken from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.bench.results.samples import UNKNOWN, Floats, Ints, Samples
from headrace.errors import InvalidInput

EARLY = 0.01  # seconds: timers of an event loop may fire a little before their moment


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds, one row a request as in ``Samples``; NaN where there is none. Failed requests have theirs as well.

    Attributes:
        ttft: Time to first token: from due to the first output event.
        tpot: Time per output token after the first: from the first to the last output event, by one less than the
            number of output tokens; where that number is known to be 2 or more.
        e2e: End to end: from due to the last output event, or to the end of a stream that had none.
        queue: Time in the server's queue, as the server says.
        longest_gap: Longest time between two output events that follow each other.
        gaps: Every such time, all requests one after the other.
        owner: The row that each gap belongs to.
    """

    ttft: Floats
    tpot: Floats
    e2e: Floats
    queue: Floats
    longest_gap: Floats
    gaps: Floats
    owner: Ints

    def gaps_of(self, rows: npt.NDArray[np.bool_]) -> tuple[Floats, Ints]:
        """Gaps of the rows that are set, and their owners."""
        kept = rows[self.owner]
        return self.gaps[kept], self.owner[kept]


def latencies(samples: Samples) -> Latencies:
    """All latencies of all requests."""
    first, last = samples.first, samples.last
    tokens = samples.output_tokens
    owners = np.repeat(np.arange(len(samples)), samples.events)
    inside = owners[1:] == owners[:-1]
    gaps = np.diff(samples.event_times)[inside]
    owner = owners[1:][inside]
    longest = np.full(len(samples), -np.inf)
    np.maximum.at(longest, owner, gaps)
    return Latencies(
        ttft=first - samples.due,
        tpot=np.where(tokens >= 2, (last - first) / np.maximum(tokens - 1, 1), np.nan),
        e2e=np.where(np.isnan(last), samples.end, last) - samples.due,
        queue=samples.queue,
        longest_gap=np.where(np.isinf(longest), np.nan, longest),
        gaps=gaps,
        owner=owner,
    )


def check_samples(samples: Samples) -> None:
    """Check what every reader of samples relies on.

    Raises:
        InvalidInput: A column has another length, moments run backwards, or a value cannot be; the field is its column.
    """
    _check_lengths(samples)
    _check_counts(samples)
    _check_moments(samples)


def _check_lengths(samples: Samples) -> None:
    rows = len(samples)
    for name in ("session", "turn", "sent", "end", "planned_prompt", "planned_output", "prompt_tokens"):
        _require(len(getattr(samples, name)) == rows, name, f"must have one value a request, {rows}")
    for name in ("output_tokens", "cached_tokens", "queue", "error"):
        _require(len(getattr(samples, name)) == rows, name, f"must have one value a request, {rows}")
    offsets = samples.event_offsets
    _require(len(offsets) == rows + 1, "event_offsets", f"must be one longer than the {rows} requests")
    fits = offsets[0] == 0 and offsets[-1] == len(samples.event_times) and bool((np.diff(offsets) >= 0).all())
    _require(fits, "event_offsets", "must ascend from 0 to the number of events")


def _check_counts(samples: Samples) -> None:
    for name in ("planned_prompt", "prompt_tokens", "output_tokens", "cached_tokens"):
        _require(bool((getattr(samples, name) >= UNKNOWN).all()), name, "must be token counts, or -1 for unknown")
    for name in ("planned_output", "session", "turn"):
        _require(bool((getattr(samples, name) >= 0).all()), name, "must not be negative")


def _check_moments(samples: Samples) -> None:
    due, sent, end = samples.due, samples.sent, samples.end
    _require(bool((np.isfinite(due) & (due >= 0)).all()), "due", "must be moments from 0 on")
    _require(bool((np.diff(due) >= 0).all()), "due", "must ascend")
    for name in ("sent", "end", "queue"):
        _require(not np.isinf(getattr(samples, name)).any(), name, "must be finite")
    _require(bool(np.isfinite(samples.event_times).all()), "event_times", "must be finite")
    _require(not (sent < due - EARLY).any(), "sent", "must not be before due")
    _require(not (samples.queue < 0).any(), "queue", "must not be negative")
    _require(not (latencies(samples).gaps < 0).any(), "event_times", "must ascend within a request")
    _require(not (samples.first < due - EARLY).any(), "event_times", "must not be before due")
    _require(not (np.isnan(sent) & (samples.events > 0)).any(), "event_times", "must be of requests that were sent")
    _require(not (end < due - EARLY).any(), "end", "must not be before due")
    _require(not (end < samples.last).any(), "end", "must not be before the last output event")


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise InvalidInput(message, field=name)
