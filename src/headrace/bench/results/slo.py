"""Service levels: what a user asks of each request's latencies, such as ``ttft=500ms,tpot=50ms``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from headrace.bench.results.latency import latencies
from headrace.bench.results.samples import UNKNOWN, Samples
from headrace.errors import InvalidInput

MEASURES = ("ttft", "tpot", "itl", "e2e")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60.0, "h": 3600.0}

_BOUND = re.compile(r"\s*(\w+)\s*=\s*(.*?)\s*", re.DOTALL)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([^\W\d_]*)")


def parse_slo(text: str) -> dict[str, float]:
    """Bounds in seconds by measure, from ``measure=duration`` separated by commas.

    Args:
        text: Measures are ``ttft``, ``tpot``, ``itl`` (the longest gap of a request) and ``e2e``; each once.

    Raises:
        InvalidInput: ``slo``: not of that form.
    """
    bounds: dict[str, float] = {}
    for part in text.split(","):
        found = _BOUND.fullmatch(part)
        if found is None:
            raise InvalidInput(f"{part.strip()[:40]!r} is not a bound; write such as ttft=500ms,tpot=50ms", field="slo")
        measure, duration = found[1], found[2]
        if measure not in MEASURES:
            raise InvalidInput(f"{measure[:40]!r} is not a measure; use one of {', '.join(MEASURES)}", field="slo")
        if measure in bounds:
            raise InvalidInput(f"{measure} is given twice; give each measure one bound", field="slo")
        seconds = parse_duration(duration, "slo")
        if seconds <= 0:
            raise InvalidInput(f"the bound of {measure} must be above 0, got {duration[:40]!r}", field="slo")
        bounds[measure] = seconds
    return bounds


def parse_duration(text: str, field: str) -> float:
    """Seconds of a duration with its unit, such as ``500ms``, ``1.5s`` or ``20us``.

    Raises:
        InvalidInput: Not a duration, or without a unit.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"{text[:40]!r} is not a duration; write such as 500ms or 2s", field=field)
    number, unit = found[1], found[2]
    if not unit:
        raise InvalidInput(f"{text[:40]!r} has no unit; write {number[:20]}ms or {number[:20]}s", field=field)
    if unit not in UNITS:
        raise InvalidInput(f"{unit[:20]!r} is not a unit of time; use s, ms or us", field=field)
    seconds = float(number) * UNITS[unit]
    if not math.isfinite(seconds):
        raise InvalidInput(f"{text[:40]!r} is too long", field=field)
    return seconds


def meets(samples: Samples, slo: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Which requests met every bound, bool ``[requests]``.

    A request that failed meets none, nor does one whose latency is not known, except where there is nothing to bound:
    an answer of one token has no time per further token, and one of a single event has no gap.
    """
    found = latencies(samples)
    met = samples.succeeded.copy()
    # A comparison with NaN is false: what was not seen does not meet its bound.
    if "ttft" in slo:
        met &= found.ttft <= slo["ttft"]
    if "e2e" in slo:
        met &= found.e2e <= slo["e2e"]
    if "tpot" in slo:
        single = (samples.output_tokens != UNKNOWN) & (samples.output_tokens <= 1)
        met &= single | (found.tpot <= slo["tpot"])
    if "itl" in slo:
        met &= np.isnan(found.longest_gap) | (found.longest_gap <= slo["itl"])
    return met
