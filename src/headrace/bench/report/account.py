"""Parts of a page that say in words, tiles and tables what a round or a result gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.bench.report.markup import Html, counted, joined, table, tag
from headrace.bench.report.views import METRICS, plain, round_label, server_name
from headrace.bench.results.schema import Estimate, Plan, Result, Round, Search, Summary, Target
from headrace.bench.results.wording import (
    NOT_KNOWN,
    RATES,
    Unit,
    digits,
    duration,
    given,
    interval,
    percent,
    quantity,
    span,
)

CACHED_NOTE = (
    "Share of the prompt tokens that came from the server’s prefix cache, beside what a cache without limits would "
    "find over the whole round, the answers of earlier turns included."
)
GENERATOR_NOTE = (
    "Sent late is from the moment at which a request was due to the one at which it was sent; loop late is how late "
    "timers fired, and so how late an output may have been noticed. Both are inside the latencies above. A request is "
    "resent where a connection that was kept open turned out to be closed."
)


def verdict(results: Sequence[tuple[str, Result]]) -> Html:
    """Whether the figures are the servers', with the reasons if they may not be; (name, result), names may be empty."""
    rounds = [
        (": ".join(filter(None, [name, round_label(result, index)])), each, len(result.rounds) + len(results) > 2)
        for name, result in results
        for index, each in enumerate(result.rounds)
    ]
    bad = [(label if several else "", each) for label, each, several in rounds if not each.certificate.certified]
    if not bad:
        kept = "The generator kept up with the load: the figures are the server’s."
        return tag("div", tag("p", tag("strong", "Certified."), f" {kept}"), class_="notice good")
    reasons = [
        tag("li", tag("b", f"{label}. ") if label else None, reason)
        for label, each in bad
        for reason in each.certificate.reasons or ["No reason was given."]
    ]
    scope = "" if len(bad) == len(rounds) else f" in {len(bad)} of {len(rounds)} rounds"
    return tag(
        "div",
        tag("p", tag("strong", f"NOT CERTIFIED{scope}")),
        tag("p", "Do not take these figures for the server’s under this load:"),
        tag("ul", *reasons),
        class_="notice bad",
        role="alert",
    )


def warned(warnings: Sequence[str]) -> Html | None:
    """Why results may not be comparable; None if nothing speaks against it."""
    if not warnings:
        return None
    items = (tag("li", warning) for warning in warnings)
    return tag("div", tag("p", tag("strong", "Beware")), tag("ul", *items), class_="notice warn")


def tiles(summary: Summary) -> Html:
    """The main figures."""
    shown = []
    for key in ("ttft", "tpot"):
        for name in ("p50", "p99"):
            found = summary.latency.get(key)
            estimate = found.percentiles.get(name) if found else None
            shown.append(_tile(f"{METRICS[key].name} {name}", estimate, "seconds"))
    shown.append(_tile(f"{RATES['output_tokens']}/s", summary.rates.get("output_tokens"), "number"))
    shown.append(_tile(f"{RATES['requests_completed']}/s", summary.rates.get("requests_completed"), "number"))
    if summary.goodput is not None:
        shown.append(_tile("Goodput", summary.goodput.share, "share"))
        shown.append(_tile("Goodput, requests/s", summary.goodput.rate, "number"))
    failed = summary.requests - summary.succeeded
    of = f"of {counted(summary.requests, 'request')} due"
    alarm = "value alarm" if failed else "value"
    shown.append(
        tag("div", tag("dt", "Errors"), tag("dd", digits(failed), class_=alarm), tag("dd", of, class_="interval"))
    )
    return tag("dl", *shown, class_="tiles")


def _tile(name: str, estimate: Estimate | None, unit: Unit) -> Html:
    value = NOT_KNOWN if estimate is None else quantity(estimate.value, unit)
    below = "nothing measured" if estimate is None else interval(estimate, unit)
    return tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", below, class_="interval"))


def latency_table(summary: Summary, spread: str) -> Html | None:
    """Every percentile of every latency; None if there is none."""
    if not summary.latency:
        return None
    names = sorted(
        {name for found in summary.latency.values() for name in found.percentiles}, key=lambda name: float(name[1:])
    )
    rows = [
        [
            joined([tag("b", metric.name), tag("small", metric.title)]),
            f"{found.count:,}",
            _cell(found.mean, "seconds"),
            *(_cell(found.percentiles.get(name), "seconds") for name in names),
            duration(found.minimum),
            duration(found.maximum),
        ]
        for key, metric in METRICS.items()
        if (found := summary.latency.get(key)) is not None
    ]
    caption = (
        f"Latencies of the requests that succeeded. Small: the {spread}; “?” where there are too few to tell an end."
    )
    return table(caption, ["", "values", "mean", *names, "least", "most"], rows)


def rate_table(summary: Summary, devices: int, spread: str) -> Html:
    """Rates over the measured window, and a device's share of them."""
    known = [(key, name) for key, name in RATES.items() if key in summary.rates]
    rows: list[list[object]] = [["a second", *(_cell(summary.rates[key], "number") for key, _ in known)]]
    if devices > 1:
        alone = (digits(summary.per_device[key]) if key in summary.per_device else NOT_KNOWN for key, _ in known)
        rows.append([f"a second and device, of {devices}", *alone])
    head = ["", *(name for _, name in known)]
    return table(f"Rates over the measured window. Small: the {spread}.", head, rows)


def _cell(estimate: Estimate | None, unit: Unit) -> object:
    if estimate is None:
        return NOT_KNOWN
    if (estimate.low, estimate.high) == (None, None):
        return quantity(estimate.value, unit)
    return joined([quantity(estimate.value, unit), tag("small", interval(estimate, unit))])


def error_table(summary: Summary, messages: Mapping[str, str]) -> Html:
    """Errors by kind with what was said the first time, or the sentence that there were none."""
    if not summary.errors:
        if not summary.requests:
            return tag("p", "No request was due in the window.")
        return tag("p", f"None: all of the {summary.requests:,} requests due in the window were answered to the end.")
    rows = [
        [
            kind or "unnamed",
            messages.get(kind, NOT_KNOWN)[:300],
            f"{count:,}",
            percent(count / max(summary.requests, 1)),
        ]
        for kind, count in sorted(summary.errors.items(), key=lambda pair: -pair[1])
    ]
    head = ["kind", "the first time", "requests", "of all due"]
    return table("Requests due in the window that failed, by kind.", head, rows, text_columns=2)


def length_table(summary: Summary) -> Html:
    """Whether the server computed what was asked for."""
    found = summary.lengths
    events = NOT_KNOWN if found.tokens_per_event is None else f"{found.tokens_per_event:.2f}"
    rows = [
        ["Prompt tokens sent, as far as known beforehand", f"{found.planned_prompt_tokens:,}"],
        ["Prompt tokens counted by the server", f"{found.prompt_tokens:,}"],
        ["Requests whose prompt the server counted otherwise", f"{found.prompt_differs:,}"],
        ["Output tokens counted by the server", f"{found.output_tokens:,}"],
        ["Requests with another number of output tokens than asked for", f"{found.output_differs:,}"],
        ["Requests whose output tokens the server did not tell", f"{found.output_uncounted:,}"],
        ["Output tokens by stream event (above 1, ITL is the gap between groups)", events],
    ]
    return table("Asked for beside computed, over the requests that succeeded.", ["", ""], rows)


def cached_bars(measured: float | None, ideal: float, names: tuple[str, str] = ("measured", "ideal")) -> Html:
    """Share of the prompt tokens that the server's prefix cache held, beside the best possible."""

    def bar(name: str, share: float | None, kind: str) -> Html:
        width = 0.0 if share is None else min(max(share, 0.0), 1.0)
        filled = tag("div", tag("span", style=f"width: {100 * width:.1f}%"), class_=f"bar {kind}")
        return tag("div", tag("dt", name), filled, tag("dd", "not told" if share is None else percent(share)))

    return tag("dl", bar(names[0], measured, "found"), bar(names[1], ideal, "ideal"), class_="bars")


def search_table(search: Search, summaries: Sequence[Summary]) -> Html:
    """Every rate that was tried, ascending.

    Args:
        search: Its points.
        summaries: Of each point.
    """

    def percentile(summary: Summary, key: str, name: str) -> str:
        found = summary.latency.get(key)
        return NOT_KNOWN if found is None or name not in found.percentiles else duration(found.percentiles[name].value)

    rows = [
        [
            given(point.rate),
            NOT_KNOWN if found.goodput is None else _cell(found.goodput.share, "share"),
            "yes" if point.met else "no",
            digits(found.rates["output_tokens"].value) if "output_tokens" in found.rates else NOT_KNOWN,
            *(percentile(found, key, name) for key in ("ttft", "tpot") for name in ("p50", "p99")),
            f"{found.requests:,}",
            f"{found.requests - found.succeeded:,}",
            str(point.round + 1),
        ]
        for point, found in sorted(zip(search.points, summaries, strict=True), key=lambda pair: pair[0].rate)
    ]
    latencies = [f"{METRICS[key].name} {name}" for key in ("ttft", "tpot") for name in ("p50", "p99")]
    head = ["requests/s", "met the SLO", "enough", "output tokens/s", *latencies, "requests", "errors", "round"]
    return table("Every rate that was tried. Small: the 95 % confidence interval.", head, rows)


def generator_table(rounds: Sequence[tuple[str, Round]]) -> Html:
    """What the generator saw of itself, a row a (label, round)."""
    rows = []
    for label, each in rounds:
        own = each.generator
        lags = [span([lag.p50, lag.p99, lag.maximum], ", ") for lag in (own.send_lag, own.loop_lag)]
        certified = "yes" if each.certificate.certified else tag("strong", "NO", class_="alarm")
        rows.append([label, digits(own.cpu_cores), *lags, digits(own.connections), digits(own.resent), certified])
    lags = [f"{lag} (p50, p99, most)" for lag in ("sent late", "loop late")]
    head = ["", "CPU cores", *lags, "connections", "resent", "certified"]
    return table("The generator itself, by round.", head, rows)


def plan_rows(plan: Plan) -> list[list[object]]:
    """Name and value of all that the load was made from."""
    rows: list[list[object]] = [["workload", plan.workload]]
    rows += [[f"workload: {key}", plain(value)] for key, value in plan.parameters.items()]
    rows += [["sessions", f"{plan.sessions:,}"], ["requests", f"{plan.requests:,}"]]
    rows += [[f"skipped: {reason}", f"{count:,}"] for reason, count in plan.skipped.items()]
    rows += [["ideal cached share", percent(plan.ideal_cached_share)], ["arrivals", plan.arrivals]]
    rows += [[f"arrivals: {key}", plain(value)] for key, value in plan.arrival_parameters.items()]
    rows += [["seed", str(plan.seed)], ["warm-up", plan.warmup], ["cool-down", plan.cooldown]]
    return [*rows, ["devices", str(plan.devices)]]


def target_rows(target: Target, version: str, machine: dict[str, str | int]) -> list[list[object]]:
    """Name and value of what is known of server and generator."""
    context = NOT_KNOWN if target.context_length is None else f"{target.context_length:,} tokens"
    known: list[list[object]] = [
        ["server", server_name(target)],
        ["URL", target.url],
        ["model", target.model],
        ["API", target.api],
        ["prompts sent as", target.prompts],
        ["context length", context],
        ["generator", f"headrace {version}"],
    ]
    known += [[f"generator: {key}", plain(value)] for key, value in machine.items()]
    return known


def plans_beside(results: Sequence[tuple[Html, Result]]) -> Html:
    """What was asked of each of several results, (heading, result), and where they differ."""

    def beside(caption: str, columns: Sequence[list[list[object]]]) -> Html:
        values = [{str(row[0]): str(row[1]) for row in rows} for rows in columns]
        keys = dict.fromkeys(key for each in values for key in each)
        cells = [(key, [each.get(key, NOT_KNOWN) for each in values]) for key in keys]
        rows = [[key, *found, "differs" if len(set(found)) > 1 else ""] for key, found in cells]
        return table(caption, ["", *(heading for heading, _ in results), ""], rows, text_columns=len(results) + 2)

    plans = [plan_rows(each.plan) for _, each in results]
    targets = [target_rows(each.target, each.version, each.machine) for _, each in results]
    return joined([beside("The load.", plans), beside("Server and generator.", targets)])
