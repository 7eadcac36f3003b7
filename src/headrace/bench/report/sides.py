"""What two results have beside each other: their plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.report import account
from headrace.bench.report.board import Board, selector
from headrace.bench.report.curves import Trials, goodput_figure, length_figure
from headrace.bench.report.description import found_rate
from headrace.bench.report.figures import Curve, Figure, distribution_figure
from headrace.bench.report.markup import Html, joined, tag
from headrace.bench.report.pooling import pool
from headrace.bench.report.result_page import timelines
from headrace.bench.report.sections import ZOOM, note, plots, section
from headrace.bench.report.series import CURVE_POINTS
from headrace.bench.report.timelines import key_of
from headrace.bench.report.views import METRICS, compared_rounds, lengths, pooled, round_label
from headrace.bench.results.samples import Floats, Samples
from headrace.bench.results.schema import Comparison, Result, Summary

BOTH = (("A", "a", "solid"), ("B", "b", "solid"))
TIMELINES = {
    "activity": "requests",
    "flow": "requests/s",
    "tokens": "output tokens/s",
    "first": "TTFT of each request",
}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    Attributes:
        name: ``A`` or ``B``.
        result: What was measured.
        samples: Of each of its rounds.
        rounds: Indexes of those that stand for it.
        values: Their latencies together.
        summary: Their account.
    """

    name: str
    result: Result
    samples: Sequence[Samples]
    rounds: Sequence[int]
    values: Mapping[str, Floats]
    summary: Summary

    @property
    def role(self) -> str:
        """Its colour."""
        return self.name.lower()

    @property
    def chip(self) -> Html:
        """Its name beside its colour."""
        return joined([tag("span", class_=f"chip {self.role}"), self.name])


def sides_of(comparison: Comparison, samples: Sequence[Sequence[Samples]]) -> tuple[Side, Side]:
    """A and B; ``samples`` are those of the rounds of each."""
    found = []
    results = (comparison.a, comparison.b)
    for name, result, of, rounds in zip("AB", results, samples, compared_rounds(comparison), strict=True):
        values = pooled(of, result.rounds, rounds)
        summaries = [result.rounds[index].summary for index in rounds]
        summary = pool(summaries, [of[index] for index in rounds], values)
        found.append(Side(name, result, of, rounds, values, summary))
    return found[0], found[1]


def latency_section(title: str, sides: Sequence[Side], board: Board) -> Html:
    """Distributions of both in one plot each."""
    goodput = sides[0].summary.goodput
    slo = {} if goodput is None else goodput.slo
    drawn = []
    for key, metric in METRICS.items():
        curves = [Curve(side.values[key], side.name, side.role, side.summary.latency.get(key)) for side in sides]
        figure = distribution_figure(curves, metric.name, metric.unit, slo.get(key), CURVE_POINTS)
        spoken = f"Cumulative distributions of {metric.name} of A and B; the table above has the percentiles."
        heading = f"{metric.title} ({metric.name})"
        zero = [curve.name for curve in curves if len(curve.values) and not curve.values.any()]
        caption = " ".join([metric.definition, *(f"Of {name} it is always 0." for name in zero)])
        drawn.append(board.plot(heading, caption, [figure], spoken=spoken, key=BOTH))
    reading = (
        "Each curve says which share of all took no longer than a time: further left is faster. The upright axis is "
        "stretched towards both ends. Dots are p50, p90, p95 and p99."
    )
    return section("latency", title, note(reading), plots(*drawn))


def search_section(title: str, sides: Sequence[Side], board: Board) -> Html | None:
    """What the searches of both saw; None if one of them is not a search, or tried nothing."""
    tried = []
    for side in sides:
        search = side.result.search
        if search is None or not search.points:
            return None
        summaries = [side.result.rounds[point.round].summary for point in search.points]
        tried.append(Trials(search, summaries, side.name, side.role))
    figure = board.plot(
        "Goodput: share of requests within the service level, by rate",
        "Each point is a round; filled where enough requests met the service level.",
        [goodput_figure(tried)],
        spoken="Share of requests that met the service level against the rate, of A and B; the tables have the values.",
        key=BOTH,
    )
    tables = [
        joined(
            [tag("h3", side.chip, f": {found_rate(side.result)}"), account.search_table(each.search, each.summaries)]
        )
        for side, each in zip(sides, tried, strict=True)
    ]
    return section("search", title, plots(figure, wide=True), *tables)


def timeline_section(title: str, sides: Sequence[Side], board: Board) -> Html:
    """Each round of A over time, and beside it that of B."""
    pairs = _pairs(sides)
    figures = [timelines(side.result, side.samples, servers=2) for side in sides]
    drawn: list[Html | None] = []
    for name, what in TIMELINES.items():
        rows = [[found[rounds[at]].get(name) for _, rounds in pairs] for at, found in enumerate(figures)]
        for pair in zip(*rows, strict=True):
            _same_axes([each for each in pair if each is not None])
        drawn += [
            board.plot(
                joined([side.chip, f": {what}"]),
                "",
                row,
                spoken=f"{side.name}: {what} over time.",
                key=key_of(name, row),
                time="round",
            )
            for side, row in zip(sides, rows, strict=True)
        ]
    reading = note(joined(["The measured window is shaded. The axes of A and B are the same.", ZOOM]))
    choice = selector([label for label, _ in pairs], 0, "Show")
    return section("timeline", title, reading, tag("div", choice, plots(*drawn)))


def _pairs(sides: Sequence[Side]) -> list[tuple[str, list[int]]]:
    """Label and round of each side, to look at beside each other.

    Of two searches those that were compared, else the first with the first and so on.
    """
    if all(side.result.search is not None for side in sides):
        labels = [f"{side.name}: {round_label(side.result, side.rounds[0])}" for side in sides]
        return [(", ".join(labels), [side.rounds[0] for side in sides])]
    fewest = min(len(side.result.rounds) for side in sides)
    return [(f"Round {index + 1} of {fewest}", [index] * len(sides)) for index in range(fewest)]


def _same_axes(pair: Sequence[Figure]) -> None:
    """Give figures one range on each axis, in place."""
    values = [value for each in pair for line in each["data"] for value in line["y"] if value is not None]
    last = max((each["layout"]["xaxis"]["range"][1] for each in pair), default=1.0)
    spans = [each["layout"]["yaxis"].get("range") for each in pair]
    for each in pair:
        y = each["layout"]["yaxis"]
        if y.get("type") == "log":
            y["range"] = [min(span[0] for span in spans), max(span[1] for span in spans)]
        else:
            y["range"] = [0, max([*values, 1e-9]) * 1.06]
        each["layout"]["xaxis"] = {**each["layout"]["xaxis"], "range": [0, last]}


def length_section(title: str, sides: Sequence[Side], board: Board) -> Html:
    """Lengths of both, and what their prefix caches found."""
    found = []
    for side in sides:
        windows = [side.result.rounds[index].summary.window for index in side.rounds]
        found.append(lengths([side.samples[index] for index in side.rounds], windows))
    drawn = []
    for column, what in enumerate(("Prompt", "Output")):
        groups = [(side.name, side.role, each[column]) for side, each in zip(sides, found, strict=True)]
        figure = length_figure(groups, f"{what.lower()} tokens")
        spoken = f"Histograms of {what.lower()} lengths of A and B."
        drawn.append(board.plot(f"{what} lengths", "", [figure], spoken=spoken, key=BOTH))
    bars = [
        joined(
            [
                tag("h3", side.chip, ": cached share of the prompt tokens"),
                account.cached_bars(side.summary.cached_share, side.result.plan.ideal_cached_share),
            ]
        )
        for side in sides
    ]
    return section("lengths", title, plots(*drawn), note(account.CACHED_NOTE), *bars)
