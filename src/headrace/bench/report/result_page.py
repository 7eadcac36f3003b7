"""The page of one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.bench.report import account
from headrace.bench.report.board import Board, per_round, selector
from headrace.bench.report.curves import Trials, goodput_figure, length_figure, trade_off_figure
from headrace.bench.report.description import describe_result, extent, found_rate, headline, service_level, when
from headrace.bench.report.figures import Curve, Figure, distribution_figure
from headrace.bench.report.markup import Html, joined, table, tag, unbroken
from headrace.bench.report.pooling import pool
from headrace.bench.report.sections import ZOOM, contents, copyable, note, plots, section
from headrace.bench.report.series import CURVE_POINTS
from headrace.bench.report.timelines import key_of, timeline_figures
from headrace.bench.report.trade_off import trade_off_section
from headrace.bench.report.views import METRICS, has_one_load, lengths, pooled, round_label, shown_rounds
from headrace.bench.results.samples import Samples
from headrace.bench.results.schema import Result, Summary, Swept
from headrace.bench.results.wording import given_percent

SCATTER_POINTS = 2500
INTERVAL = "95 % confidence interval"
SECTIONS = {
    "curve": "Throughput against latency",
    "search": "The rate within the service level",
    "latency": "Latency and throughput",
    "timeline": "Over time",
    "lengths": "Lengths and prefix cache",
    "errors": "Errors",
    "generator": "The load generator",
    "plan": "How it was measured",
}
TIMELINES = {
    "activity": (
        "What the requests were doing",
        "Waiting is from due to first output, streaming from there to the end.",
    ),
    "flow": ("Requests due and completed", "Where completed stays below due, the server falls behind."),
    "tokens": ("Output tokens", "As the server counts them, at the moments at which they came."),
    "first": (
        "Time to first token of each request",
        "Over the moment at which it was due: a stall shows as a slope down.",
    ),
}


@dataclass(frozen=True, slots=True)
class Views:
    """What the page can show of a result's latencies and lengths.

    Attributes:
        rounds: Indexes of the rounds of each view. One view pools all rounds of one load; a search and a sweep have a
            view a round, which the selector chooses.
        summaries: Of each view.
        spread: What stands for uncertainty in them.
        chosen: The view that stands for the result.
    """

    rounds: list[list[int]]
    summaries: list[Summary]
    spread: str
    chosen: int

    @property
    def shown(self) -> Summary:
        """What stands for the result."""
        return self.summaries[self.chosen]

    @property
    def shown_rounds(self) -> int:
        """How many rounds that pools."""
        return len(self.rounds[self.chosen])


def views_of(result: Result, samples: Sequence[Samples]) -> Views:
    """The views of a result with at least one round."""
    shown = shown_rounds(result)
    if not has_one_load(result):
        each = [[index] for index in range(len(result.rounds))]
        return Views(each, [found.summary for found in result.rounds], INTERVAL, shown[0])
    summaries = [found.summary for found in result.rounds]
    together = pool(summaries, samples, pooled(samples, result.rounds, shown))
    spread = INTERVAL if len(shown) == 1 else f"range of the {len(shown)} rounds"
    return Views([shown], [together], spread, 0)


def result_page(result: Result, samples: Sequence[Samples], board: Board) -> tuple[Html, Html]:
    """Header and content.

    Args:
        result: At least one round.
        samples: One a round.
        board: Takes the figures.
    """
    views = views_of(result, samples)
    labels = [round_label(result, index) for index in range(len(result.rounds))]
    search = None if result.search is None else _search_section(result, board)
    curve = None if result.sweep is None else trade_off_section(SECTIONS["curve"], [Swept("", result)], board)
    latency = _latency_section(result, samples, views, board)
    chosen = selector(labels, shown_rounds(result)[0], "Show")
    timeline = _timeline_section(result, samples, board)
    by_round = [latency, chosen, timeline] if has_one_load(result) else [chosen, latency, timeline]
    by_round += [_length_section(result, samples, views, board), _error_section(result, views)]
    content = [curve, search, tag("div", *by_round), _generator_section(result, labels), _plan_section(result, views)]
    return _header(result, views, labels), joined(content)


def _header(result: Result, views: Views, labels: Sequence[str]) -> Html:
    shown, found = views.shown, found_rate(result)
    level = "" if shown.goodput is None else f" Service level (SLO): {unbroken(service_level(shown.goodput.slo))}."
    of = "" if has_one_load(result) else f"Of {labels[views.chosen].lower()}: "
    absent = {name for name, part in (("search", result.search), ("curve", result.sweep)) if part is None}
    return tag(
        "header",
        tag("p", f"headrace bench serve, {when(result)}", class_="when"),
        tag("h1", headline(result)),
        tag("p", extent(result, shown, views.shown_rounds) + level, class_="lede"),
        account.verdict([("", result)]),
        None if found is None else tag("div", tag("p", tag("strong", found)), class_="notice"),
        account.tiles(shown),
        note(f"{of}{'b' if of else 'B'}elow each figure its {views.spread}; “?” is an end that too few requests tell."),
        contents({name: title for name, title in SECTIONS.items() if name not in absent}),
    )


def _search_section(result: Result, board: Board) -> Html:
    search = result.search
    if search is None or not search.points:
        return section("search", SECTIONS["search"], tag("p", "No rate was tried."))
    summaries = [result.rounds[point.round].summary for point in search.points]
    slo = service_level(next((each.goodput.slo for each in summaries if each.goodput is not None), {}))
    caption = (
        f"Each point is a round; filled where at least {given_percent(search.target_share)} of its requests met {slo}. "
        "Bars are 95 % confidence intervals."
    )
    goodput = board.plot(
        "Goodput: share of requests within the service level, by rate",
        caption,
        [goodput_figure([Trials(search, summaries, "", "tpot")])],
        spoken="Share of requests that met the service level against the rate; the table below has the values.",
    )
    drawn = [
        board.plot(
            f"{METRICS[key].title} against throughput",
            "One point a rate; filled where the service level was kept. Right is more throughput, up is slower.",
            [trade_off_figure(Trials(search, summaries, "", key), key, METRICS[key].name)],
            spoken=f"{METRICS[key].name} p50 and p99 against output tokens per second; the table below has the values.",
            key=[("p99", key, "solid"), ("p50", key, "dotted")],
        )
        for key in ("ttft", "tpot")
    ]
    rates = account.search_table(search, summaries)
    return section("search", SECTIONS["search"], plots(goodput, wide=True), plots(*drawn), rates)


def _latency_section(result: Result, samples: Sequence[Samples], views: Views, board: Board) -> Html:
    most = max(300, CURVE_POINTS // len(views.rounds))
    values = [pooled(samples, result.rounds, rounds) for rounds in views.rounds]
    slo = {} if views.shown.goodput is None else views.shown.goodput.slo
    drawn = []
    for key, metric in METRICS.items():
        curves = [
            Curve(found[key], metric.name, key, summary.latency.get(key))
            for found, summary in zip(values, views.summaries, strict=True)
        ]
        figures = [distribution_figure([curve], metric.name, metric.unit, slo.get(key), most) for curve in curves]
        spoken = f"Cumulative distribution of {metric.name}; the table below has its percentiles."
        drawn.append(board.plot(f"{metric.title} ({metric.name})", metric.definition, figures, spoken=spoken))
    reading = (
        "Each curve says which share of all took no longer than a time. The upright axis is stretched towards both "
        "ends, so that the slowest one in a thousand can be seen as well as the middle. Dots are p50, p90, p95 and "
        f"p99, their bars the {views.spread}."
    )
    if not any(drawn):
        reading = "Nothing was measured: no request due in the window was answered to the end."
    panels = [
        joined([account.latency_table(each, views.spread), account.rate_table(each, result.plan.devices, views.spread)])
        for each in views.summaries
    ]
    tables = per_round(panels, views.chosen)
    return section("latency", SECTIONS["latency"], note(reading), plots(*drawn), tables)


def _timeline_section(result: Result, samples: Sequence[Samples], board: Board) -> Html:
    figures = timelines(result, samples)
    drawn = []
    for name, (title, caption) in TIMELINES.items():
        row = [each.get(name) for each in figures]
        spoken = f"{title}, over the time of the round."
        drawn.append(board.plot(title, caption, row, spoken=spoken, key=key_of(name, row), time="round"))
    reading = "The measured window is shaded."
    if any(len(each) > SCATTER_POINTS for each in samples):
        reading += " Of many requests not every one is drawn, but the slowest of every moment are."
    return section("timeline", SECTIONS["timeline"], note(joined([reading, ZOOM])), plots(*drawn, wide=True))


def timelines(result: Result, samples: Sequence[Samples], servers: int = 1) -> list[dict[str, Figure]]:
    """The plots over time of every round; fewer points a round the more rounds there are."""
    most = max(400, SCATTER_POINTS // (len(samples) * servers))
    found = []
    for each, of in zip(samples, result.rounds, strict=True):
        slo = {} if of.summary.goodput is None else of.summary.goodput.slo
        found.append(timeline_figures(each, of.summary.window, slo, most))
    return found


def _length_section(result: Result, samples: Sequence[Samples], views: Views, board: Board) -> Html:
    pairs = []
    for rounds in views.rounds:
        windows = [result.rounds[index].summary.window for index in rounds]
        pairs.append(lengths([samples[index] for index in rounds], windows))
    prompts = [length_figure([("prompt", "ttft", prompt)], "prompt tokens") for prompt, _ in pairs]
    outputs = [length_figure([("output", "tpot", output)], "output tokens") for _, output in pairs]
    drawn = [
        board.plot(
            "Prompt lengths",
            "As the server counts, or as planned where it does not.",
            prompts,
            spoken="Histogram of prompt lengths.",
        ),
        board.plot("Output lengths", "As the server counts.", outputs, spoken="Histogram of output lengths."),
    ]
    ideal = result.plan.ideal_cached_share
    panels = [
        joined([account.cached_bars(each.cached_share, ideal), account.length_table(each)]) for each in views.summaries
    ]
    return section(
        "lengths", SECTIONS["lengths"], plots(*drawn), note(account.CACHED_NOTE), per_round(panels, views.chosen)
    )


def _error_section(result: Result, views: Views) -> Html:
    panels = []
    for rounds, summary in zip(views.rounds, views.summaries, strict=True):
        messages = {kind: said for index in rounds for kind, said in result.rounds[index].messages.items()}
        panels.append(account.error_table(summary, messages))
    return section("errors", SECTIONS["errors"], per_round(panels, views.chosen))


def _generator_section(result: Result, labels: Sequence[str]) -> Html:
    rows = account.generator_table(list(zip(labels, result.rounds, strict=True)))
    return section("generator", SECTIONS["generator"], note(account.GENERATOR_NOTE), rows)


def _plan_section(result: Result, views: Views) -> Html:
    server = account.target_rows(result.target, result.version, result.machine)
    both = plots(
        table("The load.", ["", ""], account.plan_rows(result.plan), text_columns=2),
        table("Server and generator.", ["", ""], server, text_columns=2),
    )
    return section("plan", SECTIONS["plan"], both, copyable(describe_result(result, views.shown, views.shown_rounds)))
