"""A load as the user describes it, and as it is put on a server: sessions, and when they begin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from headrace.bench.load.pace import ClosedLoop, OpenLoop
from headrace.bench.results.samples import Floats
from headrace.bench.workload.arrivals import ArrivalLaw, start_times
from headrace.bench.workload.lengths import LengthLaw
from headrace.bench.workload.records import Session, Workload
from headrace.bench.workload.seeds import generator
from headrace.bench.workload.synthetic import MOST_REQUESTS, chat, random_prompts, shared_prefix
from headrace.bench.workload.traces import TraceOptions, read_trace
from headrace.errors import InvalidInput

DEFAULT_REQUESTS = 200
WAVES = 10  # requests of a closed loop for each session at a time: a share of 10 % is then the first of each
MANY_REQUESTS = 10_000  # enough for a closed loop that a duration ends
MOST_SECONDS = 366 * 86400.0
MEAN_OF = 10_000  # draws that tell the mean number of turns


class Synthetic(msgspec.Struct, frozen=True, kw_only=True):
    """A workload made from laws.

    Attributes:
        kind: ``random``: prompts that share nothing. ``shared-prefix``: few system prompts, many sessions of several
            turns. ``chat``: sessions of several turns that share nothing.
        requests: How many, over all sessions; None derives it from the duration, or takes ``DEFAULT_REQUESTS``, in a
            closed loop ``WAVES`` for each session at a time if that is more.
        prompt: Tokens of a prompt; with several turns, of each user message.
        output: Tokens of an answer.
        system_prompts: Of ``shared-prefix``: how many different ones.
        system: Their tokens.
        turns: Turns of a session, of all but ``random``; ``shared-prefix`` takes one number only.
        think: Seconds between an answer and the next turn.
    """

    kind: Literal["random", "shared-prefix", "chat"]
    requests: int | None
    prompt: LengthLaw
    output: LengthLaw
    system_prompts: int
    system: LengthLaw
    turns: LengthLaw
    think: float


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that was recorded: ``mooncake``, ``azure`` or ``agents``, its file or folder, how to make it fit."""

    kind: str
    path: Path
    options: TraceOptions


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """So many sessions at a time, until they are all done or ``duration`` seconds have passed.

    Raises:
        InvalidInput: A value out of range.
    """

    concurrency: int
    duration: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InvalidInput(f"{self.concurrency} must be at least 1", field="concurrency")
        _check_duration(self.duration)


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals that wait for nobody.

    Attributes:
        kind: Law of the gaps, or ``trace`` for the times of the trace.
        rate: Requests a second; with ``trace`` None keeps the recorded times, else they are stretched to this mean.
        end_rate: With it, the rate moves there in a straight line.
        burstiness: Shape of gamma gaps.
        duration: Seconds; None: until all sessions have begun.

    Raises:
        InvalidInput: A value out of range, no rate where there must be one, or a ramp of a trace's times.
    """

    kind: Literal["constant", "poisson", "gamma", "trace"]
    rate: float | None = None
    end_rate: float | None = None
    burstiness: float = 1.0
    duration: float | None = None

    def __post_init__(self) -> None:
        _check_duration(self.duration)
        if self.kind == "trace" and self.end_rate is not None:
            raise InvalidInput("a trace's times have no ramp; give one rate", field="rate")
        if self.kind != "trace" and self.rate is None:
            raise InvalidInput("give the requests a second", field="rate")
        if self.rate is not None:
            self.law(1.0)

    def law(self, share: float) -> ArrivalLaw:
        """The law of sessions, of which there are ``share`` for each request."""
        return ArrivalLaw(
            kind="poisson" if self.kind == "trace" else self.kind,
            rate=(self.rate or 0.0) * share,
            end_rate=None if self.end_rate is None else self.end_rate * share,
            burstiness=self.burstiness,
        )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to put on a server, reproducible by its seed."""

    workload: Synthetic | Trace
    arrivals: Closed | Open
    seed: int


class Arranged(msgspec.Struct, frozen=True):
    """Sessions, and when they begin."""

    workload: Workload
    schedule: OpenLoop | ClosedLoop


def arrange(load: Load, context_length: int | None) -> Arranged:
    """The sessions of a load and when they begin.

    Args:
        load: The load.
        context_length: Most tokens of a prompt and its answer that the server takes; None if it is not known.

    Raises:
        InvalidInput: The load makes no sense, or asks for more than the context holds.
    """
    workload = _workload(load, context_length)
    arrivals = load.arrivals
    if isinstance(arrivals, Closed):
        return Arranged(workload, ClosedLoop(arrivals.concurrency, arrivals.duration))
    starts = _starts(arrivals, workload, load.seed)
    if arrivals.duration is not None:
        within = int(np.searchsorted(starts, arrivals.duration))
        if within == 0:
            raise InvalidInput("no request is due within it; make it longer, or the rate higher", field="duration")
        sessions, starts = workload.sessions[:within], starts[:within]
        workload = msgspec.structs.replace(workload, sessions=sessions)
    return Arranged(workload, OpenLoop(starts))


def _workload(load: Load, context_length: int | None) -> Workload:
    if isinstance(load.workload, Trace):
        options = msgspec.structs.replace(load.workload.options, context_length=context_length)
        return read_trace(load.workload.kind, load.workload.path, options)
    made = _synthetic(load.workload, load.arrivals, load.seed)
    _check_fits(made, context_length)
    return made


def _synthetic(workload: Synthetic, arrivals: Closed | Open, seed: int) -> Workload:
    drawn = workload.turns.draw(generator(seed, "mean turns"), MEAN_OF)
    turns = 1.0 if workload.kind == "random" else float(drawn.mean())
    sessions = _sessions(workload.requests, arrivals, turns)
    match workload.kind:
        case "random":
            return random_prompts(sessions, workload.prompt, workload.output, seed)
        case "chat":
            return chat(sessions, workload.turns, workload.prompt, workload.output, workload.think, seed)
        case "shared-prefix":
            if workload.turns.kind != "constant":
                raise InvalidInput("of shared-prefix must be one number; chat draws them", field="turns")
            return shared_prefix(
                workload.system_prompts,
                sessions,
                int(turns),
                workload.system,
                workload.prompt,
                workload.output,
                workload.think,
                seed,
            )


def _sessions(requests: int | None, arrivals: Closed | Open, turns: float) -> int:
    """How many sessions a number of requests makes, or a duration, with so many turns each."""
    if requests is not None or arrivals.duration is None:
        waves = WAVES * arrivals.concurrency if isinstance(arrivals, Closed) else 0
        return max(math.ceil((requests or max(DEFAULT_REQUESTS, waves)) / turns - 1e-9), 1)
    if isinstance(arrivals, Closed) or arrivals.rate is None:
        return max(round(MANY_REQUESTS / turns), 1)
    rate = (arrivals.rate + (arrivals.end_rate or arrivals.rate)) / 2
    expected = arrivals.duration * rate / turns
    # Random arrivals may be more than expected: so many that fewer would be a wonder.
    reserve = 6 * math.sqrt(expected / min(arrivals.burstiness, 1.0)) + 10
    return math.ceil(min(expected + reserve, MOST_REQUESTS / turns))


def _check_duration(duration: float | None) -> None:
    if duration is not None and not 0 < duration <= MOST_SECONDS:
        raise InvalidInput(f"{duration:g} s must be above 0 and at most a year", field="duration")


def _check_fits(workload: Workload, context_length: int | None) -> None:
    if context_length is None:
        return
    longest = 0
    for session in workload.sessions:
        tokens = 0
        for turn in session.turns:
            tokens = (tokens if turn.continues else 0) + turn.tokens + turn.output_tokens
            longest = max(longest, tokens)
    if longest > context_length:
        raise InvalidInput(
            f"the longest request and its answer are {longest} tokens, the server's context is {context_length}; "
            "ask for shorter prompts or answers, or fewer turns",
            field="prompt_tokens",
        )


def _starts(arrivals: Open, workload: Workload, seed: int) -> Floats:
    """When the sessions begin: the rate of requests is kept, a session of several turns counts as so many."""
    sessions = len(workload.sessions)
    if arrivals.kind == "trace":
        return _trace_starts(workload.sessions, arrivals.rate, workload.requests)
    law = arrivals.law(sessions / workload.requests)
    starts = start_times(law, sessions, seed, arrivals.duration)
    if arrivals.duration is None and arrivals.end_rate is None:
        starts *= sessions / law.rate / float(starts[-1])  # few random arrivals may come at quite another rate
    return starts


def _trace_starts(sessions: tuple[Session, ...], rate: float | None, requests: int) -> Floats:
    if any(session.start is None for session in sessions):
        raise InvalidInput("this workload has no recorded times; choose constant, poisson or gamma", field="arrivals")
    starts = np.array([session.start for session in sessions], np.float64)
    if rate is None:
        return starts
    span = float(starts[-1])
    if span <= 0:
        raise InvalidInput("all sessions of the trace begin at once: no rate can stretch that", field="rate")
    return starts * (requests / rate / span)
