"""HTML that escapes what it is given, and figures as people read them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from headrace.bench.results.schema import Estimate

NOT_KNOWN = "–"


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


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    if not math.isfinite(value):
        return NOT_KNOWN
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 99.95:
        return f"{value:,.0f}" if size < 1e15 else f"{value:.3g}"
    if size < 1e-4:
        return f"{value:.3g}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}"


def given(value: float) -> str:
    """A figure that somebody chose, without digits that say nothing: ``8``, ``5.5``, ``5.477``."""
    return number(value) if abs(value) >= 1e4 else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """Such as ``1 request``, ``1,200 requests``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Such as ``0.31 ms``, ``312 ms``, ``4.21 s``."""
    if not math.isfinite(seconds):
        return NOT_KNOWN
    return f"{number(seconds * 1e3)} ms" if abs(seconds) < 0.9995 else f"{number(seconds)} s"


def span(seconds: Sequence[float | None], between: str = "–") -> str:
    """Durations in one unit if they are of one size, such as ``301–322 ms``; ``?`` where there is none."""
    known = [abs(value) for value in seconds if value is not None and math.isfinite(value)]
    if not known:
        return NOT_KNOWN
    scale, unit = (1e3, "ms") if max(known) < 0.9995 else (1.0, "s")
    if unit == "s" and min(known) < 0.1:
        return between.join("?" if value is None else duration(value) for value in seconds)
    return between.join("?" if value is None else number(value * scale) for value in seconds) + f" {unit}"


def percent(share: float) -> str:
    """A share of one as per cent; near the ends with as many digits as tell it from them."""
    if not 0 <= share <= 1:
        return NOT_KNOWN if math.isnan(share) else f"{number(100 * share)} %"
    distance = min(abs(share), abs(1 - share))
    if 0 < distance < 1e-6:
        return "> 99.9999 %" if share > 0.5 else "< 0.0001 %"
    digits = 0 if distance == 0 else max(1, 1 - math.floor(math.log10(distance * 100)))
    return f"{100 * share:.{digits}f} %"


def round_percent(share: float) -> str:
    """A share that somebody chose, such as ``99 %``, ``99.95 %``."""
    return f"{100 * share:.6g} %"


def interval(estimate: Estimate, unit: str) -> str:
    """The 95 % confidence interval, ``?`` for an end that the sample cannot give.

    Args:
        estimate: The figure.
        unit: ``seconds``, ``share`` or ``number``.
    """
    ends = (estimate.low, estimate.high)
    if ends == (None, None):
        return "no interval: too few"
    if unit == "share":
        return " – ".join("?" if end is None else percent(end) for end in ends)
    return span(ends) if unit == "seconds" else "–".join("?" if end is None else number(end) for end in ends)


def quantity(value: float, unit: str) -> str:
    """A value; ``unit`` as for ``interval``."""
    return {"seconds": duration, "share": percent, "number": number}[unit](value)


def moment(iso: str) -> str:
    """A moment as people write it, in the zone that it was noted in; what cannot be read stays as it is."""
    try:
        read = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    offset = read.utcoffset()
    zone = "" if offset is None else " UTC" if not offset else read.strftime(" %z")
    return f"{read.day} {read:%B %Y, %H:%M}{zone}"
