"""When sessions begin, in an open loop: arrivals that do not wait for answers."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.bench.workload.seeds import generator
from headrace.errors import InvalidInput

Floats = npt.NDArray[np.float64]
KINDS = ("constant", "poisson", "gamma")
LEAST_RATE, MOST_RATE = 1e-6, 1e6
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1e4  # below, nearly all of a million gaps are 0


class ArrivalLaw(msgspec.Struct, frozen=True, kw_only=True):
    """A renewal process: independent gaps of one law, whose mean is the inverse of the rate.

    Attributes:
        kind: ``constant``: all gaps are equal. ``poisson``: exponential gaps. ``gamma``: gamma gaps.
        rate: Sessions that begin each second; at the start, if there is a ramp.
        end_rate: If given, the rate moves in a straight line from ``rate`` to this over the time in which the expected
            number of sessions is the number given, and stays there.
        burstiness: Shape k of the gamma law. The mean of the gaps stays 1/rate, their coefficient of variation is
            1/sqrt(k): 1 is Poisson, below 1 is burstier, above 1 more even.

    Raises:
        InvalidInput: A value out of range, or a burstiness other than 1 without the gamma law.
    """

    kind: Literal["constant", "poisson", "gamma"]
    rate: float
    end_rate: float | None = None
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"{self.kind!r} is no law of arrivals; write one of {', '.join(KINDS)}", field="kind")
        _within(self.rate, LEAST_RATE, MOST_RATE, "rate")
        if self.end_rate is not None:
            _within(self.end_rate, LEAST_RATE, MOST_RATE, "end_rate")
        _within(self.burstiness, LEAST_BURSTINESS, MOST_BURSTINESS, "burstiness")
        if self.kind != "gamma" and self.burstiness != 1:
            raise InvalidInput(
                f"{self.kind} arrivals have none; use gamma arrivals or leave it out", field="burstiness"
            )


def start_times(law: ArrivalLaw, n: int, seed: int, duration: float | None = None) -> Floats:
    """When each of ``n`` sessions begins.

    The pattern, arrivals at one a second, depends on kind, burstiness and seed alone, and the first of more sessions
    are those of fewer. At a rate r it is divided by r. A ramp runs the same pattern through the inverse of the rate's
    integral, the usual way to an inhomogeneous process.

    Args:
        law: The law.
        n: Number of sessions, 0 or more.
        seed: Of the pattern, 0 or more.
        duration: Seconds of a ramp; by default those in which ``n`` sessions are expected.

    Returns:
        float64[n], seconds, ascending. The first session begins after the first gap, not at 0.

    Raises:
        InvalidInput: The number or the seed is negative.
    """
    if n < 0:
        raise InvalidInput(f"{n} is negative; give a number of sessions", field="sessions")
    pattern = np.cumsum(_unit_gaps(law, n, seed))
    if law.end_rate is None or law.end_rate == law.rate:
        return pattern / law.rate
    return _ramp(pattern, law.rate, law.end_rate, duration or 2 * n / (law.rate + law.end_rate))


def _unit_gaps(law: ArrivalLaw, n: int, seed: int) -> Floats:
    rng = generator(seed, f"arrivals {law.kind}")
    match law.kind:
        case "constant":
            return np.ones(n)
        case "poisson":
            return rng.standard_exponential(n)
        case "gamma":
            return rng.standard_gamma(law.burstiness, n) / law.burstiness


def _ramp(expected: Floats, rate: float, end_rate: float, duration: float) -> Floats:
    """The moment at which so many sessions are expected: rate t + (end_rate - rate) t^2 / (2 duration), inverted."""
    total = (rate + end_rate) * duration / 2
    slope = (end_rate - rate) / duration if duration else 0.0
    during = np.minimum(expected, total)
    # The form of the root that does not subtract two nearly equal numbers where the slope is small.
    inside = 2 * during / (rate + np.sqrt(np.maximum(rate**2 + 2 * slope * during, 0)))
    # Rounding may turn two arrivals around that come at nearly the same moment.
    return np.maximum.accumulate(inside + np.maximum(expected - total, 0) / end_rate)


def _within(value: float, least: float, most: float, field: str) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InvalidInput(f"{value!r} must be a number from {least:g} to {most:g}", field=field)
