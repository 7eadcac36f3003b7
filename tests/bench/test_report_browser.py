"""The pages in a real browser: nothing complains, nothing is loaded, everything is drawn."""

import pytest
from bench_results import comparison, hostile_result, result, search_result, sweep_result, sweeps
from chromium import CHROMIUM, opened_page

from headrace.bench.report import write_report
from headrace.bench.results.compare import compare

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium or google-chrome here")

PAGES = {
    "result": result,
    "search": lambda: search_result(seconds=20),
    "comparison": lambda: comparison(rounds=2),
    "hostile": hostile_result,
    "sweep": lambda: sweep_result(reasons=["It was late."]),
    "sweeps": lambda: sweeps(7),
    "searches": lambda: compare(search_result(seconds=20, gap=0.016), search_result(seconds=20)),
}
PLACES = "[...document.querySelectorAll('figure:not([hidden]) [data-plot]')]"
DRAWN = (
    f"{PLACES}.filter((place) => place.matches('.js-plotly-plot') && place.querySelector('svg.main-svg .xy')).length"
)
# What Plotly's own check says of an attribute that it does not know, or of a value that it does not take.
FAULTS = f"""{PLACES}.flatMap(({{ data, layout: {{ template, ...layout }} }}) => Plotly.validate(data, layout) || [])
    .filter((fault) => ["schema", "value", "array", "object"].includes(fault.code)).map((fault) => fault.msg)"""
# Texts of a plot that leave its picture, or tick labels of one axis that touch.
CLIPPED = f"""{PLACES}.flatMap((place) => {{
    const frame = place.getBoundingClientRect();
    return [...place.querySelectorAll("svg text")].filter((text) => {{
        const box = text.getBoundingClientRect();
        return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1
            || box.top < frame.top - 1);
    }}).map((text) => text.textContent);
}})"""
TOUCHING = f"""{PLACES}.flatMap((place) => ["xtick", "ytick"].flatMap((kind) => {{
    const labels = [...place.querySelectorAll(`.${{kind}} text`)];
    const boxes = labels.map((label) => [label.textContent, label.getBoundingClientRect()]);
    return boxes.filter(([, a], at) => boxes.slice(at + 1).some(([, b]) => a.left < b.right && b.left < a.right
        && a.top < b.bottom - 2 && b.top < a.bottom - 2)).map(([text]) => text);
}}))"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with opened_page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    written = {}

    def write(kind):
        if kind not in written:
            written[kind] = folder / f"{kind.replace(' ', '-')}.html"
            write_report(PAGES[kind](), written[kind])
        return written[kind].as_uri()

    return write


def opened(tab, url, **look):
    tab.problems.clear()
    tab.requests.clear()
    tab.look(**{"width": 1200, **look})
    tab.open(url)
    return tab


@pytest.mark.parametrize("kind", PAGES)
def test_the_page_draws_everything_and_fits(tab, files, kind):
    opened(tab, files(kind))
    assert tab.evaluate(f"{PLACES}.length") > 0
    assert tab.evaluate("[document.scripts.length, document.querySelectorAll('img').length]") == [3, 0]
    for width in (1200, 400):
        tab.look(width)
        tab.wait(f"{PLACES}.every((place) => place.layout.width === place.clientWidth)")
        assert tab.evaluate(DRAWN) == tab.evaluate(f"{PLACES}.length")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate(CLIPPED) == []
        assert tab.evaluate(TOUCHING) == []
    if kind in {"search", "comparison"}:
        assert tab.evaluate(FAULTS) == []
    assert tab.problems == []
    assert {url for url in tab.requests if not url.startswith("data:")} == {files(kind)}


def test_the_page_and_its_plots_follow_the_colour_scheme(tab, files):
    line = "document.querySelector('[data-plot]').data[0].line.color"
    ground = "getComputedStyle(document.body).backgroundColor"
    opened(tab, files("result"), dark=False)
    light = tab.evaluate(line), tab.evaluate(ground)
    tab.look(1200, dark=True)
    tab.wait(f"{line} !== {light[0]!r}")
    assert tab.evaluate(ground) != light[1]
    assert tab.problems == []


def test_the_selector_shows_another_round(tab, files):
    opened(tab, files("search"))
    panels = "[...document.querySelectorAll('[data-round]')]"
    shown = f"{panels}.filter((panel) => !panel.hidden).map((panel) => panel.dataset.round)"
    select = "const one = document.getElementById('round'); one.value = '{}'; one.dispatchEvent(new Event('change'))"
    curve = "document.querySelectorAll('[data-plot]')[4].data[0].x.join()"
    seen = set()
    for number in ("0", "1"):
        tab.evaluate("(() => {" + select.format(number) + "})()")
        assert set(tab.evaluate(shown)) == {number}
        seen.add(tab.evaluate(curve))
    assert len(seen) == 2
    assert tab.problems == []


def test_a_zoom_in_time_reaches_the_plots_beside_it_and_keeps_round_ticks(tab, files):
    opened(tab, files("result"))
    zoom = "Plotly.relayout(document.querySelector('{}'), {{'xaxis.range[0]': {}, 'xaxis.range[1]': {}}}).then(() => 1)"
    ranges = "JSON.stringify([...document.querySelectorAll('[data-time]')].map((place) => place.layout.xaxis.range))"
    tab.evaluate(zoom.format("[data-time]", 10, 20))
    tab.wait(f"{ranges} === '[[10,20],[10,20],[10,20],[10,20]]'")
    tab.evaluate(zoom.format("[data-plot]", -1.01, -0.5))
    tab.wait("document.querySelector('[data-plot] .xtick text').textContent === '100 ms'")
    assert tab.problems == []


def test_the_page_prints(tab, files, tmp_path):
    opened(tab, files("result"), dark=True)
    tab.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert tab.evaluate("document.documentElement.className") == ""
    assert tab.evaluate(DRAWN) == tab.evaluate(f"{PLACES}.length")
    assert tab.problems == []
