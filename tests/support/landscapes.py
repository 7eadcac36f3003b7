"""A measurer without a machine: a known landscape, a clock that is told how long things take."""

import math

from headrace.compiler.search.genes import Gene, GeneSpace
from headrace.compiler.search.trials import PRUNED, Baseline, Confirmation, Trial

WORKLOADS = 2


def space(blocks=3, genes=4, choices=6):
    return GeneSpace(
        Gene(f"{b}/g{n}", f"{b}", tuple(range(choices)), 0, f"{b} {n}", tuple(map(str, range(choices))))
        for b in range(blocks)
        for n in range(genes)
    )


def best_value(name):
    """The choice that is fastest, of each gene another."""
    block, gene = name.split("/g")
    return (int(block) * 2 + int(gene) + 3) % 6


class Landscape:
    """Each gene at its best value takes 8 % off its block's time; each step away from it loses a part of that."""

    def __init__(self, space, *, rng=None, noise=0.0, trial_seconds=0.1, bad=lambda genome: None):
        self.space, self.rng, self.noise, self.bad = space, rng, noise, bad
        self.now, self.trial_seconds = 0.0, trial_seconds
        self.measured = self.confirmed = 0
        self.evaluated = []

    def elapsed(self):
        return self.now

    def _ratio(self, genome, block):
        ratio = 1.0
        for gene in self.space.blocks[block]:
            at, default = (abs(v - best_value(gene.name)) for v in (self.space.value(genome, gene.name), gene.default))
            ratio *= 1 - 0.08 * (default - at) / 5
        return ratio * math.exp(self.rng.gauss(0, self.noise)) if self.noise else ratio

    def baseline(self):
        self.now += 1.0
        blocks = list(self.space.blocks)
        noise = {b: tuple(abs(self.rng.gauss(0, self.noise)) for _ in range(3)) if self.noise else () for b in blocks}
        return Baseline((1.0, 0.1), {b: (1 / len(blocks),) * WORKLOADS for b in blocks}, noise, 2.0)

    def evaluate(self, genomes):
        found = []
        for genome in genomes:
            self.evaluated.append(genome)
            self.now += self.trial_seconds
            blocks = [b for b in self.space.blocks if self.space.only(genome, b).values or not genome.values]
            trials = {}
            for block in blocks:
                self.measured += 1
                why = self.bad(self.space.only(genome, block)) if genome.values else None
                trials[block] = Trial(why) if why else Trial("ok", (self._ratio(genome, block),) * WORKLOADS)
            found.append(trials)
        return found

    def confirm(self, genome):
        self.now += 2.0
        self.confirmed += 1
        ratio = sum(self._ratio(genome, b) for b in self.space.blocks) / len(self.space.blocks)
        return Confirmation("ok", (1.0, 0.1), (ratio, 0.1 * ratio), self.noise)


def crashes_sometimes(genome):
    """Some choices are hostile, some hopeless."""
    values = genome.as_dict()
    if any(name.endswith("g0") and value == 1 for name, value in values.items()):
        return "it crashed with SIGSEGV"
    return f"{PRUNED}hopeless" if any(n.endswith("g1") and v == 5 for n, v in values.items()) else None
