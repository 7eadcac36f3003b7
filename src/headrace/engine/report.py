"""Packing a step's deltas into one message, and unpacking it. Most deltas are one plain token: those go as arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.engine.messages import EngineStats, StepReport, TokenDelta


def pack(deltas: list[TokenDelta], stats: EngineStats) -> StepReport:
    """The message of a step."""
    # All of a sample in one place, for a step may tell of two tokens: one that waited for its constraint, and the next.
    odd = {(d.request, d.index) for d in deltas if not _is_plain(d)}
    plain = [d for d in deltas if (d.request, d.index) not in odd]
    return StepReport(
        requests=np.array([d.request for d in plain], "<i8").tobytes(),
        indexes=np.array([d.index for d in plain], "<i4").tobytes(),
        tokens=np.array([d.tokens[0] for d in plain], "<i4").tobytes(),
        deltas=[d for d in deltas if (d.request, d.index) in odd],
        stats=stats,
    )


def unpack(report: StepReport) -> Iterator[TokenDelta]:
    """The deltas of a step, those of a sample in order."""
    requests = np.frombuffer(report.requests, "<i8").tolist()
    indexes = np.frombuffer(report.indexes, "<i4").tolist()
    tokens = np.frombuffer(report.tokens, "<i4").tolist()
    for request, index, token in zip(requests, indexes, tokens, strict=True):
        yield TokenDelta(request, index, [token])
    yield from report.deltas


def _is_plain(delta: TokenDelta) -> bool:
    return len(delta.tokens) == 1 and delta == TokenDelta(delta.request, delta.index, delta.tokens)
