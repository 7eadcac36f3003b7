"""``bench serve``: rounds of load on a server, alone, in turn with another, or at rate after rate."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from headrace import __version__
from headrace.bench.load.collect import to_samples
from headrace.bench.load.compose import Composer
from headrace.bench.load.driver import Seen, run_round
from headrace.bench.load.http import OUT_OF_FILES
from headrace.bench.load.pace import ClosedLoop, OpenLoop
from headrace.bench.load.target import Inquirer, Question, Server, inquire
from headrace.bench.load.watch import Snapshot
from headrace.bench.plan import Arranged, Closed, Load, Open, arrange
from headrace.bench.results.certify import certify, generator
from headrace.bench.results.compare import compare
from headrace.bench.results.measure import Margin, Window, summarize, window
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
    Sweep,
)
from headrace.bench.results.search import next_rate, outcome
from headrace.bench.results.wording import given
from headrace.bench.workload.prefixes import ideal_cached_share
from headrace.bench.workload.prompts import Lexicon, build_lexicon
from headrace.bench.workload.records import Workload
from headrace.errors import InvalidInput
from headrace.models.opening import open_checkpoint
from headrace.text.tokenizer import load_tokenizer

TRIALS = 3  # of a rate, while the generator is to blame
# Requests under way at a time, below which no lower rate can help: where some met the level, and where none did.
IDLE, IDLE_NONE_MET = 0.1, 1.0
NO_IDS = "The server tells no token ids of its answers: drawn words stand in for them in a conversation."


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
        self._arrange()
        _check_margins(self._arranged, settings)
        self._asked: Workload | None = None  # of the round that came farthest

    def ask_as(self, other: Bench) -> None:
        """Ask in no other way than the other server can be asked too: a comparison needs the same load for both."""
        servers = (self.server, other.server)
        targets = [server.target for server in servers]
        wanted = self._settings.question
        if wanted.api == "completions":
            text = any(target.prompts == "text" for target in targets)
            wanted = msgspec.structs.replace(wanted, prompts="text" if text else "tokens")
        ignores = all(server.ignores_eos for server in servers)
        wanted = msgspec.structs.replace(wanted, ignore_eos=ignores)
        self._settings = msgspec.structs.replace(self._settings, question=wanted)
        server, self._lexicon = _ask(self.server.address.url, self._settings)
        known = [target.context_length for target in targets if target.context_length is not None]
        self.server = msgspec.structs.replace(
            server,
            target=msgspec.structs.replace(server.target, context_length=min(known, default=None)),
            returns_ids=server.counts_by_ids or all(each.returns_ids for each in servers),
        )
        self._arrange()

    def _arrange(self) -> None:
        self._arranged = arrange(self._settings.load, self._room)
        turns = (turn for session in self._arranged.workload.sessions for turn in session.turns)
        server = self.server
        if server.target.prompts == "tokens" and not server.returns_ids and any(turn.continues for turn in turns):
            target = msgspec.structs.replace(server.target, notes=[*server.target.notes, NO_IDS])
            self.server = msgspec.structs.replace(server, target=target)

    @property
    def load(self) -> Load:
        """What is put on the server."""
        return self._settings.load

    @property
    def _room(self) -> int | None:
        """Tokens of a prompt and its answer that the server has room for, beside what it adds itself."""
        length = self.server.target.context_length
        return None if length is None else length - self.server.overhead

    def check(self, arrivals: Closed | Open) -> None:
        """Refuse arrivals that make no load, or one of which nothing would count, as far as that is known beforehand.

        Raises:
            InvalidInput: They are such.
        """
        load = msgspec.structs.replace(self._settings.load, arrivals=arrivals)
        _check_margins(arrange(load, self._room), self._settings)

    def round(self, title: str, arrivals: Closed | Open | None = None) -> Round:
        """Measure once.

        Args:
            title: What to call it to whoever watches.
            arrivals: In place of those of the settings.
        """
        settings = self._settings
        load = settings.load
        arranged = self._arranged
        if arrivals is not None:
            load = msgspec.structs.replace(load, arrivals=arrivals)
            arranged = arrange(load, self._room)
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
        with undisturbed():
            self.interrupted = seen.interrupted
            asked = _as_far_as(arranged, seen)
            if self._asked is None or asked.requests > self._asked.requests:
                self._asked = asked
            found = _round(seen, settings, started, _steady_rate(load.arrivals), whole=_is_whole(arranged))
            self.rounds.append(found)
            self._show.end(found)
        return found

    def result(self, search: Search | None = None, sweep: Sweep | None = None) -> Result:
        """All that was measured."""
        settings = self._settings
        asked = self._asked or self._arranged.workload
        arrivals = _arrival_parameters(settings.load.arrivals)
        if search is not None:
            arrivals.pop("rate", None)  # each round has its own
        if sweep is not None:
            arrivals[sweep.over] = ", ".join(map(given, sweep.loads))
        plan = Plan(
            workload=asked.name,
            parameters=asked.parameters,
            sessions=len(asked.sessions),
            requests=asked.requests,
            skipped=asked.skipped,
            ideal_cached_share=ideal_cached_share(asked),
            arrivals="closed" if isinstance(settings.load.arrivals, Closed) else settings.load.arrivals.kind,
            arrival_parameters=arrivals,
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
            sweep=sweep,
        )


def measure(bench: Bench, rounds: int) -> Result:
    """Measure a server, so many rounds with fresh prompts. An interruption ends it with what was measured."""
    try:
        for number in range(rounds):
            bench.round("" if rounds == 1 else f"round {number + 1} of {rounds}")
            if bench.interrupted:
                break
    except KeyboardInterrupt:  # between rounds, or while one was prepared
        if not bench.rounds:
            raise
        bench.interrupted = True
    return bench.result()


def measure_against(a: Bench, b: Bench, rounds: int) -> Comparison:
    """Measure two servers in alternation, A B A B, so that what the machine does beside strikes both.

    Both are asked the same lengths at the same moments, and in the same way: as the one that takes less. An
    interruption ends it with the pairs of rounds that are complete, if there are any.
    """
    a.ask_as(b)
    b.ask_as(a)
    try:
        for number in range(rounds):
            for name, bench in zip("AB", (a, b), strict=True):
                bench.round(f"round {number + 1} of {rounds}, {name}: {bench.server.address.url}")
                if bench.interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        a.interrupted = True
        pairs = len(b.rounds) - b.interrupted
        if pairs < 1:
            raise
        for bench in (a, b):
            del bench.rounds[pairs:]
    return compare(a.result(), b.result())


def find_max_rate(bench: Bench, search: SearchSettings) -> Result:
    """Search for the highest rate at which enough requests meet the service level.

    It also ends when no lower rate could meet it: nothing succeeds, or requests hardly meet each other any more.
    """
    points: list[Point] = []

    def tried() -> list[tuple[float, bool]]:
        return [(point.rate, point.met) for point in points]

    try:
        while (rate := next_rate(tried(), search.start, search.tolerance, search.limit)) is not None:
            met = _trial(bench, rate, search.target_share)
            if bench.interrupted:
                break
            points.append(Point(rate, len(bench.rounds) - 1, met))
            if not met and _is_idle(bench.rounds[-1]):
                break
    except KeyboardInterrupt:
        if not points:
            raise
        bench.interrupted = True
    except InvalidInput:  # such as a duration within which no request is due any more
        if not points:
            raise
    best = outcome(tried())
    return bench.result(
        Search(
            target_share=search.target_share,
            tolerance=search.tolerance,
            max_rate=best.max_rate,
            failed_rate=best.failed_rate,
            points=points,
        )
    )


def _trial(bench: Bench, rate: float, target_share: float) -> bool:
    """Whether a rate keeps the service level. One that fails where the generator was late is tried again."""
    for _ in range(TRIALS):
        found = bench.round(f"{rate:.4g} requests/s", at_rate(bench.load, rate).arrivals)
        goodput = found.summary.goodput
        met = goodput is not None and goodput.share.value >= target_share
        if met or found.certificate.certified or bench.interrupted or not found.summary.succeeded:
            break
    return met


def _is_idle(found: Round) -> bool:
    """Whether requests hardly ever met in a round, so that a lower rate would not make them faster."""
    summary = found.summary
    e2e = summary.latency.get("e2e")
    if e2e is None:
        return True
    under_way = e2e.mean.value * summary.rates["requests_due"].value
    return under_way < (IDLE if summary.goodput is not None and summary.goodput.met else IDLE_NONE_MET)


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
        model = inquirer.model(settings.question.model)
        if settings.tokenizer is None:
            lexicon = build_lexicon(lambda text: inquirer.tokenize(text, model.name))
        else:
            tokenizer = load_tokenizer(open_checkpoint(settings.tokenizer).tokenizer)
            lexicon = build_lexicon(lambda text: tokenizer.encode(text, add_special_tokens=False))
        return inquire(inquirer, settings.question, model, lexicon), lexicon
    finally:
        inquirer.close()


def _check_margins(arranged: Arranged, settings: Settings) -> None:
    """Refuse what would leave nothing to count, as far as that is known before the load."""
    warmup, cooldown = settings.warmup, settings.cooldown
    if warmup.share + cooldown.share >= 1:
        raise InvalidInput(
            "nothing is left between warm-up and cool-down; give less than 100% together", field="warmup"
        )
    schedule = arranged.schedule
    if isinstance(schedule, OpenLoop):
        thinking = [sum(turn.think for turn in session.turns) for session in arranged.workload.sessions]
        span = float((schedule.starts + thinking).max())
    else:
        span = schedule.duration or 0.0
    if warmup.seconds + cooldown.seconds >= span > 0:
        raise InvalidInput(f"nothing is left of a load of {span:.3g} s; give less, or a longer load", field="warmup")


@contextmanager
def undisturbed() -> Iterator[None]:
    """No Ctrl-C while what was measured is put in order: it would be lost."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_whole(arranged: Arranged) -> bool:
    """Whether all sessions begin at once, so that there is no steady part with a beginning and an end."""
    schedule = arranged.schedule
    return isinstance(schedule, ClosedLoop) and schedule.concurrency >= len(arranged.workload.sessions)


def _round(seen: Seen, settings: Settings, started: str, rate: float | None, *, whole: bool) -> Round:
    samples = to_samples(seen.exchanges, seen.zero)
    reasons = ["It was interrupted."] if seen.interrupted else []
    if OUT_OF_FILES in samples.error:
        reasons.append("The generator ran out of open files: raise the limit (ulimit -n).")
    try:
        inside = window(samples, settings.warmup, settings.cooldown)
    except InvalidInput:
        inside = window(samples)
        reasons.append("Warm-up and cool-down left no request: all of the round counts.")
    if whole and len(samples):
        inside = Window(0.0, float(np.nanmax(np.concatenate([samples.due, samples.end]))))
    reasons += certify(samples, seen.log, inside).reasons
    return Round(
        started=started,
        rate=rate,
        summary=summarize(samples, inside, settings.slo or None, settings.devices),
        generator=generator(samples, seen.log, inside),
        certificate=Certificate(certified=not reasons, reasons=reasons),
        requests=to_requests(samples),
        messages=seen.messages,
    )


def _as_far_as(arranged: Arranged, seen: Seen) -> Workload:
    """The part of a workload that was begun: a closed loop may end before all of it."""
    begun = 1 + max((exchange.session for exchange in seen.exchanges), default=-1)
    return msgspec.structs.replace(arranged.workload, sessions=arranged.workload.sessions[:begun])


def _steady_rate(arrivals: Closed | Open) -> float | None:
    return None if isinstance(arrivals, Closed) or arrivals.end_rate is not None else arrivals.rate


def _arrival_parameters(arrivals: Closed | Open) -> dict[str, str | int | float | None]:
    made_from = msgspec.structs.asdict(arrivals)
    kind = made_from.pop("kind", None)
    if kind != "gamma":
        made_from.pop("burstiness", None)
    return {name: value for name, value in made_from.items() if value is not None}


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
