"""What a page shows of a result: which rounds stand for it, under which names and in which colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.bench.results.compare import highest_common
from headrace.bench.results.latency import latencies
from headrace.bench.results.measure import Window, prompt_tokens
from headrace.bench.results.samples import Floats, Ints, Samples
from headrace.bench.results.schema import Comparison, Plan, Result, Round, Target
from headrace.bench.results.wording import LATENCIES, given, load_size


@dataclass(frozen=True, slots=True)
class Metric:
    """A latency.

    Attributes:
        name: As the field calls it.
        title: What it is.
        definition: How it is measured.
        unit: What one of it is: a request, a gap.
    """

    name: str
    title: str
    definition: str
    unit: str = "requests"


METRICS = {
    "ttft": Metric(
        LATENCIES["ttft"], "Time to first token", "From the moment at which a request was due to its first output."
    ),
    "tpot": Metric(
        LATENCIES["tpot"],
        "Time per output token",
        "From first to last output, divided by the output tokens after the first: one mean a request.",
    ),
    "itl": Metric(LATENCIES["itl"], "Inter-token latency", "Every gap between two outputs of one request.", "gaps"),
    "e2e": Metric(
        LATENCIES["e2e"],
        "End to end",
        "From the moment at which a request was due to its last output; to the end of the stream if there was none.",
    ),
    "queue": Metric(LATENCIES["queue"], "Time in the server’s queue", "As the server tells it."),
}

ARRIVALS = {
    "closed": "closed loop",
    "constant": "constant arrivals",
    "poisson": "Poisson arrivals",
    "gamma": "gamma arrivals",
    "trace": "arrivals of the trace",
}


def has_one_load(result: Result) -> bool:
    """Whether all rounds ran under one load; those of a search and of a sweep did not."""
    return result.search is None and result.sweep is None


def shown_rounds(result: Result) -> list[int]:
    """Indexes of the rounds that stand for the result: all of them, but of a search the one that it found.

    Rounds of a search run at different rates, so that pooling them would describe no load at all. Where no rate met
    the service level, the lowest that was tried stands for it. Of a sweep it is the highest load.
    """
    if result.sweep is not None:
        return [len(result.rounds) - 1]
    search = result.search
    if search is None or not search.points:
        return list(range(len(result.rounds)))
    met = [point for point in search.points if point.met and point.rate == search.max_rate]
    return [(met[-1] if met else min(search.points, key=lambda point: point.rate)).round]


def compared_rounds(comparison: Comparison) -> tuple[list[int], list[int]]:
    """Indexes of the rounds that stand for each side: of two searches those at the highest rate that both kept."""
    common = highest_common(comparison.a, comparison.b)
    if common is None:
        return shown_rounds(comparison.a), shown_rounds(comparison.b)
    return [common[0]], [common[1]]


def pooled(samples: Sequence[Samples], rounds: Sequence[Round], chosen: Sequence[int]) -> dict[str, Floats]:
    """Latencies of the chosen rounds together."""
    each = [measured(samples[index], rounds[index].summary.window) for index in chosen]
    return {key: np.concatenate([found[key] for found in each]) for key in METRICS}


def lengths(samples: Sequence[Samples], windows: Sequence[tuple[float, float]]) -> tuple[Ints, Ints]:
    """Prompt and output lengths of what was due in the windows and succeeded, ``UNKNOWN`` where they are not known."""
    prompts, outputs = [], []
    for each, window in zip(samples, windows, strict=True):
        rows = within(each, window)
        prompts.append(prompt_tokens(each)[rows])
        outputs.append(each.output_tokens[rows])
    return np.concatenate(prompts), np.concatenate(outputs)


def round_label(result: Result, index: int) -> str:
    """Such as ``Round 2 of 3 (4 requests/s)``, of a sweep ``Round 2 of 3 (8 at a time)``."""
    rate, sweep = result.rounds[index].rate, result.sweep
    asked = "" if rate is None else f" ({load_size('rate', rate)})"
    if sweep is not None:
        asked = f" ({load_size(sweep.over, sweep.loads[index])})"
    return f"Round {index + 1} of {len(result.rounds)}{asked}"


def server_name(target: Target) -> str:
    """What a reader calls the server."""
    return target.server or target.url


def load_name(plan: Plan) -> str:
    """Workload and arrivals, such as ``shared-prefix, Poisson arrivals (rate 4)``."""
    given = ", ".join(f"{key} {plain(value)}" for key, value in plan.arrival_parameters.items() if value is not None)
    return f"{plan.workload}, {ARRIVALS.get(plan.arrivals, plan.arrivals)}{f' ({given})' if given else ''}"


def plain(value: str | int | float | None) -> str:
    """A parameter as it is shown."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) else given(value)


def within(samples: Samples, window: tuple[float, float]) -> npt.NDArray[np.bool_]:
    """Which requests count: due in the window, and answered to the end."""
    return Window(*window).holds(samples.due) & samples.succeeded


def measured(samples: Samples, window: tuple[float, float]) -> dict[str, Floats]:
    """Every latency of what counts, by the keys of ``METRICS``, seconds."""
    found, rows = latencies(samples), within(samples, window)
    values = {key: getattr(found, key)[rows] for key in ("ttft", "tpot", "e2e", "queue")}
    return {key: each[~np.isnan(each)] for key, each in {**values, "itl": found.gaps_of(rows)[0]}.items()}
