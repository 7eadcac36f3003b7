"""The curves of sweeps: what all users get together against what each of them gets, a point a load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.bench.report.board import Board
from headrace.bench.report.figures import Axis, Figure, Trace, bound, error_bars, figure, line_trace, seconds_axis
from headrace.bench.report.markup import Html, joined, table, tag
from headrace.bench.report.sections import note, plots, section
from headrace.bench.results.schema import Estimate, Summary, Swept
from headrace.bench.results.sweeps import holds_start, loads_of
from headrace.bench.results.table import sweep_table
from headrace.bench.results.wording import duration, given, load_size

ROLES = "abcdef"
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
PLACES = ("top right", "bottom left", "bottom right", "top left")  # of the labels: clear of the error bars

Read = Callable[[Summary], Estimate | None]


class Point(NamedTuple):
    """A load in a figure.

    Attributes:
        label: Beside it.
        name: What the load is, in words.
        sound: Whether its round is certified, and long enough.
        figures: Where it stands.
    """

    label: str
    name: str
    sound: bool
    figures: list[Estimate]


@dataclass(frozen=True, slots=True)
class ShownSweep:
    """A sweep with what tells it from the others on the page.

    Attributes:
        swept: Its name and result.
        number: Its place among them, from 0.
    """

    swept: Swept
    number: int

    @property
    def role(self) -> str:
        """Its colour."""
        return ROLES[self.number % len(ROLES)]

    @property
    def chip(self) -> Html:
        """Its name beside its colour."""
        return joined([tag("span", class_=f"chip {self.role}"), self.swept.name])

    def points(self, *read: Read) -> list[Point]:
        """Of each load at which all figures that are read are known: its text, its round, and the figures."""
        found = []
        for over, load, each in loads_of(self.swept.result):
            figures = [get(each.summary) for get in read]
            known = [figure for figure in figures if figure is not None]
            if len(known) == len(read):
                sound = each.certificate.certified and not holds_start(over, load, each)
                found.append(Point(given(load), load_size(over, load), sound, known))
        return found


def _throughput(summary: Summary) -> Estimate | None:
    return summary.rates.get("output_tokens")


def _interactivity(summary: Summary) -> Estimate | None:
    return summary.user_tokens


def _slow_first_token(summary: Summary) -> Estimate | None:
    found = summary.latency.get("ttft")
    return None if found is None else found.percentiles.get("p99")


def throughput_figure(shown: Sequence[ShownSweep]) -> Figure | None:
    """Output tokens a second of all users over those of one; None where they are not known."""
    told = "%{y:,.4~r} tokens/s of all<br>%{x:,.4~r} of each user<br>%{customdata}<extra>%{fullData.name}</extra>"
    data = _lines(shown, _interactivity, _throughput, told)
    if not data:
        return None
    x = _from_zero("output tokens a second of a user", data, "x")
    y = _from_zero("output tokens a second of all", data, "y")
    return figure(data, x, y, 400)


def first_token_figure(shown: Sequence[ShownSweep]) -> Figure | None:
    """p99 of the time to first token over output tokens a second; None where they are not known."""
    told = "%{y}s at %{x:,.4~r} tokens/s<br>%{customdata}<extra>%{fullData.name}</extra>"
    data = _lines(shown, _throughput, _slow_first_token, told)
    if not data:
        return None
    slo = _bound_of_first(shown)
    bounds = [] if slo is None else [bound(slo, "y", f"SLO {duration(slo)}", log=True, x=0, xanchor="left")]
    x = _from_zero("output tokens a second of all", data, "x")
    y = seconds_axis("TTFT p99", [*(value for line in data for value in line["y"]), slo], pad=0.15)
    return figure(data, x, y, 400, bounds)


def _bound_of_first(shown: Sequence[ShownSweep]) -> float | None:
    """The bound of TTFT that all have."""
    goodputs = [each.summary.goodput for sweep in shown for each in sweep.swept.result.rounds]
    bounds = {None if each is None else each.slo.get("ttft") for each in goodputs}
    return bounds.pop() if len(bounds) == 1 else None


def _from_zero(title: str, lines: Sequence[Trace], axis: Literal["x", "y"]) -> Axis:
    """An axis from 0 that holds the points and their intervals."""
    ends = [
        value + more for line in lines for value, more in zip(line[axis], line[f"error_{axis}"]["array"], strict=True)
    ]
    return {"title": {"text": title}, "tickformat": ",~r", "range": [0, 1.12 * max([*ends, 1e-9])]}


def _lines(shown: Sequence[ShownSweep], x: Read, y: Read, told: str) -> list[Trace]:
    lines = (_line(sweep, x, y, told) for sweep in shown)
    return [line for line in lines if line is not None]


def _line(sweep: ShownSweep, x: Read, y: Read, told: str) -> Trace | None:
    points = sweep.points(x, y)
    if not points:
        return None
    role, at = sweep.role, sweep.number % len(ROLES)
    symbols = [SYMBOLS[at] + ("" if point.sound else "-open") for point in points]
    horizontal, vertical = ([point.figures[axis] for point in points] for axis in (0, 1))
    return line_trace(
        [each.value for each in horizontal],
        [each.value for each in vertical],
        sweep.swept.name,
        role,
        mode="lines+markers+text",
        line={"width": 1.5},
        marker={"size": 9, "symbol": symbols, "color": f"@{role}", "line": {"width": 1.5, "color": f"@{role}"}},
        text=[point.label for point in points],
        textposition=PLACES[sweep.number % len(PLACES)],
        textfont={"color": f"@{role}", "size": 11},
        error_x=error_bars(horizontal, role),
        error_y=error_bars(vertical, role),
        customdata=[point.name for point in points],
        hovertemplate=told,
    )


def trade_off_section(title: str, sweeps: Sequence[Swept], board: Board) -> Html:
    """Curves and table of one sweep or several, all over the same kind of load."""
    shown = [ShownSweep(each, number) for number, each in enumerate(sweeps)]
    key = [(each.swept.name, each.role, "solid") for each in shown] if len(shown) > 1 else []
    over = next((each.result.sweep.over for each in sweeps if each.result.sweep is not None), "concurrency")
    label = "how many sessions ran at a time" if over == "concurrency" else "how many requests a second were due"
    throughput = board.plot(
        "Throughput against interactivity",
        "Up is more tokens for all, right is faster answers for each: a curve above and right of another is better.",
        [throughput_figure(shown)],
        spoken="Output tokens per second of all users against those of one; the table below has the values.",
        key=key,
    )
    first = board.plot(
        "Time to first token (TTFT p99) against throughput",
        "Right is more tokens for all, up is a longer wait for the first.",
        [first_token_figure(shown)],
        spoken="TTFT p99 against output tokens per second; the table below has the values.",
        key=key,
    )
    reading = (
        f"Each point is a load, its number {label}; hollow where the round is not certified, or too short: its window "
        "holds the start, when all sessions ask at once. Bars are 95 % confidence "
        "intervals. What a user gets is 1 / TPOT p50."
    )
    head, rows = sweep_table(sweeps)
    loads = table("Every load.", head, rows, text_columns=2 if len(sweeps) > 1 else 1)
    return section("curve", title, note(reading), plots(throughput, first), loads)
