"""Whether the figures of a round are the server's, or the generator's own.

Latencies count from when a request was due, so whatever the generator was late is inside them. A round is certified if
that cannot have moved them by more than ``FLOOR`` seconds or a small part of what is measured, whichever is more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.bench.results.latency import latencies
from headrace.bench.results.measure import Window
from headrace.bench.results.samples import Floats, GeneratorLog, Samples
from headrace.bench.results.schema import Certificate, Generator, Lag

FLOOR = 0.005
TTFT_PART = 0.05  # of the median TTFT, that a request may be sent or seen late
GAP_PART = 0.25  # of the median gap, that an event may be seen late
MOST_CORES = 0.9  # its event loop is one thread: above this it has no time left to be punctual in

REMEDY = "run the generator on a machine that the server leaves free, or ask for a lower rate"


def generator(samples: Samples, log: GeneratorLog, within: Window | None = None) -> Generator:
    """What the generator did, from its own log and from when it sent requests.

    Args:
        samples: All requests of the round.
        log: What it saw of itself.
        within: The window whose requests the send lag is taken over; None is the whole round.
    """
    return Generator(
        cpu_cores=log.cpu / log.wall if log.wall > 0 else 0.0,
        send_lag=_lag(_send_lag(samples, within)),
        loop_lag=_lag(log.loop_lag),
        connections=log.connections,
        resent=log.resent,
    )


def certify(samples: Samples, log: GeneratorLog, within: Window) -> Certificate:
    """Judge a round by what was due in its window, and say why not where it is not certified."""
    counts = within.holds(samples.due)
    answered = counts & samples.succeeded
    own = generator(samples, log, within)
    reasons = []
    if not answered.any():
        reasons.append(
            f"None of the {int(counts.sum())} requests in the window succeeded, so that there is nothing to certify: "
            "look at the errors."
        )
    unsent = int((counts & np.isnan(samples.sent)).sum())
    if unsent:
        reasons.append(
            f"{unsent} of the {int(counts.sum())} requests that were due were never sent: ask for a lower rate or a "
            "shorter load, or give the generator more time."
        )
    if own.cpu_cores >= MOST_CORES:
        reasons.append(
            f"The generator kept {own.cpu_cores:.2f} cores busy, and from {MOST_CORES:g} on it cannot be punctual: run "
            "it on a faster machine, or share the load out over several."
        )
    reasons += _late(own, log, *_medians(samples, answered))
    return Certificate(not reasons, reasons)


def _late(own: Generator, log: GeneratorLog, ttft: float, gap: float) -> list[str]:
    reasons = []
    most = max(FLOOR, TTFT_PART * ttft)
    if own.send_lag.p99 > most:
        reasons.append(
            f"One request in a hundred was sent {_ms(own.send_lag.p99)} late or more, where {_ms(most)} would not "
            f"matter: {REMEDY}."
        )
    most = max(FLOOR, min(TTFT_PART * ttft, GAP_PART * gap))
    if not len(log.loop_lag):
        reasons.append("The generator took no sample of how late its event loop was: run a longer load.")
    elif own.loop_lag.p99 > most:
        reasons.append(
            f"One time in a hundred the generator's event loop was {_ms(own.loop_lag.p99)} late or more, where "
            f"{_ms(most)} would not matter: {REMEDY}."
        )
    return reasons


def _medians(samples: Samples, rows: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Median TTFT and median gap, seconds; of no TTFT 0, and of no gap infinity, for there is none to distort."""
    found = latencies(samples)
    ttft = found.ttft[rows & ~np.isnan(found.ttft)]
    gaps, _ = found.gaps_of(rows)
    return (
        float(np.median(ttft)) if len(ttft) else 0.0,
        float(np.median(gaps)) if len(gaps) else np.inf,
    )


def _send_lag(samples: Samples, within: Window | None) -> Floats:
    lag = samples.sent - samples.due
    if within is not None:
        lag = lag[within.holds(samples.due)]
    return np.maximum(lag[~np.isnan(lag)], 0.0)


def _lag(values: Floats) -> Lag:
    if not len(values):
        return Lag(0.0, 0.0, 0.0)
    p50, p99 = np.quantile(values, [0.5, 0.99])
    return Lag(float(p50), float(p99), float(values.max()))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
