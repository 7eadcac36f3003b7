import base64
import hashlib
import json
import re
import subprocess
import sys
import time
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from bench_results import (
    HOSTILE,
    as_result,
    as_round,
    comparison,
    hostile_result,
    result,
    search_result,
    simulate,
    sweep_result,
    sweeps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.report import page, render, write_report
from headrace.bench.results.compare import compare
from headrace.bench.results.schema import Search, Sweep, Swept
from headrace.bench.results.sweeps import compare_sweeps
from headrace.bench.results.wording import duration
from headrace.errors import HeadraceError, InvalidInput

replace = msgspec.structs.replace
VOID = {"meta", "link", "br", "hr"}


class Reader(HTMLParser):
    """Elements, texts and scripts of a page that must be balanced."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.texts, self.scripts = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        assert not (name == "p" and "p" in self.open)
        if name == "script":
            self.scripts.append("")
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())

    @property
    def plots(self):
        return json.loads(self.scripts[0])

    def of(self, key):
        return [attributes[key] for _, attributes in self.elements if key in attributes]


@pytest.fixture
def quick(monkeypatch):
    """Pages without the library, which only takes time here."""
    monkeypatch.setattr(page, "plotly_library", lambda: "/* the library */")


@pytest.fixture(scope="module")
def whole():
    return render(result())


def test_the_page_is_balanced_and_holds_its_figures(whole):
    found = Reader(whole)
    assert len(found.scripts) == 3
    assert found.of("data-plot") == list(found.plots)
    assert len(found.of("id")) == len(set(found.of("id")))
    assert {link[1:] for link in found.of("href") if link.startswith("#")} <= set(found.of("id"))
    assert all(len(figures) >= 1 for figures in found.plots.values())


def test_the_page_loads_nothing(whole):
    found = Reader(whole)
    assert found.of("src") == []
    assert all(link.startswith(("#", "data:")) for link in found.of("href"))
    own = found.scripts[2] + whole[: whole.index("<body>")]
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|@import|url\(", own)


def test_only_the_scripts_of_the_page_may_run(whole):
    found = Reader(whole)
    policy = next(each["content"] for name, each in found.elements if each.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    for script in found.scripts[1:]:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe" not in policy.partition("style-src")[0]


def test_every_colour_is_in_the_style_sheet_in_light_and_in_dark(quick):
    style = (page.FOLDER / "style.css").read_text()
    light, dark = style.split("@media screen", 1)
    for shown in (search_result(seconds=20), comparison(rounds=2), sweeps(7, seconds=10)):
        used = set(re.findall(r'"@([a-z0-9]+)(?:/[0-9.]+)?"', render(shown)))
        assert used
        for role in used:
            assert f"--{role}:" in light
            assert f"--{role}:" in dark


def test_the_figures_of_the_result_are_on_the_page(quick):
    shown = result()
    text = Reader(render(shown)).text
    summary = shown.rounds[0].summary
    for name in ("ttft", "tpot", "itl", "e2e"):
        for percentile, estimate in summary.latency[name].percentiles.items():
            assert duration(estimate.value) in text, (name, percentile)
    assert "SmolLM2-135M-Instruct on llama-server b7205" in text
    assert "Certified." in text
    assert "NOT CERTIFIED" not in text
    assert "29 November 2026, 20:55 UTC" in text
    for kind, count in summary.errors.items():
        assert kind in text
        assert str(count) in text


def test_a_round_that_is_not_certified_cannot_be_missed(quick):
    rounds = [as_round(simulate(seed=seed), reasons=["It was late."] * (seed == 1)) for seed in range(2)]
    found = Reader(render(as_result(rounds)))
    assert "NOT CERTIFIED in 1 of 2 rounds" in found.text
    assert "under this load:Round 2 of 2 (8 requests/s). It was late." in found.text
    assert "alert" in found.of("role")
    assert found.text.index("NOT CERTIFIED") < found.text.index("TTFT p50")


def test_hostile_text_stays_text(quick):
    hostile = hostile_result()
    swept = replace(hostile, sweep=Sweep(over="concurrency", loads=[1.0, 2.0]))
    both = compare_sweeps([Swept(HOSTILE, swept), Swept(HOSTILE + "2", swept)])
    for shown in (hostile, compare(hostile, hostile), swept, both):
        html = render(shown)
        found = Reader(html)
        assert len(found.scripts) == 3
        assert "img" not in {name for name, _ in found.elements}
        assert found.of("onerror") == []
        assert " ".join(HOSTILE.split()) in found.text
        assert "<script>alert" not in html
        # Plotly reads a little HTML in texts of its own.
        assert "<img" not in json.dumps(found.plots)


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=30, deadline=None)
def test_any_text_keeps_the_page_balanced(name, other):
    shown = result(requests=30)
    target = replace(shown.target, model=name, server=other or None, url=other)
    shown = replace(shown, target=target, plan=replace(shown.plan, workload=other, parameters={name: other}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "plotly_library", str)
        found = Reader(render(shown))
    assert found.of("data-plot") == list(found.plots)
    # The parser reads line ends and null characters in its own way.
    if name.isprintable():
        assert " ".join(name.split()) in found.text


def nothing():
    empty = simulate(requests=0)
    whole_round = as_round(simulate(), slo=None)
    summary = replace(whole_round.summary, requests=0, succeeded=0, latency={}, rates={}, per_device={}, errors={})
    return as_result([replace(whole_round, summary=summary, requests=as_round(empty).requests)])


def without_points():
    search = Search(target_share=0.99, tolerance=0.05, max_rate=None, failed_rate=None, points=[])
    return replace(result(), search=search)


DEGENERATE = {
    "no successes": lambda: result(failures=1.0, stall=None),
    "no request": nothing,
    "one request": lambda: as_result([as_round(simulate(requests=1), margins=("0", "0"))]),
    "no queue": lambda: result(queue=False),
    "no counts": lambda: result(counts=False, queue=False),
    "one length": lambda: result(output=1),
    "one round of two failed": lambda: as_result([as_round(simulate()), as_round(simulate(failures=1.0))]),
    "no rate met": lambda: search_result(rates=(30, 40), seconds=10),
    "no rate tried": without_points,
    "several devices": lambda: as_result([as_round(simulate(), devices=8)], devices=8),
    "no ratio": lambda: replace(comparison(rounds=1), ratios=[]),
    "A failed": lambda: compare(result(failures=1.0), result()),
    "more rounds of A": lambda: compare(as_result([as_round(simulate())] * 2), result()),
    "a sweep without successes": lambda: sweep_result(failures=1.0),
    "a sweep without counts": lambda: sweep_result(counts=False),
    "a sweep of one token": lambda: sweep_result(output=1),
    "sweeps of which one saw nothing": lambda: compare_sweeps(
        [Swept("a", sweep_result()), Swept("b", sweep_result(failures=1.0))]
    ),
    "no common rate": lambda: compare(search_result(rates=(30,), seconds=5), search_result(rates=(4,), seconds=5)),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_what_is_missing_is_left_out(quick, kind):
    found = Reader(render(DEGENERATE[kind]()))
    assert found.of("data-plot") == list(found.plots)
    assert "nan" not in found.text.lower().split()
    assert "None" not in found.text.replace("None: all of", "")


def test_the_page_of_a_long_run_is_small_and_quick():
    shown = as_result([as_round(simulate(requests=24_000, rate=200, slots=300, output=50, gap=0.012))])
    assert sum(map(len, shown.rounds[0].requests.gaps)) > 1_200_000
    begin = time.perf_counter()
    html = render(shown)
    assert time.perf_counter() - begin < 3
    assert len(html.encode()) - len(page.plotly_library().encode()) < 2_000_000
    for figures in Reader(html).plots.values():
        assert all(len(line["x"]) <= 3000 for line in figures[0]["data"])


def test_the_slowest_request_is_drawn(quick):
    samples = simulate(requests=24_000, rate=200, slots=300, output=4)
    plots = Reader(render(as_result([as_round(samples, margins=("0", "0"))]))).plots
    worst = np.nanmax(samples.first - samples.due)
    drawn = [max(line["y"]) for each in plots.values() for line in each[0]["data"] if line.get("name") == "answered"]
    assert drawn == [pytest.approx(worst, rel=1e-3)]


def test_a_queue_that_never_was_is_not_drawn(quick):
    never = result(slots=500, stall=None)
    assert never.rounds[0].summary.latency["queue"].maximum == 0
    found = Reader(render(never))
    assert "Time in the server’s queue (Queue)" not in found.text
    both = Reader(render(compare(never, result())))
    assert "Of A it is always 0." in both.text


def test_a_sweep_is_a_curve_with_a_point_a_load(quick):
    shown = sweep_result(reasons=["It was late."])
    found = Reader(render(shown))
    throughput, first = (found.plots[f"plot-{number}"][0]["data"][0] for number in range(2))
    summaries = [each.summary for each in shown.rounds]
    assert throughput["x"] == [1 / each.latency["tpot"].percentiles["p50"].value for each in summaries]
    assert throughput["y"] == first["x"] == [each.rates["output_tokens"].value for each in summaries]
    assert first["y"] == [each.latency["ttft"].percentiles["p99"].value for each in summaries]
    assert throughput["text"] == ["2", "4", "8", "16"]
    assert throughput["marker"]["symbol"] == ["circle"] * 3 + ["circle-open"]
    assert "Of round 4 of 4 (16 requests/s)" in found.text
    assert "not certified" in found.text


def test_sweeps_share_their_plots(quick):
    shown = sweeps(3, seconds=10)
    found = Reader(render(shown))
    for figures in found.plots.values():
        assert [line["name"] for line in figures[0]["data"]] == ["server 0", "server 1", "server 2"]
        assert len({line["line"]["color"] for line in figures[0]["data"]}) == 3
    assert len(found.plots) == 2
    assert "3 sweeps, SmolLM2-135M-Instruct on llama-server b7205: shared-prefix, Poisson arrivals" in found.text


def test_a_comparison_spells_out_that_nothing_was_shown(quick):
    text = Reader(render(comparison(rounds=2, slower=1.0, failures=0.0))).text
    assert re.search(r"Of \d+ measures: no difference shown in \d+", text)


def test_the_file_is_written(tmp_path, quick):
    shown = result()
    write_report(shown, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(shown)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InvalidInput, match=r"missing.report\.html cannot be written: No such file"):
        write_report(shown, tmp_path / "missing" / "report.html")


def test_a_result_that_cannot_be_is_refused():
    with pytest.raises(InvalidInput) as caught:
        render(replace(result(), rounds=[]))
    assert caught.value.field == "rounds"
    shown = result()
    broken = replace(shown.rounds[0], requests=replace(shown.rounds[0].requests, due=[]))
    with pytest.raises(InvalidInput) as caught:
        render(replace(shown, rounds=[broken]))
    assert caught.value.field.startswith("rounds[0].requests.")


def test_a_missing_plotly_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(HeadraceError, match="pip install plotly"):
        render(result())


def test_plotly_is_loaded_only_when_a_page_is_written():
    code = "import sys, headrace.bench.report; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
