"""One load after the other, on a server or on two in alternation: the curve of throughput against latency."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from headrace.bench.plan import Closed, Open
from headrace.bench.results.schema import Over, Result, Sweep, Sweeps, Swept
from headrace.bench.results.sweeps import compare_sweeps
from headrace.bench.results.wording import load_size
from headrace.bench.serve import Bench
from headrace.errors import InvalidInput


def check_sweep(arrivals: Sequence[Closed | Open]) -> Sweep:
    """What a sweep over these loads is over.

    Raises:
        InvalidInput: ``concurrency`` or ``rate``: they do not ascend, or one is a ramp.
    """
    over: Over = "concurrency" if isinstance(arrivals[0], Closed) else "rate"
    if any(isinstance(each, Open) and each.end_rate is not None for each in arrivals):
        raise InvalidInput("a ramp is not one load; give a list of rates, such as 1,2,4", field=over)
    loads = [float((each.concurrency if isinstance(each, Closed) else each.rate) or 0) for each in arrivals]
    if any(low >= high for low, high in pairwise(loads)):
        raise InvalidInput("a list of loads must ascend, such as 1,2,4", field=over)
    return Sweep(over=over, loads=loads)


def sweep(bench: Bench, arrivals: Sequence[Closed | Open]) -> Result:
    """Measure a server under one load after the other, a round each. An interruption keeps the loads that are complete.

    Raises:
        InvalidInput: They do not ascend, or one makes no load for this server.
    """
    (result,) = _sweep({"": bench}, arrivals)
    return result


def sweep_against(a: Bench, b: Bench, arrivals: Sequence[Closed | Open]) -> Sweeps:
    """Measure two servers under one load after the other, A B A B, both asked as the one that takes less.

    Raises:
        InvalidInput: As of ``sweep``.
    """
    a.ask_as(b)
    b.ask_as(a)
    results = _sweep({"A: ": a, "B: ": b}, arrivals)
    names = _names(a, b)
    return compare_sweeps([Swept(name, result) for name, result in zip(names, results, strict=True)])


def _sweep(benches: dict[str, Bench], arrivals: Sequence[Closed | Open]) -> list[Result]:
    planned = check_sweep(arrivals)
    for bench in benches.values():
        for each in arrivals:
            bench.check(each)
    try:
        for load, each in zip(planned.loads, arrivals, strict=True):
            for name, bench in benches.items():
                bench.round(f"{name}{load_size(planned.over, load)}", each)
                if bench.interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        complete = min(len(bench.rounds) - bench.interrupted for bench in benches.values())
        if complete < 1:
            raise
        for bench in benches.values():
            bench.interrupted = True
            del bench.rounds[complete:]
        planned = Sweep(over=planned.over, loads=planned.loads[:complete])
    return [bench.result(sweep=planned) for bench in benches.values()]


def _names(a: Bench, b: Bench) -> list[str]:
    """What tells the two apart: where they listen, else their models, else the order."""
    targets = [bench.server.target for bench in (a, b)]
    for names in ([target.url for target in targets], [target.model for target in targets]):
        if names[0] != names[1]:
            return names
    return ["A", "B"]
