"""What a search brought: workloads before and after, beside what is possible, and the choices in words."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.compiler.search.bound import Rates, Workload, step_work
from headrace.compiler.search.genes import GeneSpace, Genome
from headrace.compiler.search.trials import Result
from headrace.runtime.compile import PreparedModel


@dataclass(frozen=True, slots=True)
class TunedWorkload:
    """A workload, before and after.

    Attributes:
        name: Such as ``decode_b8``.
        tokens: Of a step.
        default: Seconds of a step by default.
        tuned: With what was found.
        limit: Seconds that no program can beat here; 0 if the limits are not known.
    """

    name: str
    tokens: int
    default: float
    tuned: float
    limit: float


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What a search brought.

    Attributes:
        workloads: Before and after.
        genome: What was found; empty: the defaults stay.
        choices: In words.
        result: The search's own account.
        kept: Where the database has it; empty: nowhere.
        record: Where the search's record is; empty: nowhere.
    """

    workloads: tuple[TunedWorkload, ...]
    genome: Genome
    choices: tuple[str, ...]
    result: Result
    kept: str
    record: str


def summary(
    prepared: PreparedModel,
    space: GeneSpace,
    result: Result,
    loads: tuple[Workload, ...],
    names: tuple[str, ...],
    rates: Rates,
) -> TuneReport:
    """A result with its limits and its choices in words."""
    found = []
    confirmed = result.confirmation
    for n, name in enumerate(names):
        load = next(load for load in loads[1:] if load.name == name)
        before = confirmed.before[n] if confirmed else (result.baseline.full or result.baseline.seconds)[n]
        after = confirmed.after[n] if confirmed else before
        limit = step_work(prepared.program.parts, load).seconds(rates)
        found.append(TunedWorkload(name, load.tokens, before, after, limit))
    return TuneReport(tuple(found), result.genome, tuple(space.describe(result.genome)), result, "", "")
