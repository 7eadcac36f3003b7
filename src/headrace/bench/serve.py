"""``bench serve``: rounds of load on a server, alone, in turn with another, or at rate after rate."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from headrace import __version__
from headrace.bench.load.collect import to_samples
from headrace.bench.load.compose import Composer
from headrace.bench.load.driver import Outcome, run_round
from headrace.bench.load.pace import OpenLoop
from headrace.bench.load.target import Inquirer, Question, Server, inquire
from headrace.bench.load.watch import Snapshot
from headrace.bench.plan import Arranged, Closed, Load, Open, arrange
from headrace.bench.results.certify import certify, generator
from headrace.bench.results.compare import compare
from headrace.bench.results.measure import Margin, summarize, window
from headrace.bench.results.result_file import to_requests
from headrace.bench.results.schema import (
    RESULT_SCHEMA,
    Certificate,
    Comparison,
    Plan,
    Point,
    Result,
    Round,
    Search,
)
from headrace.bench.results.search import next_rate, outcome
from headrace.bench.workload.prefixes import ideal_cached_share
from headrace.bench.workload.prompts import Lexicon, build_lexicon
from headrace.bench.workload.records import Workload
from headrace.errors import InvalidInput
from headrace.models.opening import open_checkpoint
from headrace.text.tokenizer import load_tokenizer

TRIALS = 3  # of a rate, while the generator is to blame


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure.

    Attributes:
        load: What to put on the server.
        question: How to ask it.
        tokenizer: Files of the served model, if its ``/tokenize`` is not to be asked.
        warmup: What does not count at the beginning.
        cooldown: What does not count at the end.
        slo: Bound by measure, seconds; empty if none.
        devices: Of the server.
        timeout_seconds: How long one request may take, from when it was sent.
        salt: Names the words that are drawn: the same load with another salt finds no prompt of an earlier run cached.
    """

    load: Load
    question: Question = Question()
    tokenizer: Path | None = None
    warmup: Margin
    cooldown: Margin
    slo: dict[str, float] = {}
    devices: int = 1
    timeout_seconds: float = 600.0
    salt: str


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the highest rate.

    Attributes:
        start: First rate tried, requests a second.
        target_share: Share of the requests that must meet the service level.
        tolerance: Relative width at which to stop.
        limit: Highest rate to try, or None.
    """

    start: float = 1.0
    target_share: float = 0.99
    tolerance: float = 0.03
    limit: float | None = None


class Show(Protocol):
    """Whoever watches."""

    def begin(self, title: str) -> None:
        """A round begins."""
        ...

    def snapshot(self, snapshot: Snapshot) -> None:
        """How it goes."""
        ...

    def end(self, found: Round) -> None:
        """What it brought."""
        ...


class Bench:
    """A server under measurement. Making one asks the server what it is and takes.

    Attributes:
        server: The server.
        context_length: Most tokens of a request and its answer, or None if nobody knows.
        rounds: What was measured so far.
        interrupted: Whether the user ended the last round early.

    Args:
        url: Its address.
        settings: How to measure.
        show: Whoever watches.

    Raises:
        HeadraceError: It does not answer, or cannot be measured.
        InvalidInput: A setting cannot be used.
    """

    def __init__(self, url: str, settings: Settings, show: Show) -> None:
        self.rounds: list[Round] = []
        self.interrupted = False
        self._settings = settings
        self._show = show
        self.server, self._lexicon = _ask(url, settings)
        self.context_length = self.server.target.context_length
        self._arranged = arrange(settings.load, self.context_length)
        _check_margins(self._arranged, settings)
        self._asked = self._arranged.workload  # of the last round, as far as it came

    def limit_context(self, tokens: int) -> None:
        """Ask for nothing longer than so many tokens, though the server might take it."""
        self.context_length = tokens
        self._arranged = arrange(self._settings.load, tokens)

    def round(self, title: str, *, rate: float | None = None) -> Round:
        """Measure once.

        Args:
            title: What to call it to whoever watches.
            rate: Requests a second, in place of those of the settings.
        """
        settings = self._settings
        load = settings.load
        arranged = self._arranged
        if rate is not None:
            load = at_rate(load, rate)
            arranged = arrange(load, self.context_length)
        composer = Composer(self.server, self._lexicon, load.seed, f"{settings.salt} {len(self.rounds)}")
        self._show.begin(title)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        seen = run_round(
            composer,
            arranged.workload.sessions,
            arranged.schedule,
            timeout_seconds=settings.timeout_seconds,
            watch=self._show.snapshot,
        )
        self.interrupted = seen.interrupted
        self._asked = _as_far_as(arranged, seen)
        found = _round(seen, settings, started, _steady_rate(load.arrivals))
        self.rounds.append(found)
        self._show.end(found)
        return found

    def result(self, search: Search | None = None) -> Result:
        """All that was measured."""
        settings = self._settings
        asked = self._asked
        plan = Plan(
            workload=asked.name,
            parameters=asked.parameters,
            sessions=len(asked.sessions),
            requests=asked.requests,
            skipped=asked.skipped,
            ideal_cached_share=ideal_cached_share(asked),
            arrivals="closed" if isinstance(settings.load.arrivals, Closed) else settings.load.arrivals.kind,
            arrival_parameters=_arrival_parameters(settings.load.arrivals),
            seed=settings.load.seed,
            warmup=str(settings.warmup),
            cooldown=str(settings.cooldown),
            devices=settings.devices,
            salt=settings.salt,
        )
        return Result(
            schema=RESULT_SCHEMA,
            version=__version__,
            machine=_machine(),
            target=self.server.target,
            plan=plan,
            rounds=self.rounds,
            search=search,
        )


def measure(bench: Bench, rounds: int) -> Result:
    """Measure a server, so many rounds with fresh prompts."""
    for number in range(rounds):
        bench.round("" if rounds == 1 else f"round {number + 1} of {rounds}")
        if bench.interrupted:
            break
    return bench.result()


def measure_against(a: Bench, b: Bench, rounds: int) -> Comparison:
    """Measure two servers in alternation, A B A B, so that what the machine does beside strikes both.

    Both are asked the same: what the shorter context of the two holds.
    """
    known = [bench.context_length for bench in (a, b) if bench.context_length is not None]
    for bench in (a, b):
        if known and bench.context_length != min(known):
            bench.limit_context(min(known))
    for number in range(rounds):
        for name, bench in (("A", a), ("B", b)):
            bench.round(f"round {number + 1} of {rounds}, {name}: {bench.server.address.url}")
            if bench.interrupted:
                raise InvalidInput("the comparison was interrupted", field="rounds")
    return compare(a.result(), b.result())


def find_max_rate(bench: Bench, search: SearchSettings) -> Result:
    """Search for the highest rate at which enough requests meet the service level."""
    points: list[Point] = []

    def tried() -> list[tuple[float, bool]]:
        return [(point.rate, point.met) for point in points]

    while (rate := next_rate(tried(), search.start, search.tolerance, search.limit)) is not None:
        met = _trial(bench, rate, search.target_share)
        points.append(Point(rate, len(bench.rounds) - 1, met))
        if bench.interrupted:
            break
    best = outcome(tried())
    return bench.result(
        Search(
            target_share=search.target_share,
            tolerance=search.tolerance,
            max_rate=best.max_rate,
            bounded=best.bounded,
            points=points,
        )
    )


def _trial(bench: Bench, rate: float, target_share: float) -> bool:
    """Whether a rate keeps the service level. One that fails where the generator was late is tried again."""
    for _ in range(TRIALS):
        found = bench.round(f"{rate:.4g} requests/s", rate=rate)
        goodput = found.summary.goodput
        met = goodput is not None and goodput.share.value >= target_share
        if met or found.certificate.certified or bench.interrupted:
            break
    return met


def at_rate(load: Load, rate: float) -> Load:
    """The same load at another rate: the same pattern of arrivals, faster or slower.

    Raises:
        InvalidInput: Its arrivals have no one rate.
    """
    arrivals = load.arrivals
    if isinstance(arrivals, Closed) or arrivals.end_rate is not None:
        raise InvalidInput("needs arrivals with one rate: constant, poisson, gamma or trace", field="arrivals")
    return msgspec.structs.replace(load, arrivals=msgspec.structs.replace(arrivals, rate=rate))


def _ask(url: str, settings: Settings) -> tuple[Server, Lexicon]:
    inquirer = Inquirer(url, settings.question.headers)
    try:
        if settings.tokenizer is None:
            lexicon = build_lexicon(inquirer.tokenize)
        else:
            tokenizer = load_tokenizer(open_checkpoint(settings.tokenizer).tokenizer)
            lexicon = build_lexicon(lambda text: tokenizer.encode(text, add_special_tokens=False))
        return inquire(inquirer, settings.question, lexicon), lexicon
    finally:
        inquirer.close()


def _check_margins(arranged: Arranged, settings: Settings) -> None:
    """Refuse what would leave nothing to count, as far as that is known before the load."""
    schedule = arranged.schedule
    span = float(schedule.starts[-1]) if isinstance(schedule, OpenLoop) else schedule.duration
    if span is not None and settings.warmup.seconds + settings.cooldown.seconds >= span > 0:
        raise InvalidInput(f"nothing is left of a load of {span:.3g} s; give less, or a longer load", field="warmup")


def _round(seen: Outcome, settings: Settings, started: str, rate: float | None) -> Round:
    samples = to_samples(seen.exchanges, seen.zero)
    inside = window(samples, settings.warmup, settings.cooldown)
    certificate = certify(samples, seen.log, inside)
    if seen.interrupted:
        certificate = Certificate(certified=False, reasons=["It was interrupted.", *certificate.reasons])
    return Round(
        started=started,
        rate=rate,
        summary=summarize(samples, inside, settings.slo or None, settings.devices),
        generator=generator(samples, seen.log, inside),
        certificate=certificate,
        requests=to_requests(samples),
        messages=seen.messages,
    )


def _as_far_as(arranged: Arranged, seen: Outcome) -> Workload:
    """The part of a workload that was begun: a closed loop may end before all of it."""
    begun = 1 + max((exchange.session for exchange in seen.exchanges), default=-1)
    return msgspec.structs.replace(arranged.workload, sessions=arranged.workload.sessions[:begun])


def _steady_rate(arrivals: Closed | Open) -> float | None:
    return None if isinstance(arrivals, Closed) or arrivals.end_rate is not None else arrivals.rate


def _arrival_parameters(arrivals: Closed | Open) -> dict[str, str | int | float | None]:
    given = msgspec.structs.asdict(arrivals)
    kind = given.pop("kind", None)
    if kind != "gamma":
        given.pop("burstiness", None)
    return {name: value for name, value in given.items() if value is not None}


def _machine() -> dict[str, str | int]:
    """Where the generator ran."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
