"""Choices as libraries: each choice for a block is written, pruned and compiled once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.compiler.build import region_source
from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.codegen.regions import Region, regions
from headrace.compiler.native.build import Builder, Built
from headrace.compiler.schedule.plan import PartPlan
from headrace.compiler.search.choices import Interface, Program, blocks_of, schedule
from headrace.compiler.search.genes import DEFAULT, GeneSpace, Genome
from headrace.runtime.tuning.child import BlockSpec


@dataclass(slots=True)
class Piece:
    """A choice for a block.

    Attributes:
        spec: Its library; None if there is none.
        verdict: ``ok``; why it was rejected; or empty while it was not checked.
    """

    spec: BlockSpec | None = None
    verdict: str = ""


class Pieces:
    """The choices that were tried.

    Args:
        program: What is scheduled.
        space: Its genes.
        builder: Compiles.
        pruned: Why a region of a plan is not worth compiling; empty if it is.

    Attributes:
        order: The blocks, in the order in which they run.
        known: By a genome of one block, and that block: what became of it.
    """

    def __init__(
        self, program: Program, space: GeneSpace, builder: Builder, pruned: Callable[[PartPlan, Region], str]
    ) -> None:
        self.program, self.space, self.builder, self.pruned = program, space, builder, pruned
        self.interface = Interface(program)
        self.known: dict[Genome, dict[str, Piece]] = {}
        self.order: list[str] = []

    def compile_default(self) -> None:
        """Write and compile the default's own blocks."""
        written = self.regions(DEFAULT)
        self.order = [region.block for region in written]
        self.compile([(DEFAULT, region) for region in written])

    def parts(self, genome: Genome) -> dict[str, Piece]:
        """The pieces of what a genome changes."""
        found = {}
        for block in self.order:
            only = self.space.only(genome, block)
            if only.values or not genome.values:
                found[block] = self.known[only][block]
        return found

    def written(self, genome: Genome) -> list[tuple[Genome, Region]]:
        """The regions that are new in a genome; those that cannot be are noted as rejected."""
        missing = {
            block: only
            for block in self.order
            if (only := self.space.only(genome, block)).values and only not in self.known
        }
        if not missing:
            return []
        try:
            written = self.regions(genome)
        except CannotEmit as error:
            if len(missing) == 1 and self.space.only(genome, next(iter(missing))) == genome:
                ((block, only),) = missing.items()
                self.known[only] = {block: Piece(verdict=f"cannot be written: {error}")}
                return []
            return [region for only in missing.values() for region in self.written(only)]
        found = []
        for region in written:
            only = missing.get(region.block, DEFAULT)
            if only.values and only not in self.known:
                self.known[only] = {region.block: Piece()}
                found.append((only, region))
        return self._worth_it(genome, found)

    def regions(self, genome: Genome) -> list[Region]:
        """All regions of a genome.

        Raises:
            CannotEmit: There is no code for it, or its blocks cannot be put together with others'.
        """
        planned = schedule(self.program, genome)
        if not self.interface.fits(planned):
            raise CannotEmit("it changes what blocks share")
        written = regions(planned, blocks_of(self.program, planned))
        if any(r.stages != tuple(range(r.stages[0], r.stages[0] + len(r.stages))) for r in written):
            raise CannotEmit("its stages are not in a row")
        return written

    def _worth_it(self, genome: Genome, found: list[tuple[Genome, Region]]) -> list[tuple[Genome, Region]]:
        """Without those that are pruned, which are noted as such."""
        planned = schedule(self.program, genome)
        kept = []
        for only, region in found:
            verdict = self.pruned(planned[region.part][1], region)
            self.known[only][region.block].verdict = verdict
            if not verdict:
                kept.append((only, region))
        return kept

    def compile(self, wanted: Sequence[tuple[Genome, Region]]) -> None:
        """Compile regions, each a choice for its block; what fails is noted."""
        sources = [region_source(region) for _, region in wanted]
        for (only, region), built in zip(wanted, self.builder.build_all(sources), strict=True):
            piece = self.known.setdefault(only, {}).setdefault(region.block, Piece())
            if isinstance(built, Built):
                name = only.fingerprint if only.values else "default"
                piece.spec = BlockSpec(
                    f"{region.block}:{name}",
                    str(built.path),
                    region.arrays,
                    region.part,
                    len(region.stages),
                    region.ragged_tile,
                )
            else:
                piece.verdict = f"does not compile: {str(built)[:300]}"

    def assembled(self, pieces: dict[str, Piece]) -> tuple[BlockSpec, ...]:
        """A program of some pieces, default elsewhere."""
        default = self.known[DEFAULT]
        specs = [(pieces.get(block) or default[block]).spec for block in self.order]
        return tuple(spec for spec in specs if spec is not None)

    def unused(self, used: Sequence[Piece]) -> list[str]:
        """The keys of all libraries but these and the default's."""
        keep = {piece.spec.key for piece in used if piece.spec}
        return [
            piece.spec.key
            for genome, blocks in self.known.items()
            for piece in blocks.values()
            if genome.values and piece.spec and piece.spec.key not in keep
        ]
