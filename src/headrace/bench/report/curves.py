"""Plotly figures of lengths, of the search for a rate, and of ratios between two servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.bench.report import series
from headrace.bench.report.figures import (
    Figure,
    Trace,
    bound,
    error_bars,
    figure,
    inwards,
    line_trace,
    log_range,
    numbers,
    seconds_axis,
)
from headrace.bench.report.markup import plot_text
from headrace.bench.results.samples import UNKNOWN, Floats, Ints
from headrace.bench.results.schema import Estimate, Point, Ratio, Search, Summary
from headrace.bench.results.wording import digits, duration, given, given_percent, percent, ratio, verdict

DASHES = ("solid", "dash")
SYMBOLS = {"a": "circle", "b": "square", "none": "diamond-open"}  # by verdict, which is also their role


def length_figure(groups: Sequence[tuple[str, str, Ints]], title: str) -> Figure | None:
    """Histograms of lengths in tokens, one a group of (name, role, lengths); None if nothing is known."""
    known = [(name, role, counts[counts != UNKNOWN]) for name, role, counts in groups]
    known = [group for group in known if len(group[2])]
    if not known:
        return None
    edges = series.length_edges(np.concatenate([counts for _, _, counts in known]))
    firsts, lasts = (edges[:-1] + 0.5).tolist(), (edges[1:] - 0.5).tolist()
    x: dict[str, Any] = {"title": {"text": title}, "tickformat": ",d"}
    if len(edges) > 2 and edges[-1] - edges[-2] > 2 * (edges[1] - edges[0]):
        x |= {"type": "log", "ticks": "number", "range": log_range([firsts[0], lasts[-1]])}
    elif len(edges) <= 6:
        # Few bars would be drawn as wide as the plot, over fractions of a token.
        x |= {"range": [firsts[0] - 4, lasts[-1] + 4], "tickvals": firsts}
    y = {"title": {"text": "requests"}, "rangemode": "tozero"}
    if len(known) == 1:
        return figure([_bars(*known[0], edges)], x, y, 240)
    return figure([_outline(*group, edges, dash) for group, dash in zip(known, DASHES, strict=False)], x, y, 240)


def _bin_names(edges: Floats) -> list[str]:
    ends = zip((edges[:-1] + 0.5).tolist(), (edges[1:] - 0.5).tolist(), strict=True)
    return [digits(low) if low == high else f"{digits(low)} to {digits(high)}" for low, high in ends]


def _bars(name: str, role: str, counts: Ints, edges: Floats) -> Trace:
    return {
        "type": "bar",
        "x": numbers((edges[:-1] + edges[1:]) / 2, 7),
        "width": numbers(np.diff(edges), 7),
        "y": np.histogram(counts, edges)[0].tolist(),
        "name": plot_text(name),
        "customdata": _bin_names(edges),
        "marker": {"color": f"@{role}", "line": {"width": 0.5, "color": "@card"}},
        "hovertemplate": "%{y:,} requests of %{customdata} tokens<extra></extra>",
    }


def _outline(name: str, role: str, counts: Ints, edges: Floats, dash: str) -> Trace:
    """The tops of the bars: of two servers with the same lengths both can be seen."""
    heights = np.histogram(counts, edges)[0].tolist()
    line = {"shape": "hv", "dash": dash}
    told = "%{y:,} requests of %{customdata} tokens<extra>%{fullData.name}</extra>"
    x, y = numbers(np.concatenate([edges[:1], edges]), 7), [0, *heights, 0]
    names = _bin_names(edges)
    return line_trace(x, y, name, role, line=line, customdata=[names[0], *names, names[-1]], hovertemplate=told)


@dataclass(frozen=True, slots=True)
class Trials:
    """A search and what it saw.

    Attributes:
        search: With at least one point.
        summaries: Of each point.
        name: For texts beside lines; may be empty.
        role: Colour.
    """

    search: Search
    summaries: Sequence[Summary]
    name: str
    role: str

    def by_rate(self) -> list[tuple[Point, Summary]]:
        """Points and what was seen there, by ascending rate; of a rate that was tried again the last trial."""
        last = {point.rate: (point, found) for point, found in zip(self.search.points, self.summaries, strict=True)}
        return [last[rate] for rate in sorted(last)]


def goodput_figure(tried: Sequence[Trials]) -> Figure:
    """Share of requests that met the service level over the rate."""
    data: list[Trace] = []
    bounds = []
    highest = max(point.rate for trials in tried for point in trials.search.points) * 1.05
    lowest = target = tried[0].search.target_share
    for row, trials in enumerate(tried):
        shares = [Estimate(0.0) if found.goodput is None else found.goodput.share for _, found in trials.by_rate()]
        lowest = min(lowest, *(share.value if share.low is None else share.low for share in shares))
        data.append(_goodput_line(trials, shares))
        most = trials.search.max_rate
        if most is not None:
            text = f"{trials.name} max {given(most)} requests/s".strip()
            anchor = inwards(most / highest)
            bounds.append(bound(most, "x", text, log=False, role=trials.role, yshift=14 * row, xanchor=anchor))
    low, high = lowest - 0.06 * (1 - lowest), 1 + 0.06 * (1 - lowest)
    bounds.append(bound(target, "y", f"target {given_percent(target)}", log=False, x=0, xanchor="left", yanchor="top"))
    x = {"title": {"text": "requests a second asked for"}, "range": [0, highest]}
    y = {"title": {"text": "share that met the SLO"}, "tickformat": ".4~%", "range": [low, high]}
    return figure(data, x, y, 330, bounds, margin={"t": 10 + 14 * max(1, len(tried))})


def _goodput_line(trials: Trials, shares: Sequence[Estimate]) -> Trace:
    points = trials.by_rate()
    told = [
        f"{percent(share.value)} of {found.requests:,} requests<br>{'met' if point.met else 'did not meet'} the target"
        for (point, found), share in zip(points, shares, strict=True)
    ]
    more = {
        "mode": "lines+markers",
        "marker": _markers(points, trials.role),
        "line": {"width": 1.5},
        "text": told,
        "error_y": error_bars(shares, trials.role),
        "hovertemplate": "%{x:.4~g} requests/s<br>%{text}<extra>%{fullData.name}</extra>",
    }
    rates = [point.rate for point, _ in points]
    return line_trace(rates, [share.value for share in shares], trials.name, trials.role, **more)


def _markers(points: Sequence[tuple[Point, Summary]], role: str) -> dict[str, Any]:
    """Filled where the service level was kept."""
    symbols = ["circle" if point.met else "circle-open" for point, _ in points]
    return {"size": 9, "symbol": symbols, "color": f"@{role}", "line": {"width": 1.5, "color": f"@{role}"}}


def trade_off_figure(trials: Trials, key: str, name: str) -> Figure | None:
    """p50 and p99 of a latency against throughput, one point a rate; None where either is not known."""
    points = [pair for pair in trials.by_rate() if key in pair[1].latency and "output_tokens" in pair[1].rates]
    if not points:
        return None
    data = []
    for percentile, dash in (("p99", "solid"), ("p50", "dot")):
        estimates = [found.latency[key].percentiles[percentile] for _, found in points]
        more = {
            "mode": "lines+markers",
            "marker": _markers(points, trials.role),
            "line": {"dash": dash, "width": 1.5},
            "error_y": error_bars(estimates, trials.role),
            "customdata": [point.rate for point, _ in points],
            "hovertemplate": (
                "%{y}s at %{x:,.0f} tokens/s<br>%{customdata:.4~g} requests/s due<extra>%{fullData.name}</extra>"
            ),
        }
        throughput = [found.rates["output_tokens"].value for _, found in points]
        values = [each.value for each in estimates]
        data.append(line_trace(throughput, values, f"{name} {percentile}", trials.role, **more))
    slo = next((found.goodput.slo for _, found in points if found.goodput is not None), {})
    bounds = [bound(slo[key], "y", f"SLO {duration(slo[key])}", log=True, x=0, xanchor="left")] if key in slo else []
    x = {"title": {"text": "output tokens a second"}, "rangemode": "tozero", "tickformat": ",~r"}
    y = seconds_axis(name, [value for line in data for value in line["y"]] + [slo.get(key)], pad=0.1)
    return figure(data, x, y, 310, bounds)


def forest_figure(ratios: Sequence[Ratio], names: Mapping[str, str]) -> Figure:
    """Ratios of A to B with their intervals, one a row, the first on top.

    Args:
        ratios: At least one.
        names: Measure to what it is called.
    """
    rows = {each.measure: len(ratios) - row for row, each in enumerate(ratios)}
    data = []
    for role, symbol in SYMBOLS.items():
        chosen = [each for each in ratios if each.verdict == role]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [each.ratio.value for each in chosen],
                "y": [rows[each.measure] for each in chosen],
                "text": [verdict(each) for each in chosen],
                "marker": {"color": f"@{role}", "symbol": symbol, "size": 9, "line": {"width": 2, "color": f"@{role}"}},
                "error_x": error_bars([each.ratio for each in chosen], role),
                "customdata": [plot_text(names[each.measure]) for each in chosen],
                "hovertemplate": "%{customdata}<br>A / B = %{x:.3f}<extra>%{text}</extra>",
            }
        )
    ends = [end for each in ratios for end in (each.ratio.low, each.ratio.value, each.ratio.high)]
    x = {"type": "log", "ticks": "number", "title": {"text": "A / B"}, "range": log_range([*ends, 0.95, 1.05])}
    told = [
        f"{plot_text(names[each.measure])}<br><span style='font-size: 11px'>{ratio(each.ratio.value)}, "
        f"{verdict(each)}</span>"
        for each in ratios
    ]
    y = {
        "tickvals": list(rows.values()),
        "ticktext": told,
        "range": [0.4, len(ratios) + 0.6],
        "automargin": True,
        "fixedrange": True,
    }
    one = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": "@ink", "width": 1}}
    return figure([each for each in data if each["x"]], x, y, 80 + 33 * len(ratios), shapes=[one | {"layer": "below"}])
