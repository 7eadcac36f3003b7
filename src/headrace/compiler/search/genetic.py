"""The search itself: populations of choices, one a block, bred by what was measured.

    generation    genome 1   embed/0: a   layers/0: c   layers/1: f   …      one run of the whole step times them all,
                  genome 2   embed/0: b   layers/0: d   layers/1: f   …      block by block
                     ⋮
    selection     embed/0: b    layers/0: c    layers/1: f  …                each block by its own times

So a generation of eight tries eight choices in every block; the best of all blocks, together, are measured again in
each generation, and against the default at the end. Whatever measures is given: nothing here knows a clock or code.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.compiler.search.genes import DEFAULT, GeneSpace, Genome
from headrace.compiler.search.trials import (
    OK,
    PRUNED,
    Confirmation,
    Measurer,
    Progress,
    Result,
    Settings,
    Trial,
)

TOLERANCE = 0.01  # how much slower than the default a workload may seem and count as unchanged, beside the noise


@dataclass(slots=True)
class _Member:
    """A choice for a block, with the ratios of each time that it was measured."""

    genome: Genome
    ratios: list[tuple[float, ...]] = field(default_factory=list)

    def mean(self) -> tuple[float, ...]:
        """Its ratios, the median of all measurements."""
        return tuple(statistics.median(each) for each in zip(*self.ratios, strict=True))


class Search:
    """A search under way.

    Args:
        space: What may be chosen.
        measurer: Who measures.
        settings: How to search.
        report: Called after each generation.
    """

    def __init__(
        self,
        space: GeneSpace,
        measurer: Measurer,
        settings: Settings,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.space, self.measurer, self.settings, self.report = space, measurer, settings, report
        self.rng = random.Random(settings.seed)
        self.members: dict[str, list[_Member]] = {block: [] for block in space.blocks}
        self.seen: dict[str, set[Genome]] = {block: {DEFAULT} for block in space.blocks}
        self.tried = self.rejected = self.pruned = self.generation = 0
        self.samples: dict[str, list[float]] = {}  # costs of what should cost nothing
        self.start = space.genome(dict(settings.start))
        self.noted = dict.fromkeys(space.blocks, 0.0)  # the gains that patience has seen

    def run(self) -> Result:
        """Search until the time is up, nothing is gained any more, or everything was tried.

        An interrupt ends it with the best so far.
        """
        self.base = self.measurer.baseline()
        self.samples = {block: list(costs) for block, costs in self.base.noise.items()}
        try:
            ended = self._breed()
        except KeyboardInterrupt:
            ended = "interrupted"
        genome, confirmation = self._best()
        return Result(genome, confirmation, self.base, self.generation, self.tried, self.rejected, self.pruned, ended)

    def _breed(self) -> str:
        idle = 0
        last = 0.0  # seconds of a generation
        while idle < self.settings.patience:
            begin = self.measurer.elapsed()
            needed = begin + last + self.base.reserve
            if needed > self.settings.seconds:
                least = f"the time is up before a choice was tried; the defaults and the end take {needed:.0f} s"
                return "the time is up" if self.generation else least
            genomes = self._offspring()
            if not genomes:
                return "everything was tried"
            for genome, trials in zip(genomes, self.measurer.evaluate(genomes), strict=True):
                self._note(genome, trials)
            self.generation += 1
            idle = 0 if self._gained() else idle + 1
            now = self.measurer.elapsed()
            last = max(now - begin, last / 2)
            ratio = math.exp(sum(self.cost(b, self._champion(b)) for b in self.members))
            self.report(Progress(now, self.generation, self.tried, self.rejected, self.pruned, ratio))
        return f"{idle} generations gained nothing"

    # -- judging

    def cost(self, block: str, member: _Member | None) -> float:
        """The logarithm of what the step takes with this choice over what it takes by default; weighted mean."""
        if member is None:
            return 0.0
        shares = self.base.shares.get(block, (0.0,) * len(self.settings.weights))
        return weighted(self.settings.weights, shares, member.mean())

    def noise(self, block: str, member: _Member | None = None) -> float:
        """How large a gain of a block must be to be one: twice what is usual of the default against itself."""
        samples = self.samples.get(block) or [0.0]
        times = len(member.ratios) if member is not None else 1
        return 2 * statistics.median(map(abs, samples)) / math.sqrt(times)

    def _note(self, genome: Genome, trials: Mapping[str, Trial]) -> None:
        for block, trial in trials.items():
            mine = self.space.only(genome, block)
            if not mine.values:
                if trial.verdict == OK:
                    self.samples.setdefault(block, []).append(self.cost(block, _Member(mine, [trial.ratios])))
                continue
            known = next((m for m in self.members[block] if m.genome == mine), None)
            self.tried += known is None
            if trial.verdict != OK:
                self.pruned += trial.verdict.startswith(PRUNED)
                self.rejected += not trial.verdict.startswith(PRUNED)
                # What failed once is no candidate any more, however well it did before.
                self.members[block] = [m for m in self.members[block] if m.genome != mine]
            elif known is not None:
                known.ratios.append(trial.ratios)
            else:
                self.members[block].append(_Member(mine, [trial.ratios]))
        for block, members in self.members.items():
            members.sort(key=lambda m: (self.cost(block, m), m.genome))
            del members[2 * self.settings.elites :]

    def _champion(self, block: str) -> _Member | None:
        """The best choice of a block, if it is better than the default by more than the noise."""
        for member in self.members[block]:
            if self.cost(block, member) < -self.noise(block, member):
                return member
        return None

    def _gained(self) -> bool:
        """Whether some block is better than it was, by more than the noise."""
        gained = False
        for block in self.members:
            cost = self.cost(block, self._champion(block))
            if cost < self.noted[block] - self.noise(block):
                self.noted[block], gained = cost, True
        return gained

    # -- breeding

    def _offspring(self) -> list[Genome]:
        """The next generation: the default, which tells the noise; the best so far, together; and new ones.

        Empty if there is nothing new.
        """
        champions = [member.genome for block in self.members if (member := self._champion(block))]
        if not self.generation:
            champions = [part for block in self.members if (part := self.space.only(self.start, block)).values]
            for part in champions:
                self.seen[self.space.genes[part.values[0][0]].block].add(part)
        genomes = [DEFAULT, *([self.space.join(champions)] if champions else [])]
        first = len(genomes)
        for turn in range(self.settings.population - len(champions[:1])):
            wanted = [block for block in self.members if turn < self._quota(block)]
            parts = [child for block in wanted if (child := self._child(block)) is not None]
            if not parts:
                break
            genomes.append(self.space.join(parts))
        return genomes if len(genomes) > first else []

    def _quota(self, block: str) -> int:
        """How many choices of a block a generation tries: fewer where there is little time to gain."""
        shares = self.base.shares.get(block, ())
        share = sum(w * s for w, s in zip(self.settings.weights, shares, strict=False))
        return math.ceil(self.settings.population * min(1.0, 2 * share * len(self.members)))

    def _child(self, block: str) -> Genome | None:
        """A choice for a block that was not tried yet; None if none is found."""
        for _ in range(16):
            child = self._bred(block)
            if child not in self.seen[block]:
                self.seen[block].add(child)
                return child
        return None

    def _bred(self, block: str) -> Genome:
        rng, parents = self.rng, self.members[block][: self.settings.elites]
        if rng.random() < self.settings.immigrants:
            return self.space.draw(rng, block)
        a, b = (self._parent(parents) for _ in range(2))
        child = self.space.crossover(a, b, rng, block) if rng.random() < 0.5 else a
        return self.space.mutate(child, rng, block, rng.randint(1, self.settings.mutations))

    def _parent(self, parents: Sequence[_Member]) -> Genome:
        """The better of two, or the default, which is a parent like others."""
        pair = sorted(self.rng.randint(0, len(parents)) for _ in range(2))
        at = pair[0]
        return parents[at].genome if at < len(parents) else DEFAULT

    # -- the end

    def _best(self) -> tuple[Genome, Confirmation | None]:
        """The best blocks together; else those that slow no workload down; else the default."""
        champions = {block: m for block in self.members if (m := self._champion(block)) is not None}
        steady = {block: m for block, m in champions.items() if max(m.mean()) <= 1 + TOLERANCE}
        tried: set[Genome] = {DEFAULT}
        for chosen in (champions, steady):
            genome = self.space.join(m.genome for m in chosen.values())
            if genome in tried:
                continue
            tried.add(genome)
            found = self.measurer.confirm(genome)
            if accepted(found, self.settings.weights):
                return genome, found
        return DEFAULT, None


def weighted(weights: Sequence[float], shares: Sequence[float], ratios: Sequence[float]) -> float:
    """The weighted mean of the logarithm of what a step takes over what it took, if a share of it changes."""
    rows = zip(weights, shares, ratios, strict=True)
    return sum(weight * math.log(1 - share + share * ratio) for weight, share, ratio in rows)


def accepted(found: Confirmation, weights: Sequence[float]) -> bool:
    """Whether a program replaces the default: it gains more than the noise, and no workload loses."""
    if found.verdict != OK:
        return False
    gain = -sum(weight * math.log(ratio) for weight, ratio in zip(weights, found.ratios, strict=True))
    return gain > found.noise and max(found.ratios) <= 1 + max(TOLERANCE, found.noise)
