"""What goes between a search and who measures for it, and what a search brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.compiler.search.genes import Genome

OK = "ok"
PRUNED = "pruned: "


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one block of a genome.

    Attributes:
        verdict: ``ok``, or why it was rejected.
        ratios: Its time over the default's, workload by workload; empty if it was rejected.
    """

    verdict: str = OK
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was measured of the default program.

    Attributes:
        seconds: Of a step, workload by workload.
        shares: Of each block, its share of these.
        noise: Of each block, its cost (see ``Search.cost``) in further measurements of the very same program.
        reserve: Seconds that a confirmation is expected to take.
        full: Seconds of a step of the workloads themselves, where shorter ones stand for them while breeding.
    """

    seconds: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]
    noise: Mapping[str, tuple[float, ...]]
    reserve: float = 0.0
    full: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A whole program against the default one, in turn.

    Attributes:
        verdict: ``ok``, or why it was rejected.
        before: Seconds of a step by default, workload by workload.
        after: Seconds with the choices.
        noise: By how much the logarithm of their ratio is uncertain.
    """

    verdict: str = OK
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    noise: float = 0.0

    @property
    def ratios(self) -> tuple[float, ...]:
        """Its time over the default's."""
        return tuple(after / before for before, after in zip(self.before, self.after, strict=True))


class Measurer(Protocol):
    """Whoever compiles and times."""

    def elapsed(self) -> float:
        """Seconds since the search began."""

    def baseline(self) -> Baseline:
        """Measure the default program."""

    def evaluate(self, genomes: Sequence[Genome]) -> list[dict[str, Trial]]:
        """Measure genomes, each block of each; blocks as in the default are left out, but of the default genome."""

    def confirm(self, genome: Genome) -> Confirmation:
        """Measure a whole program against the default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to search.

    Attributes:
        weights: Of each workload in the mean that is made small; their sum is 1.
        seconds: What all of it may take.
        seed: Of all chance.
        population: Genomes of a generation.
        elites: Choices of a block that others are bred from.
        mutations: Most genes that change at once.
        immigrants: Share of choices that are drawn anew.
        patience: Generations without a gain after which it ends.
        start: Choices to begin with, beside the defaults: what an earlier search has found.
    """

    weights: tuple[float, ...]
    seconds: float
    seed: int = 0
    population: int = 8
    elites: int = 4
    mutations: int = 4
    immigrants: float = 0.15
    patience: int = 6
    start: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    Attributes:
        seconds: Since it began.
        generation: Which one ended.
        tried: Choices of blocks measured so far.
        rejected: Choices that were wrong, crashed, took too long, could not be written or compiled.
        pruned: Choices that the analytic bound spared.
        ratio: What the best blocks together should take of the default's time, in the weighted mean.
    """

    seconds: float
    generation: int
    tried: int
    rejected: int
    pruned: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found.

    Attributes:
        genome: The best; the default if nothing is better.
        confirmation: How it compares with the default; None if it is the default.
        baseline: Of the default.
        generations: How many there were.
        tried: See ``Progress``.
        rejected: See ``Progress``.
        pruned: See ``Progress``.
        ended: Why it ended.
    """

    genome: Genome
    confirmation: Confirmation | None
    baseline: Baseline
    generations: int
    tried: int
    rejected: int
    pruned: int
    ended: str
