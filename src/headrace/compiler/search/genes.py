"""``GeneSpace``: everything that a schedule chooses. ``Genome``: one choice of each. Nothing here measures.

A gene belongs to a *block*: what is compiled, and timed, as one piece of the step. Genes of a block may depend on each
other; blocks do not, so that a step with a new choice in each of its blocks says something about all of them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.errors import HeadraceError


class InvalidGenome(HeadraceError):
    """A genome is of another program, or damaged."""


@dataclass(frozen=True, slots=True)
class Gene:
    """One choice.

    Attributes:
        name: Unique, such as ``layers/n81.rows``.
        block: What is compiled and timed together with it.
        choices: The values that it may have, each once.
        default: One of them.
        place: What it is about, for people.
        labels: Each choice in words.
    """

    name: str
    block: str
    choices: tuple[int, ...]
    default: int
    place: str
    labels: tuple[str, ...]

    def label(self, value: int) -> str:
        """A value in words."""
        return self.labels[self.choices.index(value)]


@dataclass(frozen=True, slots=True, order=True)
class Genome:
    """Choices that differ from the defaults, sorted by name; make one with ``GeneSpace.genome``.

    Attributes:
        values: Gene to value.
    """

    values: tuple[tuple[str, int], ...] = ()

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits; the same for equal genomes, in every process."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, int]:
        """Gene to value, as JSON has it."""
        return dict(self.values)


DEFAULT = Genome()


class GeneSpace:
    """The genes of a program.

    Args:
        genes: In any order; kept sorted by name.

    Raises:
        InvalidGenome: Two have one name, or a default is no choice.
    """

    def __init__(self, genes: Iterable[Gene]) -> None:
        ordered = sorted(genes, key=lambda gene: gene.name)
        self.genes: Mapping[str, Gene] = {gene.name: gene for gene in ordered}
        if len(self.genes) != len(ordered):
            raise InvalidGenome("two genes have one name")
        for gene in ordered:
            if gene.default not in gene.choices or len(gene.labels) != len(gene.choices):
                raise InvalidGenome(f"gene {gene.name!r} has the default {gene.default}, which is none of its choices")

    @cached_property
    def blocks(self) -> Mapping[str, tuple[Gene, ...]]:
        """The genes of each block that can be changed at all."""
        found: dict[str, list[Gene]] = {}
        for gene in self.genes.values():
            if len(gene.choices) > 1:
                found.setdefault(gene.block, []).append(gene)
        return {block: tuple(genes) for block, genes in sorted(found.items())}

    def genome(self, values: Mapping[str, int]) -> Genome:
        """The genome with these values, all others default.

        Raises:
            InvalidGenome: There is no such gene, or no such choice.
        """
        for name, value in values.items():
            gene = self.genes.get(name)
            if gene is None:
                raise InvalidGenome(f"there is no gene {name!r}: the genome is of another program")
            if isinstance(value, bool) or value not in gene.choices:
                raise InvalidGenome(f"gene {name!r} has no choice {value!r}")
        changed = {name: value for name, value in values.items() if value != self.genes[name].default}
        return Genome(tuple(sorted(changed.items())))

    def value(self, genome: Genome, name: str) -> int:
        """What a genome chooses."""
        return genome.as_dict().get(name, self.genes[name].default)

    def only(self, genome: Genome, block: str) -> Genome:
        """The genome's choices in one block, default elsewhere."""
        return Genome(tuple(item for item in genome.values if self.genes[item[0]].block == block))

    def join(self, parts: Iterable[Genome]) -> Genome:
        """Genomes of different blocks as one."""
        return Genome(tuple(sorted(item for part in parts for item in part.values)))

    def draw(self, rng: random.Random, block: str) -> Genome:
        """Any choices in a block."""
        return self.genome({gene.name: rng.choice(gene.choices) for gene in self.blocks[block]})

    def mutate(self, genome: Genome, rng: random.Random, block: str, count: int) -> Genome:
        """The genome with so many genes of a block changed, each to another choice, neighbours twice as often.

        Args:
            genome: Where it starts.
            rng: Decides.
            block: Where to change.
            count: Genes to change; all of the block if it has fewer.
        """
        genes = self.blocks[block]
        values = genome.as_dict()
        for gene in rng.sample(genes, min(count, len(genes))):
            at = gene.choices.index(values.get(gene.name, gene.default))
            near = [x for x in (at - 1, at + 1) if 0 <= x < len(gene.choices)]
            others = [x for x in range(len(gene.choices)) if x != at]
            values[gene.name] = gene.choices[rng.choice([*near, *others])]
        return self.genome(values)

    def crossover(self, a: Genome, b: Genome, rng: random.Random, block: str) -> Genome:
        """Each choice of a block from one of two genomes, elsewhere as in the first."""
        values = a.as_dict()
        for gene in self.blocks[block]:
            values[gene.name] = self.value(rng.choice((a, b)), gene.name)
        return self.genome(values)

    def describe(self, genome: Genome, versus: Genome = DEFAULT) -> list[str]:
        """Which choices differ, in words, one a line."""
        mine, other = genome.as_dict(), versus.as_dict()
        lines = []
        for name, gene in self.genes.items():
            new, old = mine.get(name, gene.default), other.get(name, gene.default)
            if new != old:
                lines.append(f"{gene.place}: {gene.label(new)} instead of {gene.label(old)}")
        return lines

    @property
    def size(self) -> int:
        """How many genomes there are."""
        total = 1
        for gene in self.genes.values():
            total *= len(gene.choices)
        return total


def gene(
    name: str, block: str, place: str, choices: Sequence[int], default: int, say: str | Sequence[str]
) -> list[Gene]:
    """A gene whose default is added to its choices; none if there is nothing to choose.

    Args:
        name: See ``Gene``.
        block: See ``Gene``.
        place: See ``Gene``.
        choices: The values.
        default: One more.
        say: A format for a value, such as ``"{} rows"``; or the words for 0, 1, ....
    """
    values = tuple(sorted({*choices, default}))
    if len(values) < 2:
        return []
    labels = tuple(say.format(v) if isinstance(say, str) else say[v] for v in values)
    return [Gene(name, block, values, default, place, labels)]
