"""How figures, measures and verdicts are written, in a terminal and on a page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from headrace.bench.results.schema import Estimate, Over, Ratio

Unit = Literal["seconds", "share", "ratio", "number"]

NOT_KNOWN = "–"
OPEN_END = "?"  # an end of an interval that the sample cannot give
NO_INTERVAL = "no interval: too few"
TOO_FEW = "too few requests to tell"
VERDICTS = {"a": "A is better", "b": "B is better", "none": "no difference shown"}
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E", "queue": "Queue"}
RATES = {
    "requests_due": "Requests due",
    "requests_completed": "Requests completed",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "total_tokens": "All tokens",
    "cached_tokens": "Cached tokens",
}
LOADS = {"concurrency": "concurrency", "rate": "requests/s"}
_MEASURES = {
    "goodput.share": "Goodput",
    "goodput.rate": "Goodput, requests/s",
    "cached_share": "Cached share",
    "max_rate": "Max rate, requests/s",
}


def digits(value: float) -> str:
    """Three digits, or all of those before the point, such as ``0.0123``, ``12.3``, ``8``, ``1,234``."""
    if not math.isfinite(value):
        return NOT_KNOWN
    size = abs(value)
    if 0 < size < 1e-4 or size >= 1e15:
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    rounded = abs(float(f"{value:.3g}"))
    return f"{value:,.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def given(value: float) -> str:
    """A figure that somebody chose, without digits that say nothing: ``8``, ``5.5``, ``5.477``."""
    return digits(value) if abs(value) >= 1e4 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """In ms below a second, such as ``0.312 ms``, ``31.2 ms``, ``3.12 s``."""
    if not math.isfinite(seconds):
        return NOT_KNOWN
    return f"{digits(seconds * 1e3)} ms" if abs(seconds) < 0.9995 else f"{digits(seconds)} s"


def span(seconds: Sequence[float | None], between: str = "–") -> str:
    """Durations in one unit if they are of one size, such as ``301–322 ms``; ``?`` where there is none."""
    known = [abs(value) for value in seconds if value is not None and math.isfinite(value)]
    if not known:
        return NOT_KNOWN
    scale, unit = (1e3, "ms") if max(known) < 0.9995 else (1.0, "s")
    if unit == "s" and min(known) < 0.1:
        return between.join(OPEN_END if value is None else duration(value) for value in seconds)
    return between.join(OPEN_END if value is None else digits(value * scale) for value in seconds) + f" {unit}"


def percent(share: float) -> str:
    """A share of one as per cent; near 0 and 1 with as many digits as tell it from them."""
    if not 0 <= share <= 1:
        return NOT_KNOWN if math.isnan(share) else f"{digits(100 * share)} %"
    distance = min(share, 1 - share)
    if 0 < distance < 1e-6:
        return "> 99.9999 %" if share > 0.5 else "< 0.0001 %"
    places = 0 if distance == 0 else max(1, 1 - math.floor(math.log10(distance * 100)))
    return f"{100 * share:.{places}f} %"


def given_percent(share: float) -> str:
    """A share that somebody chose, such as ``99 %``, ``99.95 %``."""
    return f"{100 * share:.6g} %"


def per_second(value: float) -> str:
    """Such as ``12.3/s``."""
    return f"{digits(value)}/s"


def load_size(over: Over, load: float) -> str:
    """A load of a sweep, such as ``8 at a time``, ``4 requests/s``."""
    return f"{given(load)} at a time" if over == "concurrency" else f"{given(load)} requests/s"


def ratio(value: float) -> str:
    """Close to 1 with a digit more than others, such as ``0.998``, ``1.025``."""
    return f"{value:.3f}" if 0.1 <= value < 10 else digits(value)


def quantity(value: float, unit: Unit) -> str:
    """A value with its unit."""
    return {"seconds": duration, "share": percent, "ratio": ratio, "number": digits}[unit](value)


def interval(estimate: Estimate, unit: Unit) -> str:
    """The 95 % confidence interval, such as ``301–322 ms``; ``?`` for an end that the sample cannot give."""
    ends = (estimate.low, estimate.high)
    if ends == (None, None):
        return NO_INTERVAL
    if unit == "seconds":
        return span(ends)
    between = " – " if unit == "share" else "–"
    return between.join(OPEN_END if end is None else quantity(end, unit) for end in ends)


def measure_name(measure: str) -> str:
    """What a measure of a comparison is called, such as ``TTFT p99`` for ``ttft.p99``."""
    group, _, rest = measure.partition(".")
    if group in LATENCIES:
        return f"{LATENCIES[group]} {rest}"
    return f"{RATES.get(rest, rest)}/s" if group == "rates" else _MEASURES.get(measure, measure)


def measure_unit(measure: str) -> Unit:
    """What its values are."""
    if measure.partition(".")[0] in LATENCIES:
        return "seconds"
    return "share" if measure.endswith("share") else "number"


def verdict(each: Ratio) -> str:
    """Which is better, in words. Of ``max_rate`` an open interval is for want of rates that failed, not of requests."""
    unknown = (each.ratio.low, each.ratio.high) == (None, None) and each.measure != "max_rate"
    return TOO_FEW if unknown else VERDICTS[each.verdict]
