"""The file: template, style, script, Plotly's library and the data in one page that loads nothing.

A content security policy forbids every request, and every script but these two, named by their hashes: were some text
of a result ever to become markup, the browser would still not run it.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template

from headrace.bench.report.board import Board
from headrace.bench.report.comparison_page import comparison_page
from headrace.bench.report.description import comparison_headline, headline, sweeps_headline
from headrace.bench.report.markup import joined
from headrace.bench.report.result_page import result_page
from headrace.bench.report.sweeps_page import sweeps_page
from headrace.bench.results.result_file import from_requests, write_whole
from headrace.bench.results.samples import Samples
from headrace.bench.results.schema import Comparison, Document, Result, Sweeps
from headrace.errors import HeadraceError, InvalidInput

FOLDER = Path(__file__).parent


def render(result: Document) -> str:
    """The page of a result, of a comparison, or of several sweeps, one HTML document.

    Raises:
        InvalidInput: A result has no rounds, or columns of requests that do not fit together.
        HeadraceError: The package ``plotly`` is missing or does not carry its library as expected.
    """
    board = Board()
    if isinstance(result, Comparison):
        title, version = comparison_headline(result), result.a.version
        sides = (_samples(result.a, "a.rounds"), _samples(result.b, "b.rounds"))
        header, content = comparison_page(result, sides, board)
    elif isinstance(result, Sweeps):
        title, version = sweeps_headline(result), result.sweeps[0].result.version
        header, content = sweeps_page(result, board)
    else:
        title, version = headline(result), result.version
        header, content = result_page(result, _samples(result, "rounds"), board)
    script, library = _read("report.js"), plotly_library()
    return Template(_read("page.html")).substitute(
        policy=_policy(script, library),
        version=joined([version]),
        title=joined([title]),
        style=_read("style.css"),
        header=header,
        content=content,
        footer=joined([f"Written by headrace {version}. This page is one file and loads nothing."]),
        plots=board.json(),
        plotly=library,
        script=script,
    )


def write_report(result: Document, path: Path) -> None:
    """Write the page to a file, which appears whole or not at all.

    Raises:
        InvalidInput: It cannot be written there, or as ``render`` says.
        HeadraceError: As ``render`` says.
    """
    write_whole(path, render(result).encode())


def plotly_library() -> str:
    """Plotly's JavaScript, which its Python package carries."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ImportError as error:
        raise HeadraceError("reports need the package plotly, which is missing: pip install plotly") from error
    # Browsers read a lone line feed for every kind of line end, and hash what they have read.
    library = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in library.lower() or "<!--" in library:
        raise HeadraceError("this version of plotly cannot stand inside a page; install another one")
    return library


def _samples(result: Result, field: str) -> list[Samples]:
    if not result.rounds:
        raise InvalidInput("there is no round to report; a result holds at least one", field=field)
    found = []
    for index, each in enumerate(result.rounds):
        try:
            found.append(from_requests(each.requests))
        except InvalidInput as error:
            raise error.renamed(f"{field}[{index}].requests.{error.field}") from error
    return found


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
