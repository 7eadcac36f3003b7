"""Plotly figures of what happened in a round, moment by moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from headrace.bench.report import series
from headrace.bench.report.figures import Axis, Figure, Trace, bound, figure, line_trace, numbers, seconds_axis
from headrace.bench.report.markup import plot_text
from headrace.bench.results.latency import Latencies, latencies
from headrace.bench.results.measure import prompt_tokens
from headrace.bench.results.samples import UNKNOWN, Floats, Ints, Samples
from headrace.bench.results.wording import duration

# Name, role and stroke of the lines of each plot: the page writes them beside it.
KEYS = {
    "activity": (
        ("streaming", "tpot", "solid"),
        ("waiting for the first token", "ttft", "solid"),
        ("in the server’s queue", "queue", "dotted"),
    ),
    "flow": (("due", "due", "solid"), ("completed", "e2e", "solid")),
    "tokens": (),
    "first": (("answered", "ttft", "dot"), ("failed, in a row on top", "error", "cross")),
}


def timeline_figures(
    samples: Samples, window: tuple[float, float], slo: Mapping[str, float], most: int
) -> dict[str, Figure]:
    """The plots over time by name: ``activity``, ``flow``, ``tokens`` where counts are known, ``first``.

    Args:
        samples: Of the round.
        window: What was measured of it, shaded.
        slo: The service level, by latency.
        most: Points of the scatter plot at most.
    """
    shared: dict[str, Any] = {"shapes": [_window_shape(window)], "hovermode": "x unified"}
    x = {
        "title": {"text": "seconds since the round began"},
        "range": [0, series.extent(samples) or 1.0],
        "hoverformat": ".1f",
    }
    flow = series.flow(samples)
    figures = {
        "activity": figure(_activity(samples), x, _count_axis("requests", ".1f"), 230, **shared),
        "flow": figure(
            [_steps(flow.edges, flow.due, "due", "due"), _steps(flow.edges, flow.completed, "completed", "e2e")],
            x,
            _count_axis("requests/s", ".3~g"),
            210,
            **shared,
        ),
    }
    if flow.output_tokens is not None:
        tokens = _steps(flow.edges, flow.output_tokens, "output tokens/s", "tpot", **_filled("tpot"))
        figures["tokens"] = figure([tokens], x, _count_axis("tokens/s", ",.0f"), 200, **shared)
    figures["first"] = _first_tokens(samples, x, window, slo.get("ttft"), most)
    return figures


def key_of(name: str, figures: Iterable[Figure | None]) -> list[tuple[str, str, str]]:
    """What the lines of a plot mean, those that any of its figures has."""
    drawn = {
        part["color"]
        for each in figures
        if each is not None
        for line in each["data"]
        for part in (line.get("line", {}), line.get("marker", {}))
        if "color" in part
    }
    return [each for each in KEYS[name] if f"@{each[1]}" in drawn]


def _count_axis(title: str, hover: str) -> Axis:
    return {"title": {"text": title}, "rangemode": "tozero", "hoverformat": hover, "fixedrange": True}


def _window_shape(window: tuple[float, float]) -> dict[str, Any]:
    """The measured window as a shaded stretch of time."""
    place = {"x0": window[0], "x1": window[1], "y0": 0, "y1": 1, "yref": "paper"}
    return {"type": "rect", "layer": "below", "fillcolor": "@window", "line": {"width": 0}, **place}


def _filled(role: str) -> dict[str, Any]:
    return {"fill": "tozeroy", "fillcolor": f"@{role}/0.15"}


def _steps(edges: Floats, values: Floats, name: str, role: str, **more: Any) -> Trace:
    """Values of bins as a staircase."""
    heights = numbers(np.concatenate([values, values[-1:]]))
    return line_trace(numbers(edges, 6), heights, name, role, line={"shape": "hv"}, hovertemplate="%{y}", **more)


def _activity(samples: Samples) -> list[Trace]:
    found = series.activity(samples)
    x = numbers((found.edges[:-1] + found.edges[1:]) / 2, 6)
    streaming, waiting, queued = KEYS["activity"]
    data = [
        line_trace(x, numbers(found.streaming), *streaming[:2], hovertemplate="%{y}", **_filled(streaming[1])),
        line_trace(x, numbers(found.waiting), *waiting[:2], hovertemplate="%{y}"),
    ]
    if found.queued is not None:
        dotted = {"dash": "dot"}
        data.append(line_trace(x, numbers(found.queued), *queued[:2], line=dotted, hovertemplate="%{y}"))
    return data


def _first_tokens(samples: Samples, x: Axis, window: tuple[float, float], slo: float | None, most: int) -> Figure:
    """TTFT of each request over the moment at which it was due; what failed stands in a row on top."""
    found = latencies(samples)
    ttft = found.ttft
    answered = np.flatnonzero(samples.succeeded & ~np.isnan(ttft))
    answered = answered[series.thinned(samples.due[answered], ttft[answered], most)]
    failed = np.flatnonzero([kind != "" for kind in samples.error])
    failed = failed[series.thinned(samples.due[failed], np.zeros(len(failed)), most // 2)]
    seconds = np.maximum(ttft[answered], 1e-6)
    top = float(np.max(seconds, initial=slo or 1e-3)) * 1.6
    data = [_answers(samples, found, answered, seconds)]
    shown = [*seconds.tolist(), slo]
    if len(failed):
        data.append(_failures(samples, failed, top))
        shown.append(top)
    y = {**seconds_axis("TTFT", shown, pad=0.06), "fixedrange": True}
    bounds = [] if slo is None else [bound(slo, "y", f"SLO {duration(slo)}", log=True)]
    return figure(data, x, y, 300, bounds, shapes=[_window_shape(window)])


def _answers(samples: Samples, found: Latencies, rows: Ints, seconds: Floats) -> Trace:
    def told(column: Ints) -> list[Any]:
        return ["unknown" if count == UNKNOWN else count for count in column[rows].tolist()]

    columns = (
        samples.session[rows].tolist(),
        samples.turn[rows].tolist(),
        told(prompt_tokens(samples)),
        told(samples.output_tokens),
        numbers(found.e2e[rows]),
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(samples.due[rows], 6),
        "y": numbers(seconds),
        "name": "answered",
        "customdata": list(zip(*columns, strict=True)),
        "marker": {"color": "@ttft", "size": 5, "opacity": 0.6},
        "hovertemplate": (
            "TTFT %{y}s<br>due at %{x:.2f} s<br>session %{customdata[0]}, turn %{customdata[1]}<br>"
            "%{customdata[2]} prompt tokens, %{customdata[3]} output tokens<br>"
            "end to end %{customdata[4]:.3~s}s<extra></extra>"
        ),
    }


def _failures(samples: Samples, rows: Ints, height: float) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(samples.due[rows], 6),
        "y": numbers(np.full(len(rows), height)),
        "name": "failed",
        "text": [plot_text(samples.error[row]) for row in rows.tolist()],
        "marker": {"color": "@error", "size": 8, "symbol": "x-thin", "line": {"color": "@error", "width": 2}},
        "hovertemplate": "%{text}<br>due at %{x:.2f} s<extra>failed</extra>",
    }
