"""The page of several sweeps: their curves in one picture."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.bench.report import account
from headrace.bench.report.board import Board
from headrace.bench.report.description import describe_sweeps, sweeps_headline, when
from headrace.bench.report.markup import Html, joined, tag
from headrace.bench.report.sections import contents, copyable, note, section
from headrace.bench.report.trade_off import ShownSweep, trade_off_section
from headrace.bench.report.views import round_label, server_name
from headrace.bench.results.schema import Sweeps

SECTIONS = {
    "curve": "Throughput against latency",
    "generator": "The load generator",
    "plan": "How it was measured",
}


def sweeps_page(sweeps: Sweeps, board: Board) -> tuple[Html, Html]:
    """Header and content.

    Args:
        sweeps: At least one, each with at least one round.
        board: Takes the figures.
    """
    shown = [ShownSweep(each, number) for number, each in enumerate(sweeps.sweeps)]
    content = [
        trade_off_section(SECTIONS["curve"], sweeps.sweeps, board),
        _generator_section(sweeps),
        _plan_section(sweeps, shown),
    ]
    header = tag(
        "header",
        tag("p", f"headrace bench compare, {when(sweeps.sweeps[0].result)}", class_="when"),
        tag("h1", sweeps_headline(sweeps)),
        _legend(shown),
        account.warned(sweeps.warnings),
        account.verdict([(each.name, each.result) for each in sweeps.sweeps]),
        contents(SECTIONS),
    )
    return header, joined(content)


def _legend(shown: Sequence[ShownSweep]) -> Html:
    rows = []
    for each in shown:
        target = each.swept.result.target
        rows.append(tag("li", each.chip, f": {target.model} on {server_name(target)} ({target.url})"))
    return tag("ul", *rows, class_="sides")


def _generator_section(sweeps: Sweeps) -> Html:
    rounds = [
        (f"{swept.name}: {round_label(swept.result, index)}", each)
        for swept in sweeps.sweeps
        for index, each in enumerate(swept.result.rounds)
    ]
    return section("generator", SECTIONS["generator"], note(account.GENERATOR_NOTE), account.generator_table(rounds))


def _plan_section(sweeps: Sweeps, shown: Sequence[ShownSweep]) -> Html:
    tables = account.plans_beside([(each.chip, each.swept.result) for each in shown])
    return section("plan", SECTIONS["plan"], tables, copyable(describe_sweeps(sweeps)))
