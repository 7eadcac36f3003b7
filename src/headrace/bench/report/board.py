"""The plots of a page: where they stand, and the figures that its script draws there."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.bench.report.figures import Figure
from headrace.bench.report.markup import Html, joined, tag


class Board:
    """Collects the figures while the page is written."""

    def __init__(self) -> None:
        self._plots: dict[str, list[Figure | None]] = {}

    def plot(
        self,
        title: object,
        caption: object,
        figures: Sequence[Figure | None],
        *,
        spoken: str,
        key: Sequence[tuple[str, str, str]] = (),
        time: str | None = None,
    ) -> Html | None:
        """The place of a plot; None if there is nothing to draw.

        Args:
            title: Above it.
            caption: Below the title: what it shows and how to read it.
            figures: One, or one a round, of which the selector chooses.
            spoken: What a screen reader says instead of the picture.
            key: What the lines mean: name, role, stroke (``solid``, ``dotted``, ``dot``, ``cross``).
            time: Plots of the same such name show the same stretch of time.
        """
        if not any(figures):
            return None
        name = f"plot-{len(self._plots)}"
        self._plots[name] = list(figures)
        heights = [each["layout"]["height"] for each in figures if each]
        place = tag(
            "div",
            class_="plot",
            data_plot=name,
            data_time=time,
            role="img",
            aria_label=spoken,
            style=f"min-height: {max(heights)}px",
        )
        return tag("figure", tag("h3", title), tag("figcaption", caption, _legend(key)), place)

    def json(self) -> Html:
        """All figures by name, safe to stand in a ``script`` element."""
        return Html(msgspec.json.encode(self._plots).decode().replace("<", "\\u003c"))


def _legend(key: Sequence[tuple[str, str, str]]) -> Html | None:
    if not key:
        return None
    parts = (
        tag("span", tag("i", class_=stroke, style=f"color: var(--{role})", aria_hidden="true"), name)
        for name, role, stroke in key
    )
    return tag("span", *parts, class_="key")


def per_round(panels: Sequence[object], chosen: int) -> Html:
    """Of several panels, one a round, the selector shows one."""
    if len(panels) == 1:
        return joined(panels)
    return joined(tag("div", panel, data_round=index, hidden=index != chosen) for index, panel in enumerate(panels))


def selector(labels: Sequence[str], chosen: int, what: str) -> Html | None:
    """A choice of the round that the plots and panels below it show; None where there is one only."""
    if len(labels) < 2:
        return None
    options = (tag("option", label, value=index, selected=index == chosen) for index, label in enumerate(labels))
    return tag("p", tag("label", f"{what} ", tag("select", *options, id="round")), class_="selector")
