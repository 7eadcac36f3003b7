"""The frame that both pages share."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.bench.report.markup import Html, joined, tag

ZOOM = tag("span", " Drag to zoom into a stretch of time in all of these plots, double-click to leave.", class_="drag")


def section(name: str, title: str, *content: object) -> Html:
    """A part of the page under a heading that the contents link to."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title")


def plots(*figures: object, wide: bool = False) -> Html:
    """Plots (or tables) beside each other where there is room, or each over the whole width."""
    return tag("div", *figures, class_="plots wide" if wide else "plots")


def note(text: object) -> Html:
    """How to read what follows."""
    return tag("p", text, class_="note")


def contents(sections: Mapping[str, str]) -> Html:
    """Links to the sections, id to title."""
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in sections.items())
    return tag("nav", tag("ul", *links), aria_label="Contents")


def copyable(text: str) -> Html:
    """Text with a button that copies it."""
    return joined(
        [
            tag("h3", "In short, to copy"),
            tag("pre", text, id="description", tabindex="0"),
            tag("p", tag("button", "Copy", type="button", id="copy")),
        ]
    )
