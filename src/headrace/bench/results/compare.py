"""Two servers under the same load: ratios with intervals, and a verdict only where the interval shows one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.bench.results.measure import Window, cached_counts
from headrace.bench.results.ratios import centre, combined_ratio, paired_ratio
from headrace.bench.results.result_file import from_requests
from headrace.bench.results.schema import COMPARISON_SCHEMA, Comparison, Estimate, Ratio, Result, Round, Search, Summary
from headrace.bench.results.statistics import quotient
from headrace.errors import InvalidInput

PAIRS = 3  # rounds of each from which on their spread is known well enough
SAME_LENGTH = 0.01  # answers may differ by this share in their mean
RESOLUTION = 1e-6  # of a ratio: moments are kept to the microsecond, so less is rounding

PAIRED = (
    "Student's t intervals of the mean logarithm of the ratio over {pairs} pairs of rounds: differences between runs "
    "are in them"
)
WITHIN = (
    "Intervals within the rounds (block bootstrap), combined on the logarithm of the ratio: differences between runs "
    "of the machine are not in them; 3 rounds of each would show those"
)
SEARCHED = (
    "Of max_rate the interval is what the two searches leave open, not a confidence interval; the others compare the "
    "highest rate that both kept"
)

Direction = Literal["lower", "higher"]
_Read = Callable[[Round], Estimate | None]


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared: its name, which direction is better, and how it is read from a round."""

    name: str
    better: Direction
    read: _Read


def compare(a: Result, b: Result) -> Comparison:
    """Compare two results, measure by measure.

    Over several rounds a measure is the geometric mean of theirs. A measure that a round of either lacks is left out,
    with a warning where only one server has it; so is one that is 0, for it has no ratio.

    Raises:
        InvalidInput: One is a search for a rate and the other is not, or one is a sweep.
    """
    if a.sweep is not None or b.sweep is not None:
        raise InvalidInput("one of the results is a sweep over loads; a sweep is compared with other sweeps only")
    if (a.search is None) != (b.search is None):
        raise InvalidInput(
            "one of the results is a search for the highest rate and the other is not; compare like with like"
        )
    warnings = differences(a, b)
    ratios: list[Ratio] = []
    first, second = a.rounds, b.rounds
    if a.search is not None and b.search is not None:
        ratios += _max_rates(a.search, b.search, warnings)
        common = highest_common(a, b)
        first, second = ([], []) if common is None else ([a.rounds[common[0]]], [b.rounds[common[1]]])
        if common is None:
            warnings.append("There is no rate that both kept: the figures of no round are compared")
    if first:
        warnings += [*answer_lengths(first, second), *troubles("the first", first), *troubles("the second", second)]
        ratios += _ratios(first, second, warnings)
    return Comparison(
        schema=COMPARISON_SCHEMA,
        method=_method(len(first), len(second), a.search is not None),
        warnings=warnings,
        ratios=ratios,
        a=a,
        b=b,
    )


def _paired(first: int, second: int) -> bool:
    return first == second and first >= PAIRS


def _method(first: int, second: int, searched: bool) -> str:
    parts = []
    if searched:
        parts.append(SEARCHED)
    if first:
        parts.append((PAIRED if _paired(first, second) else WITHIN).format(pairs=first))
    return ". ".join(parts) + "."


def _measures(first: Sequence[Round], second: Sequence[Round]) -> list[Measure]:
    found = [
        Measure(f"{latency}.{part}", "lower", _latency(latency, part))
        for latency in ("ttft", "tpot", "itl", "e2e")
        for part in ("mean", "p50", "p90", "p99")
    ]
    found += [
        Measure(f"rates.{name}", "higher", _rate(name))
        for name in ("requests_completed", "output_tokens", "total_tokens")
    ]
    levels = [None if each.summary.goodput is None else each.summary.goodput.slo for each in (*first, *second)]
    if levels[0] is not None and all(level == levels[0] for level in levels):
        found += [Measure(f"goodput.{part}", "higher", _goodput(part)) for part in ("share", "rate")]
    return [*found, Measure("cached_share", "higher", _cached_share)]


def _latency(name: str, part: str) -> _Read:
    def read(each: Round) -> Estimate | None:
        found = each.summary.latency.get(name)
        if found is None:
            return None
        return found.mean if part == "mean" else found.percentiles.get(part)

    return read


def _rate(name: str) -> _Read:
    return lambda each: each.summary.rates.get(name)


def _goodput(part: Literal["share", "rate"]) -> _Read:
    def read(each: Round) -> Estimate | None:
        found = each.summary.goodput
        return None if found is None else found.share if part == "share" else found.rate

    return read


def _cached_share(each: Round) -> Estimate | None:
    """The summary holds no interval of it; it is found from the requests."""
    if each.summary.cached_share is None:
        return None
    samples = from_requests(each.requests)
    counts = cached_counts(samples, Window(*each.summary.window).holds(samples.due) & samples.succeeded)
    found = None if counts is None else quotient(*counts)
    return found or Estimate(each.summary.cached_share)


def _ratios(first: Sequence[Round], second: Sequence[Round], warnings: list[str]) -> list[Ratio]:
    ratios = []
    for measure in _measures(first, second):
        a, b = _read(measure, first), _read(measure, second)
        if a is None and b is None:
            continue
        if a is None or b is None:
            warnings.append(f"{measure.name} is known of every round of the {'second' if a is None else 'first'} only")
            continue
        values = [centre(each) for each in (a, b)]
        if not all(value > 0 for each in (a, b) for value in (found.value for found in each)):
            if any(values):
                warnings.append(f"{measure.name} is {values[0]:.4g} beside {values[1]:.4g}: 0 has no ratio")
            continue
        interval = paired_ratio(a, b) if _paired(len(a), len(b)) else combined_ratio(a, b)
        ratios.append(_ratio(measure.name, measure.better, values[0], values[1], interval))
    return ratios


def _read(measure: Measure, rounds: Sequence[Round]) -> list[Estimate] | None:
    found = [measure.read(each) for each in rounds]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _ratio(name: str, better: Direction, a: float, b: float, interval: Estimate) -> Ratio:
    verdict: Literal["a", "b", "none"] = "none"
    if interval.low is not None and interval.low > 1 + RESOLUTION:
        verdict = "b" if better == "lower" else "a"
    elif interval.high is not None and interval.high < 1 - RESOLUTION:
        verdict = "a" if better == "lower" else "b"
    return Ratio(measure=name, better=better, a=a, b=b, ratio=interval, verdict=verdict)


def _max_rates(a: Search, b: Search, warnings: list[str]) -> list[Ratio]:
    """The truth lies between the rate that was found and the next that failed."""
    if not a.max_rate or not b.max_rate:
        found = [f"{each.max_rate:.4g}" if each.max_rate else "none" for each in (a, b)]
        warnings.append(f"max_rate is {found[0]} beside {found[1]}: there is no ratio")
        return []
    ratio = a.max_rate / b.max_rate
    low = a.max_rate / b.failed_rate if b.failed_rate else None
    high = a.failed_rate / b.max_rate if a.failed_rate else None
    return [_ratio("max_rate", "higher", a.max_rate, b.max_rate, Estimate(ratio, low, high))]


def highest_common(a: Result, b: Result) -> tuple[int, int] | None:
    """Of two searches the rounds, by index, at the highest rate that both kept; None if there is none.

    A rate above what a search found was not kept, even where one of its trials was.
    """
    kept = [_kept(each.search) if each.search else {} for each in (a, b)]
    common = max(kept[0].keys() & kept[1].keys(), default=None)
    return None if common is None else (kept[0][common], kept[1][common])


def _kept(search: Search) -> dict[float, int]:
    most = search.max_rate or 0.0
    return {point.rate: point.round for point in search.points if point.met and point.rate <= most}


def differences(a: Result, b: Result) -> list[str]:
    """What was asked of one otherwise than of the other, of what both can be asked."""
    first, second = _asked(a), _asked(b)
    pairs = {words: (value, second[words]) for words, value in first.items() if words in second}
    return [f"The {words} differs: {_shown(x)} beside {_shown(y)}" for words, (x, y) in pairs.items() if x != y]


def _asked(result: Result) -> dict[str, object]:
    """What must be alike in two results, by what it is called in a sentence."""
    target, plan = result.target, result.plan
    asked: dict[str, object] = {
        "model": target.model,
        "endpoint": target.api,
        "form of the prompts": target.prompts,
        "list of what the server does not take": " ".join(target.notes),
        "workload": plan.workload,
        "kind of arrivals": plan.arrivals,
        **{f"workload's {name}": value for name, value in plan.parameters.items() if name != "sessions"},
        **{f"arrivals' {name}": value for name, value in plan.arrival_parameters.items()},
        "seed": plan.seed,
        "warm-up": plan.warmup,
        "cool-down": plan.cooldown,
        "number of devices": plan.devices,
        "service level": _level(result.rounds),
    }
    if result.sweep is not None:  # what each load asks for differs, and the curves need not have the same loads
        asked.pop(f"arrivals' {result.sweep.over}", None)
    elif plan.arrivals != "closed":  # a closed loop asks a faster server more
        asked["number of requests"] = plan.requests
        asked["number of requests left out"] = plan.skipped
    if result.search is not None:
        asked["share that must meet the service level"] = result.search.target_share
    return asked


def _level(rounds: Sequence[Round]) -> dict[str, float] | None:
    goodput = rounds[0].summary.goodput
    return None if goodput is None else goodput.slo


def _shown(value: object) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{key}={each}" for key, each in value.items())
    text = "none" if value is None or value == "" else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def answer_lengths(first: Sequence[Round], second: Sequence[Round]) -> list[str]:
    """Whether the servers gave answers of other lengths, at most one sentence."""
    a, b = (_mean_answer([each.summary for each in rounds]) for rounds in (first, second))
    if a is None or b is None or abs(a - b) <= SAME_LENGTH * max(a, b):
        return []
    return [f"The mean answer has {a:.4g} tokens beside {b:.4g}: the servers did not do the same work"]


def _mean_answer(summaries: Sequence[Summary]) -> float | None:
    counted = sum(each.succeeded - each.lengths.output_uncounted for each in summaries)
    return sum(each.lengths.output_tokens for each in summaries) / counted if counted > 0 else None


def troubles(name: str, rounds: Sequence[Round]) -> list[str]:
    """Why the figures of a side may not be its server's."""
    found = []
    uncertified = [each for each in rounds if not each.certificate.certified]
    if uncertified:
        reason = next((reason for each in uncertified for reason in each.certificate.reasons), "no reason given")
        found.append(f"{len(uncertified)} of {len(rounds)} rounds of {name} are not certified: {reason}")
    summaries: list[Summary] = [each.summary for each in rounds]
    failed = sum(sum(each.errors.values()) for each in summaries)
    if failed:
        total = sum(each.requests for each in summaries)
        found.append(f"{failed} of {total} requests to {name} failed: latencies are of those that did not")
    for count, what in (
        (sum(each.lengths.output_differs for each in summaries), "had an answer of another length than was asked for"),
        (
            sum(each.lengths.prompt_differs for each in summaries),
            "had a prompt that it counted otherwise than was sent",
        ),
    ):
        if count:
            found.append(f"{count} of {sum(each.succeeded for each in summaries)} requests to {name} {what}")
    return found
