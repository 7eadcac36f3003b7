"""Sweeps over loads beside each other: what is seen at which load, and whether the curves can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.bench.results.compare import answer_lengths, differences, troubles
from headrace.bench.results.schema import SWEEPS_SCHEMA, Over, Result, Round, Sweeps, Swept
from headrace.errors import InvalidInput


def compare_sweeps(sweeps: Sequence[Swept]) -> Sweeps:
    """Put sweeps beside each other, with warnings where the first and another were not asked alike.

    Args:
        sweeps: At least two; each has a name of its own.

    Raises:
        InvalidInput: There are fewer, two have one name, one is no sweep, or they are over different kinds of load.
    """
    if len(sweeps) < 2:
        raise InvalidInput("two sweeps at least are needed to compare them")
    again = [name for name, count in Counter(each.name for each in sweeps).items() if count > 1]
    if again:
        raise InvalidInput(f"two of the sweeps have the name {again[0]!r}; give each its own")
    kinds = {None if each.result.sweep is None else each.result.sweep.over for each in sweeps}
    if None in kinds:
        raise InvalidInput("one of the results is a sweep over loads and another is not; compare like with like")
    if len(kinds) > 1:
        raise InvalidInput("one of the sweeps is over concurrency and another over rates; compare like with like")
    return Sweeps(schema=SWEEPS_SCHEMA, warnings=_warnings(sweeps), sweeps=list(sweeps))


def _warnings(sweeps: Sequence[Swept]) -> list[str]:
    first = sweeps[0]
    found = []
    for other in sweeps[1:]:
        found += [
            f"{first.name} beside {other.name}: {difference}"
            for difference in (
                *differences(first.result, other.result),
                *answer_lengths(first.result.rounds, other.result.rounds),
            )
        ]
    for each in sweeps:
        found += troubles(each.name, each.result.rounds)
    return found


def loads_of(result: Result) -> list[tuple[Over, float, Round]]:
    """Of each round of a sweep what makes its load, how much, and the round; of another result none."""
    sweep = result.sweep
    if sweep is None:
        return []
    return [(sweep.over, load, each) for load, each in zip(sweep.loads, result.rounds, strict=True)]


def holds_start(over: Over, load: float, found: Round) -> bool:
    """Whether the window of a closed loop holds its start, when all sessions ask at once: that is not yet the load."""
    if over != "concurrency":
        return False
    due = found.requests.due
    return not due or found.summary.window[0] <= due[min(int(load), len(due)) - 1]
