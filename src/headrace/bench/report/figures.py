"""Plotly figures as plain dictionaries: their parts, and distributions.

A colour is a role, such as ``@ttft``, or ``@ttft/0.2`` for a translucent one: the page's script looks it up in the
style sheet, so that one figure serves the light and the dark page. Logarithmic axes get their ticks from the script
too (``meta.ticks`` of the layout), which knows how wide the page is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headrace.bench.report import series
from headrace.bench.report.markup import plot_text
from headrace.bench.results.samples import Floats, Ints
from headrace.bench.results.schema import Distribution, Estimate
from headrace.bench.results.wording import duration

Figure = dict[str, Any]
Trace = dict[str, Any]
Axis = dict[str, Any]
Part = dict[str, Any]

SHARES = (1, 10, 50, 90, 99, 99.9, 99.99, 99.999, 99.9999)
LABELLED = ("p50", "p90", "p99")
BACKED = {"bgcolor": "@card/0.8", "borderpad": 1}


def figure(
    data: Sequence[Trace],
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    height: int,
    bounds: Sequence[tuple[Part, Part]] = (),
    **layout: Any,
) -> Figure:
    """A figure with one pair of axes, without a legend (the page has it beside the plot).

    Args:
        data: The traces.
        x: Axis.
        y: Axis.
        height: In CSS pixels.
        bounds: Lines across the plot, as ``bound`` gives them.
        layout: More of the layout.
    """
    ticks = {name: axis["ticks"] for name, axis in (("xaxis", x), ("yaxis", y)) if "ticks" in axis}
    plain = [{key: value for key, value in axis.items() if key != "ticks"} for axis in (x, y)]
    lines, labels = [line for line, _ in bounds], [label for _, label in bounds]
    whole = {"hovermode": "closest", **layout, "shapes": [*layout.get("shapes", ()), *lines], "annotations": labels}
    axes = {"xaxis": plain[0], "yaxis": plain[1]}
    return {
        "data": list(data),
        "layout": {**axes, "height": height, "showlegend": False, "meta": {"ticks": ticks}, **whole},
    }


def seconds_axis(title: str, values: Iterable[float | None], pad: float = 0.05) -> Axis:
    """A logarithmic axis of durations that holds the values."""
    span = log_range(values, pad)
    return {"type": "log", "ticks": "seconds", "title": {"text": title}, "range": span, "hoverformat": ".3~s"}


def log_range(values: Iterable[float | None], pad: float = 0.05) -> list[float]:
    """The range of a logarithmic axis that holds the positive values; ``pad`` is the room at both ends."""
    known = [math.log10(value) for value in values if value is not None and 0 < value < math.inf] or [-2.0, 0.0]
    low, high = min(known), max(known)
    room = max(pad * (high - low), 0.03)
    return [low - room, high + room]


def numbers(values: Floats | Ints, digits: int = 4) -> list[float | None]:
    """Values for JSON, with so many significant digits; what is not finite is null."""
    return [float(f"{value:.{digits}g}") if abs(value) < math.inf else None for value in values.tolist()]


def line_trace(x: list[Any], y: list[Any], name: str, role: str, **more: Any) -> Trace:
    """A line."""
    line = {"color": f"@{role}", "width": 2, **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": plot_text(name), "line": line, **more}


def error_bars(estimates: Sequence[Estimate], role: str) -> dict[str, Any]:
    """Intervals of points, for ``error_x`` or ``error_y``."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if each.high is None else each.high - each.value for each in estimates],
        "arrayminus": [0.0 if each.low is None else each.value - each.low for each in estimates],
        "color": f"@{role}",
        "thickness": 1.5,
        "width": 4,
    }


def bound(
    at: float, axis: Literal["x", "y"], text: str, *, log: bool, role: str = "bound", **place: Any
) -> tuple[Part, Part]:
    """A dashed line across the plot at a value of an axis, and its text.

    Args:
        at: The value.
        axis: Whose value it is.
        text: Stands at the upper end of an upright line, above the right end of a level one.
        log: The axis is logarithmic.
        role: Colour.
        place: Where the text stands instead.
    """
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    line = {"type": "line", **ends, "line": {"color": f"@{role}", "width": 1.5, "dash": "dash"}}
    anchors = {"xanchor": "center" if axis == "x" else "right", "yanchor": "bottom"}
    label = {
        "text": plot_text(text),
        "font": {"color": f"@{role}", "size": 11},
        "showarrow": False,
        # Annotations, unlike shapes, stand at the logarithm.
        axis: math.log10(at) if log else at,
        other: 1,
        f"{other}ref": "paper",
        **anchors,
        **BACKED,
        **place,
    }
    return line, label


def inwards(place: float) -> str:
    """How to anchor a text at this share of the width so that it stays inside."""
    return "left" if place < 0.2 else "right" if place > 0.8 else "center"


@dataclass(frozen=True, slots=True)
class Curve:
    """A distribution to draw.

    Attributes:
        values: Seconds, float64 [n].
        name: For the hover text.
        role: Colour.
        marks: Its percentiles with their intervals, if they are to be marked.
    """

    values: Floats
    name: str
    role: str
    marks: Distribution | None = None


def stretched(share: float) -> float:
    """Where a share stands on an axis that gives both tails room: its logit, base 10."""
    return math.log10(share / (1 - share))


def distribution_figure(curves: Sequence[Curve], name: str, unit: str, slo: float | None, most: int) -> Figure | None:
    """Cumulative distributions over the logarithm of the latency; None if nothing took any time.

    Args:
        curves: Those without values above 0 are left out.
        name: Of the latency.
        unit: What is counted: requests, gaps.
        slo: Bound of the service level, seconds, or None.
        most: Points a curve at most.
    """
    drawn = [curve for curve in curves if curve.values.any()]
    if not drawn:
        return None
    ends = [end for curve in drawn for end in _ends(curve.values)]
    x = seconds_axis(name, [*ends, slo], pad=0.06)
    data = [_distribution_line(curve, unit, most) for curve in drawn]
    data += [_percentile_marks(curve, curve.marks) for curve in drawn if curve.marks is not None]
    largest = max(len(curve.values) for curve in drawn)
    top = max(stretched(1 - 0.5 / max(largest, 2)), 1.3) + 0.2
    ticks = [share for share in SHARES if stretched(share / 100) < top]
    y = {
        "title": {"text": f"share of {unit} no slower"},
        "range": [-2.1, top],
        "tickvals": [stretched(share / 100) for share in ticks],
        "ticktext": [f"{share:g} %" for share in ticks],
    }
    bounds = []
    if slo is not None:
        place = (math.log10(slo) - x["range"][0]) / (x["range"][1] - x["range"][0])
        bounds.append(bound(slo, "x", f"SLO {duration(slo)}", log=True, xanchor=inwards(place)))
    drawing = figure(data, x, y, 310, bounds)
    if len(drawn) == 1 and drawn[0].marks is not None:
        drawing["layout"]["annotations"] += _percentile_labels(drawn[0].marks, x["range"])
    return drawing


def _ends(values: Floats) -> tuple[float, float]:
    """From where to where a curve is worth showing: the axis begins at 1 %, and zeros have no logarithm."""
    high = float(values.max())
    positive = values[values > 0]
    low = max(float(np.quantile(values, 0.008)), float(positive.min(initial=high)), high * 1e-4, 1e-6)
    return min(low, max(high, 1e-6)), max(high, 1e-6)


def _distribution_line(curve: Curve, unit: str, most: int) -> Trace:
    x, slower = series.tail_curve(curve.values, most)
    share = 1 - slower + 0.5 / len(curve.values)
    return line_trace(
        numbers(x),
        numbers(np.log10(share / (1 - share))),
        curve.name,
        curve.role,
        line={"shape": "vh"} if len(x) < 400 else {},
        customdata=numbers(100 * slower),
        hovertemplate=f"%{{customdata}} % of {unit}<br>took %{{x}}s or longer<extra>%{{fullData.name}}</extra>",
    )


def _percentile_marks(curve: Curve, marks: Distribution) -> Trace:
    estimates = list(marks.percentiles.values())
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [each.value for each in estimates],
        "y": [round(stretched(_share(name)), 4) for name in marks.percentiles],
        "text": [f"{name} {duration(each.value)}" for name, each in marks.percentiles.items()],
        "name": plot_text(curve.name),
        "marker": {"color": f"@{curve.role}", "size": 7},
        "error_x": error_bars(estimates, curve.role),
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
    }


def _percentile_labels(marks: Distribution, span: Sequence[float]) -> list[Part]:
    """Texts beside the intervals, on the side that has more room."""
    labels = []
    for name in LABELLED:
        found = marks.percentiles.get(name)
        if found is None or found.value <= 0:
            continue
        low, high = (math.log10(end or found.value) for end in (found.low, found.high))
        left = low - span[0] > span[1] - high
        labels.append(
            {
                "x": low if left else high,
                "y": stretched(_share(name)),
                "xanchor": "right" if left else "left",
                "xshift": -5 if left else 5,
                "text": f"{name} {duration(found.value)}",
                "font": {"size": 11},
                "showarrow": False,
                **BACKED,
            }
        )
    return labels


def _share(percentile: str) -> float:
    """The share that a percentile's name tells: 0.99 of ``p99``."""
    return min(max(float(percentile[1:]) / 100, 1e-6), 1 - 1e-6)
