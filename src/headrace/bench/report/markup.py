"""HTML that escapes what it is given, and text as a page has it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime


class Html(str):
    """Text that is markup already. ``tag`` and ``joined`` escape every other string."""

    __slots__ = ()


def joined(parts: Iterable[object], between: str = "") -> Html:
    """The parts one after the other; what is not ``Html`` is escaped, ``None`` is left out."""
    return Html(html.escape(between).join(_markup(part) for part in parts if part is not None))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element; ``class_`` means ``class``, ``data_x`` means ``data-x``, ``None`` and ``False`` no attribute."""
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written.append(" " + key.rstrip("_").replace("_", "-"))
        if value is not True:
            written.append(f'="{html.escape(str(value))}"')
    opening = f"<{name}{''.join(written)}>"
    return Html(opening if name in {"br", "hr", "meta"} else f"{opening}{joined(children)}</{name}>")


def _markup(part: object) -> str:
    return part if isinstance(part, Html) else html.escape(str(part))


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> Html:
    """A table that scrolls sideways by itself where it is too wide; the first column heads its rows.

    Args:
        caption: What it shows.
        head: A heading a column; all empty for none.
        rows: As many cells a row.
        text_columns: So many columns from the left are text, the others are figures and stand to the right.
    """

    def kind(column: int) -> str | None:
        return None if column < text_columns else "n"

    body = [
        tag(
            "tr",
            *(
                tag("td" if column else "th", cell, class_=kind(column), scope=None if column else "row")
                for column, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    headings = (tag("th", cell, scope="col", class_=kind(column)) for column, cell in enumerate(head))
    above = tag("thead", tag("tr", *headings)) if any(head) else None
    content = tag("table", tag("caption", tag("span", caption)), above, tag("tbody", joined(body)))
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def plot_text(text: str, longest: int = 48) -> str:
    """Text for a figure: Plotly reads a little HTML in its labels, which text from elsewhere must not be."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    return html.escape(short, quote=False)


def unbroken(text: str) -> str:
    """Text whose lines end only after commas."""
    return text.replace(" ", "\u00a0").replace(",\u00a0", ", ")


def counted(count: int, noun: str) -> str:
    """Such as ``1 request``, ``1,200 requests``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def moment(iso: str) -> str:
    """A moment as people write it, in the zone that it was noted in; what cannot be read stays as it is."""
    try:
        read = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    offset = read.utcoffset()
    zone = "" if offset is None else " UTC" if not offset else read.strftime(" %z")
    return f"{read.day} {read:%B %Y, %H:%M}{zone}"
