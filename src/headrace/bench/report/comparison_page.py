"""The page of two results beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.bench.report import account
from headrace.bench.report.board import Board
from headrace.bench.report.curves import forest_figure
from headrace.bench.report.description import comparison_headline, describe_comparison, extent, when
from headrace.bench.report.markup import Html, counted, joined, table, tag
from headrace.bench.report.sections import contents, copyable, note, plots, section
from headrace.bench.report.sides import (
    Side,
    latency_section,
    length_section,
    search_section,
    sides_of,
    timeline_section,
)
from headrace.bench.report.views import round_label, server_name
from headrace.bench.results.samples import Samples
from headrace.bench.results.schema import Comparison, Ratio
from headrace.bench.results.wording import (
    TOO_FEW,
    VERDICTS,
    interval,
    measure_name,
    measure_unit,
    quantity,
    ratio,
    verdict,
)

SECTIONS = {
    "ratios": "Ratios",
    "latency": "Latency",
    "search": "The rate within the service level",
    "timeline": "Over time",
    "lengths": "Lengths and prefix cache",
    "errors": "Errors",
    "generator": "The load generator",
    "plan": "How it was measured",
}


def comparison_page(comparison: Comparison, samples: Sequence[Sequence[Samples]], board: Board) -> tuple[Html, Html]:
    """Header and content.

    Args:
        comparison: Two results with at least one round each.
        samples: One a round, of both.
        board: Takes the figures.
    """
    sides = sides_of(comparison, samples)
    parts = {
        "ratios": _ratio_section(comparison, sides, board),
        "latency": latency_section(SECTIONS["latency"], sides, board),
        "search": search_section(SECTIONS["search"], sides, board),
        "timeline": timeline_section(SECTIONS["timeline"], sides, board),
        "lengths": length_section(SECTIONS["lengths"], sides, board),
        "errors": _error_section(sides),
        "generator": _generator_section(sides),
        "plan": _plan_section(comparison, sides),
    }
    header = tag(
        "header",
        tag("p", f"headrace bench compare, {when(comparison.a)}", class_="when"),
        tag("h1", comparison_headline(comparison)),
        _legend(sides),
        account.warned(comparison.warnings),
        account.verdict([(side.name, side.result) for side in sides]),
        tag("p", _in_short(comparison.ratios), class_="lede"),
        contents({name: SECTIONS[name] for name, part in parts.items() if part is not None}),
    )
    return header, joined(parts.values())


def _legend(sides: Sequence[Side]) -> Html:
    rows = []
    for side in sides:
        target = side.result.target
        what = f": {target.model} on {server_name(target)} ({target.url}). "
        rows.append(tag("li", side.chip, what, extent(side.result, side.summary, len(side.rounds))))
    return tag("ul", *rows, class_="sides")


def _in_short(ratios: Sequence[Ratio]) -> str:
    if not ratios:
        return "There is no measure that both results have."
    count = Counter(map(verdict, ratios))
    parts = [f"{words} in {count[words]}" for words in (*VERDICTS.values(), TOO_FEW) if words in count]
    return f"Of {counted(len(ratios), 'measure')}: {', '.join(parts)}."


def _ratio_section(comparison: Comparison, sides: Sequence[Side], board: Board) -> Html:
    ratios = comparison.ratios
    drawn = []
    for better, title, reading in (
        ("lower", "Where less is better", "Left of 1, A is better; right of it, B."),
        ("higher", "Where more is better", "Right of 1, A is better; left of it, B."),
    ):
        chosen = [each for each in ratios if each.better == better]
        names = {each.measure: measure_name(each.measure) for each in chosen}
        figures = [forest_figure(chosen, names) if chosen else None]
        spoken = f"Ratios A to B with their intervals, {title.lower()}; the table below has the values."
        drawn.append(board.plot(title, f"A / B. {reading}", figures, spoken=spoken))
    rows = [
        [
            measure_name(each.measure),
            tag("span", verdict(each), class_=f"better-{each.verdict}"),
            quantity(each.a, measure_unit(each.measure)),
            quantity(each.b, measure_unit(each.measure)),
            joined([ratio(each.ratio.value), tag("small", interval(each.ratio, "ratio"))]),
        ]
        for each in ratios
    ]
    head = ["", "verdict", *(side.chip for side in sides), "A / B"]
    reading = (
        f"{comparison.method} No difference shown means that the interval holds 1, or may hold it for want of an end: "
        "the two may differ, but not so that it could be told from chance here."
    )
    caption = "Every measure. Small: the interval of the ratio; “?” is an end that is not known."
    return section(
        "ratios", SECTIONS["ratios"], note(reading), plots(*drawn), table(caption, head, rows, text_columns=2)
    )


def _error_section(sides: Sequence[Side]) -> Html:
    parts = []
    for side in sides:
        rounds = [side.result.rounds[index] for index in side.rounds]
        messages = {kind: said for each in rounds for kind, said in each.messages.items()}
        parts.append(joined([tag("h3", side.chip), account.error_table(side.summary, messages)]))
    return section("errors", SECTIONS["errors"], *parts)


def _generator_section(sides: Sequence[Side]) -> Html:
    rounds = [
        (f"{side.name}: {round_label(side.result, index)}", each)
        for side in sides
        for index, each in enumerate(side.result.rounds)
    ]
    return section("generator", SECTIONS["generator"], note(account.GENERATOR_NOTE), account.generator_table(rounds))


def _plan_section(comparison: Comparison, sides: Sequence[Side]) -> Html:
    tables = account.plans_beside([(side.chip, side.result) for side in sides])
    return section("plan", SECTIONS["plan"], tables, copyable(describe_comparison(comparison)))
