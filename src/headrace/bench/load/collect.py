"""From the exchanges of a round to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from headrace.bench.load.exchange import Exchange
from headrace.bench.results.samples import Floats, Ints, Samples


def to_samples(exchanges: Sequence[Exchange], zero: float) -> Samples:
    """Parallel arrays of exchanges in the order due; moments count from ``zero``."""

    def ints(name: str) -> Ints:
        return np.array([getattr(exchange, name) for exchange in exchanges], np.int64)

    def moments(name: str) -> Floats:
        return rounded(np.array([getattr(exchange, name) for exchange in exchanges], np.float64) - zero)

    events = np.fromiter(chain.from_iterable(exchange.events for exchange in exchanges), np.float64)
    counts = [len(exchange.events) for exchange in exchanges]
    return Samples(
        session=ints("session"),
        turn=ints("turn"),
        due=moments("due"),
        sent=moments("sent"),
        end=moments("end"),
        planned_prompt=ints("planned_prompt"),
        planned_output=ints("planned_output"),
        prompt_tokens=ints("prompt_tokens"),
        output_tokens=ints("output_tokens"),
        cached_tokens=ints("cached_tokens"),
        queue=np.array([exchange.queue for exchange in exchanges], np.float64),
        error=tuple(exchange.error for exchange in exchanges),
        event_times=rounded(events - zero),
        event_offsets=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))),
    )


def rounded(moments: Floats) -> Floats:
    """To the microsecond, as the result file has them: it must say the same of every request as its summary."""
    return np.round(moments, 6)
