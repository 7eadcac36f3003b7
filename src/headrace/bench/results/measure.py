"""What was measured: from the samples of a round to its summary. docs/measures.md defines every figure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.bench.results.latency import Latencies, latencies
from headrace.bench.results.samples import UNKNOWN, Floats, Ints, Samples
from headrace.bench.results.schema import Distribution, Estimate, Goodput, Lengths, Summary
from headrace.bench.results.slo import meets, parse_duration
from headrace.bench.results.statistics import describe, rate, share
from headrace.errors import InvalidInput

UNFINISHED = "unfinished"
LEAST_SECONDS = 1e-9  # between tokens: less is rounding, not speed
ONE_MOMENT = 0.01  # of a round: requests that are all due this early are due at once

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%")


@dataclass(frozen=True, slots=True)
class Margin:
    """How much of a round does not count: seconds, or a share (0 to 1) of its requests."""

    seconds: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        """As ``parse_margin`` reads it."""
        if self.share:
            return f"{_plain(self.share * 100)}%"
        return f"{_plain(self.seconds)}s" if self.seconds else "0"


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of a round that counts, seconds since it began, both ends included."""

    begin: float
    close: float

    def holds(self, moments: Floats) -> npt.NDArray[np.bool_]:
        """Which moments are inside; NaN is not."""
        return (moments >= self.begin) & (moments <= self.close)


def _plain(value: float) -> str:
    """A number without an exponent, which no unit can follow."""
    return np.format_float_positional(float(f"{value:.9g}"), trim="-")


def parse_margin(text: str, field: str) -> Margin:
    """A margin from ``10%``, ``5s``, ``500ms`` or ``0``.

    Raises:
        InvalidInput: ``field``: not of that form, or 100 % and more.
    """
    text = text.strip()
    if re.fullmatch(r"0+(\.0*)?", text):
        return Margin()
    found = _PERCENT.fullmatch(text)
    if found is None:
        return Margin(seconds=parse_duration(text, field))
    percent = float(found[1])
    if percent >= 100:
        raise InvalidInput(f"{text[:40]!r} leaves nothing to measure; give less than 100%", field=field)
    return Margin(share=percent / 100)


def window(samples: Samples, warmup: Margin = Margin(), cooldown: Margin = Margin()) -> Window:
    """The window of a round: from 0 to the last due moment, less the margins at both ends.

    A share of the requests is cut off by moving the ends to the due moments of the first and the last that are left.
    If all requests were due at practically one moment, there is no steady part to find: the window then reaches to the
    end of the last stream, and shares cut nothing.

    Raises:
        InvalidInput: ``warmup`` or ``cooldown``: no request is due in what remains.
    """
    if not len(samples):
        return Window(0.0, 0.0)
    due, requests = samples.due, len(samples)
    over = float(np.nanmax(np.concatenate([due, samples.end, samples.event_times])))
    if due[-1] <= ONE_MOMENT * over:
        found = Window(warmup.seconds, over - cooldown.seconds)
    else:
        first, last = int(warmup.share * requests), requests - 1 - int(cooldown.share * requests)
        found = Window(
            float(due[min(first, requests - 1)]) if first else warmup.seconds,
            float(due[max(last, 0)]) - cooldown.seconds,
        )
    if not found.holds(due).any():
        longer = warmup.seconds + warmup.share * over >= cooldown.seconds + cooldown.share * over
        raise InvalidInput(
            f"no request is due between a warm-up of {warmup} and a cool-down of {cooldown}, the last being due at "
            f"{due[-1]:.3g} s; cut less, or run a longer load",
            field="warmup" if longer else "cooldown",
        )
    return found


def summarize(samples: Samples, within: Window, slo: Mapping[str, float] | None = None, devices: int = 1) -> Summary:
    """The figures of a round.

    Args:
        samples: All requests of the round, those outside of the window as well.
        within: The window.
        slo: Bounds as ``parse_slo`` gives them.
        devices: Devices of the server, at least 1.
    """
    due = within.holds(samples.due)
    answered = due & samples.succeeded
    rates = _rates(samples, within)
    latency = _latency(latencies(samples), answered)
    return Summary(
        window=(within.begin, within.close),
        requests=int(due.sum()),
        succeeded=int(answered.sum()),
        errors=_errors(samples, due & ~answered),
        latency=latency,
        rates=rates,
        per_device={name: found.value / devices for name, found in rates.items()},
        cached_share=_cached_share(samples, answered),
        goodput=None if slo is None else _goodput(samples, within, due, slo),
        lengths=_lengths(samples, answered),
        user_tokens=user_tokens(latency),
    )


def _errors(samples: Samples, failed: npt.NDArray[np.bool_]) -> dict[str, int]:
    kinds = Counter(samples.error[row] or UNFINISHED for row in np.flatnonzero(failed))
    return dict(sorted(kinds.items()))


def _latency(found: Latencies, rows: npt.NDArray[np.bool_]) -> dict[str, Distribution]:
    described: dict[str, Distribution | None] = {}
    for name in ("ttft", "tpot", "itl", "e2e", "queue"):
        if name == "itl":
            described[name] = describe(*found.gaps_of(rows))
        else:
            values: Floats = getattr(found, name)[rows]
            described[name] = describe(values[~np.isnan(values)])
    return {name: distribution for name, distribution in described.items() if distribution is not None}


def user_tokens(latency: Mapping[str, Distribution]) -> Estimate | None:
    """Output tokens a second that a user sees: 1 / p50 of ``tpot``; None where that is not known or 0."""
    tpot = latency.get("tpot")
    middle = None if tpot is None else tpot.percentiles.get("p50")
    if middle is None or middle.value < LEAST_SECONDS:
        return None
    low, high = (None if end is None or end < LEAST_SECONDS else 1 / end for end in (middle.high, middle.low))
    return Estimate(1 / middle.value, low, high)


def _rates(samples: Samples, within: Window) -> dict[str, Estimate]:
    """Rates by name; those of tokens that the server never told are left out."""
    ends = (within.begin, within.close)
    rates = {
        "requests_due": rate(samples.due, ends),
        "requests_completed": rate(np.where(samples.succeeded, samples.end, np.nan), ends),
    }
    prompt = prompt_tokens(samples)
    inputs = _at_first(samples, prompt)
    outputs = output_moments(samples)
    if inputs:
        rates["input_tokens"] = rate(inputs[0], ends, inputs[1])
    if outputs:
        rates["output_tokens"] = rate(outputs[0], ends, outputs[1])
    if inputs and outputs:
        moments, weights = (np.concatenate(pair) for pair in zip(inputs, outputs, strict=True))
        rates["total_tokens"] = rate(moments, ends, weights)
    cached = _at_first(samples, samples.cached_tokens)
    if cached:
        rates["cached_tokens"] = rate(cached[0], ends, cached[1])
    return rates


def prompt_tokens(samples: Samples) -> Ints:
    """Prompt tokens as the server counted them, else as the generator did, else ``UNKNOWN``."""
    return np.where(samples.prompt_tokens != UNKNOWN, samples.prompt_tokens, samples.planned_prompt)


def _at_first(samples: Samples, tokens: Ints) -> tuple[Floats, Floats] | None:
    """Moments and weights of tokens that are taken to be computed when the first output comes."""
    known = tokens != UNKNOWN
    return (samples.first[known], tokens[known].astype(np.float64)) if known.any() else None


def output_moments(samples: Samples) -> tuple[Floats, Floats] | None:
    """Moments and weights of output tokens: each event of a request carries the same part of them.

    Events of a request whose tokens the server did not tell weigh nothing: the number of events says nothing of tokens.
    Tokens of a request that had no event count at its end.
    """
    known = samples.output_tokens != UNKNOWN
    if not known.any():
        return None
    tokens = np.where(known, samples.output_tokens, 0)
    each = np.repeat(tokens / np.maximum(samples.events, 1), samples.events)
    silent = known & (samples.events == 0)
    return np.concatenate([samples.event_times, samples.end[silent]]), np.concatenate([each, tokens[silent]])


def _cached_share(samples: Samples, rows: npt.NDArray[np.bool_]) -> float | None:
    counted = cached_counts(samples, rows)
    return None if counted is None else float(counted[0].sum() / counted[1].sum())


def cached_counts(samples: Samples, rows: npt.NDArray[np.bool_]) -> tuple[Floats, Floats] | None:
    """Cached tokens and prompt tokens of the rows where both are known; None if that is no token at all."""
    known = rows & (samples.cached_tokens != UNKNOWN) & (samples.prompt_tokens > 0)
    if not known.any():
        return None
    return samples.cached_tokens[known].astype(np.float64), samples.prompt_tokens[known].astype(np.float64)


def _goodput(samples: Samples, within: Window, due: npt.NDArray[np.bool_], slo: Mapping[str, float]) -> Goodput:
    met = meets(samples, slo) & due
    good = rate(np.where(met, samples.due, np.nan), (within.begin, within.close))
    return Goodput(dict(slo), int(met.sum()), share(met[due]), good)


def _lengths(samples: Samples, rows: npt.NDArray[np.bool_]) -> Lengths:
    planned, prompt = samples.planned_prompt[rows], samples.prompt_tokens[rows]
    asked, output, events = samples.planned_output[rows], samples.output_tokens[rows], samples.events[rows]
    known = output != UNKNOWN
    counted_events = int(events[known & (events > 0)].sum())
    counted_tokens = int(output[known & (events > 0)].sum())
    return Lengths(
        planned_prompt_tokens=int(planned[planned != UNKNOWN].sum()),
        prompt_tokens=int(prompt[prompt != UNKNOWN].sum()),
        prompt_differs=int(((planned != UNKNOWN) & (prompt != UNKNOWN) & (planned != prompt)).sum()),
        output_tokens=int(output[known].sum()),
        output_differs=int((known & (output != asked)).sum()),
        output_uncounted=int((~known).sum()),
        tokens_per_event=counted_tokens / counted_events if counted_events else None,
    )
