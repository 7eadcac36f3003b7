"""Measures choices on the model itself: writes and compiles the blocks that changed, tries them, times whole steps."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

from headrace.compiler.build import native_source
from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.codegen.regions import Region
from headrace.compiler.native.build import Builder
from headrace.compiler.native.sandbox_process import Gone
from headrace.compiler.native.toolchain import BuildFailed
from headrace.compiler.schedule.plan import PartPlan
from headrace.compiler.search.bound import Rates, Workload, stage_work, written_out
from headrace.compiler.search.genes import DEFAULT, GeneSpace, Genome
from headrace.compiler.search.genetic import weighted
from headrace.compiler.search.trials import OK, PRUNED, Baseline, Confirmation, Trial
from headrace.errors import HeadraceError
from headrace.runtime.compile import PreparedModel, schedule_model
from headrace.runtime.tuning.child import BlockSpec, WholeSpec
from headrace.runtime.tuning.pieces import Piece, Pieces
from headrace.runtime.tuning.process import Program, TrialProcess

SAMPLE_SECONDS = 0.12  # of a program on a workload, while breeding
CONFIRM_SECONDS = 1.2  # in a confirmation
LONGEST_STEP = 0.35  # a longer prefill is bred on a shorter prompt
MOST_CODE = 512  # products that a nest writes out; more takes a compiler seconds, and registers hold less
ROUNDS = (3, 12)
CONFIRM_ROUNDS = (4, 100)
CONFIRM_TURNS = 4  # at most, where the machine is noisy
COPIES = 4  # of the default program that are timed beside each other, to know the noise
PATIENCE = 20.0  # times the default's time until a program counts as one that never ends
LEAST_SECONDS = 10.0
LARGEST_ERROR = 0.05  # of the default program against the interpreter: 8-bit codes may round the other way


WRONG = "computes something else than the default"


class _Differs(Exception):
    """Some program's results differ from the default's."""


class TuningError(HeadraceError):
    """A search cannot be made: the default program itself does not run, or computes something else."""


class NativeMeasurer:
    """Measures programs of one model; see ``headrace.compiler.search.trials.Measurer``.

    Args:
        model: The model.
        space: Its genes.
        process: Where programs run.
        builder: Compiles.
        loads: What the process knows: the first is checked; then those timed, each with shorter ones of its name that
            may stand for it.
        names: The workloads.
        rates: What this machine can do at most.
        weights: Of the workloads.
        repeats: How often the process runs each part.
        library: What whole programs' libraries are called.
        begin: When the search began, by the clock.
        seconds: What all of it may take.
        clock: Seconds.
    """

    def __init__(
        self,
        model: PreparedModel,
        space: GeneSpace,
        process: TrialProcess,
        builder: Builder,
        loads: Sequence[Workload],
        names: Sequence[str],
        rates: Rates,
        weights: Sequence[float],
        repeats: Sequence[int],
        library: str,
        begin: float,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.space, self.process, self.builder = model, space, process, builder
        self.loads, self.names, self.rates, self.weights, self.clock = loads, names, rates, weights, clock
        self.begin, self.seconds, self.library = begin, seconds, library
        self.deadline = seconds
        self.scales = [len(part.repeats) / count for part, count in zip(model.program.parts, repeats, strict=True)]
        self.pieces = Pieces(model.program, space, builder, self._pruned)
        self.digest = ""
        self.digests: dict[int, str] = {}
        self.bred: list[int] = []  # the loads that stand for the workloads while breeding
        self.steps: dict[int, float] = {}  # seconds of the default program on each load
        self.whole_seconds = 0.0  # that a whole program takes to compile

    def elapsed(self) -> float:
        """Seconds since the search began."""
        return self.clock() - self.begin

    # -- the default

    def baseline(self) -> Baseline:
        """Compile, check and measure the default program.

        Raises:
            TuningError: It does not run, or differs from the interpreter.
        """
        begin = self.clock()
        self.pieces.compile_default()
        self.whole_seconds = 1.5 * (self.clock() - begin)
        for piece in self.pieces.known[DEFAULT].values():
            if piece.spec is None:
                raise TuningError(f"the default program cannot be compiled: {piece.verdict}")
            piece.verdict = OK
        try:
            return self._measure_default()
        except Gone as gone:
            raise TuningError(f"the default program does not run: {gone.verdict}") from None

    def _measure_default(self) -> Baseline:
        default = self.pieces.assembled({})
        found = self.process.check(default, LEAST_SECONDS * 6)
        self.digest = found["digest"]
        error = self.process.agree(default, LEAST_SECONDS * 12)
        if not found["finite"] or not error <= LARGEST_ERROR:
            raise TuningError(f"the default program differs from the interpreter by {error:.3g} of the largest logit")
        spent: list[list[dict[str, float]]] = []
        for name in self.names:
            at = self._stand_in(name, default)
            self.bred.append(at)
            rounds = self._rounds(at, SAMPLE_SECONDS, ROUNDS)
            answer = self.process.time([default] * COPIES, at, rounds, self._patience(at, COPIES * rounds))
            self.digests[at] = answer["digests"][0]
            spent.append([self._by_block(ns, default) for ns in answer["ns"]])
        self.best = [{b: statistics.median(c[b] for c in copies) for b in self.pieces.order} for copies in spent]
        seconds = tuple(sum(blocks.values()) for blocks in self.best)
        shares = {
            b: tuple(x[b] / total for x, total in zip(self.best, seconds, strict=True)) for b in self.pieces.order
        }
        measuring = CONFIRM_TURNS / 2 * sum(max(CONFIRM_SECONDS, CONFIRM_ROUNDS[0] * 2 * step) for step in seconds)
        reserve = self.whole_seconds + measuring + 2.0
        # A generation is timed when it is compiled; that takes about as long as a confirmation.
        self.deadline = self.seconds - reserve - measuring
        own = (next(n for n, load in enumerate(self.loads) if n and load.name == name) for name in self.names)
        full = tuple(s if at == n else self.steps[n] for n, at, s in zip(own, self.bred, seconds, strict=True))
        return Baseline(
            seconds, shares, {b: self._costs(b, spent, shares[b]) for b in self.pieces.order}, reserve, full
        )

    def _stand_in(self, name: str, default: Program) -> int:
        """The load that stands for a workload while breeding: the longest of its name that is quick enough."""
        at = 0
        for at in (n for n, load in enumerate(self.loads) if n and load.name == name):
            answer = self.process.time([default], at, 1, LEAST_SECONDS * 6)
            self.steps[at] = sum(answer["ns"][0]) / 1e9
            if self.steps[at] <= LONGEST_STEP:
                break
        return at

    def _costs(self, block: str, spent: list[list[dict[str, float]]], shares: Sequence[float]) -> tuple[float, ...]:
        """The cost of the default's own block in each further copy, beside the first."""
        copies = [[copies[n][block] / copies[0][block] for copies in spent] for n in range(1, COPIES)]
        return tuple(weighted(self.weights, shares, ratios) for ratios in copies)

    # -- candidates

    def evaluate(self, genomes: Sequence[Genome]) -> list[dict[str, Trial]]:
        """Write, prune, compile, check and time genomes."""
        for genome in genomes:
            new = self.pieces.written(genome)
            if self.elapsed() < self.deadline:
                self.pieces.compile(new)
            else:
                for only, region in new:
                    self.pieces.known[only][region.block].verdict = f"{PRUNED}the time is up"
        parts = [self.pieces.parts(genome) for genome in genomes]
        for mine in parts:
            self._check(mine)
        ratios = self._time([{b: p for b, p in mine.items() if p.verdict == OK} for mine in parts])
        found = []
        for mine, measured in zip(parts, ratios, strict=True):
            found.append(
                {b: Trial(OK, measured[b]) if p.verdict == OK else Trial(p.verdict) for b, p in sorted(mine.items())}
            )
        self.process.forget(self.pieces.unused([p for mine in parts for p in mine.values() if p.verdict == OK]))
        return found

    def _pruned(self, plan: PartPlan, region: Region) -> str:
        """Why a region is not worth compiling: it is too long, or by its lower bound cannot beat the default."""
        wide = max((written_out(plan, nest) for n in region.stages for nest in plan.stages[n].nests()), default=0)
        if wide > MOST_CODE:
            return f"{PRUNED}{wide} products would be written out"
        times = len(self.model.program.parts[region.part].repeats)
        gain = 0.0
        for weight, at, best in zip(self.weights, self.bred, self.best, strict=True):
            works = [stage_work(plan, plan.stages[n], self.loads[at]).times(times) for n in region.stages]
            least = sum(work.seconds(self.rates) for work in works)
            gain += weight * math.log(max(least, 1e-12) / best[region.block])
        return f"{PRUNED}it takes {math.exp(gain):.2f} times as long at least" if gain > 0 else ""

    def _check(self, mine: dict[str, Piece]) -> None:
        """Judge what was not judged yet: all together, and one by one if that is not right."""
        fresh = {b: p for b, p in mine.items() if not p.verdict}
        if not fresh:
            return
        verdict = self._judged({b: p for b, p in mine.items() if p.spec and p.verdict in ("", OK)})
        if verdict != OK and len(fresh) > 1:
            for block, piece in fresh.items():
                piece.verdict = self._judged({block: piece})
        else:
            for piece in fresh.values():
                piece.verdict = verdict

    def _judged(self, pieces: dict[str, Piece]) -> str:
        try:
            found = self.process.check(self.pieces.assembled(pieces), self._patience(0))
        except Gone as gone:
            return str(gone.verdict)
        return OK if found["digest"] == self.digest else WRONG

    def _patience(self, at: int, steps: int = 1) -> float:
        longest = self.steps.get(at, max(self.steps.values(), default=1.0))
        return LEAST_SECONDS + PATIENCE * longest * steps

    def _time(self, programs: list[dict[str, Piece]]) -> list[dict[str, tuple[float, ...]]]:
        """The ratios of pieces that passed, workload by workload; those that fail now are rejected."""
        try:
            return self._timed(programs)
        except (Gone, _Differs):
            pass  # one of them, then: which, is seen by each alone
        found = []
        for mine in programs:
            ratios: dict[str, tuple[float, ...]] = {}
            for block, piece in mine.items():
                try:
                    ratios |= self._timed([{block: piece}])[0]
                except Gone as gone:
                    piece.verdict = str(gone.verdict)
                except _Differs:
                    piece.verdict = WRONG
            found.append(ratios)
        return found

    def _timed(self, programs: list[dict[str, Piece]]) -> list[dict[str, tuple[float, ...]]]:
        all_of_them = [self.pieces.assembled({}), *(self.pieces.assembled(mine) for mine in programs)]
        found: list[dict[str, list[float]]] = [{block: [] for block in mine} for mine in programs]
        for at in self.bred:
            rounds = self._rounds(at, SAMPLE_SECONDS, ROUNDS)
            seconds = self._patience(at, rounds * len(all_of_them))
            answer = self.process.time(all_of_them, at, rounds, seconds)
            spent = [self._by_block(ns, p) for ns, p in zip(answer["ns"], all_of_them, strict=True)]
            for n, mine in enumerate(programs):
                if answer["digests"][n + 1] != self.digests[at]:
                    raise _Differs
                for block in mine:
                    found[n][block].append(spent[n + 1][block] / spent[0][block])
        return [{block: tuple(ratios) for block, ratios in mine.items()} for mine in found]

    def _rounds(self, at: int, seconds: float, limits: tuple[int, int]) -> int:
        return max(limits[0], min(limits[1], int(seconds / max(self.steps[at], 1e-6))))

    def _by_block(self, ns: Sequence[int], program: Sequence[BlockSpec]) -> dict[str, float]:
        """Seconds of each block in a step, from nanoseconds of functions."""
        found, first = {}, 0
        for block, spec in zip(self.pieces.order, program, strict=True):
            taken = sum(ns[first : first + spec.stages]) / 1e9
            found[block] = max(1e-9, taken * self.scales[spec.part])
            first += spec.stages
        return found

    # -- the end

    def confirm(self, genome: Genome) -> Confirmation:
        """Compile the whole program as it would be served, and time it in turn with the default one."""
        try:
            return self._compared(self._wholes([DEFAULT, genome]))
        except (CannotEmit, BuildFailed) as error:
            return Confirmation(str(error))
        except Gone as gone:
            return Confirmation(str(gone.verdict))

    def _wholes(self, genomes: Sequence[Genome]) -> list[WholeSpec]:
        """Whole programs, compiled.

        Raises:
            CannotEmit: There is no code for one.
            BuildFailed: One does not compile.
        """
        models = [schedule_model(self.model, genome) for genome in genomes]
        found = []
        libraries = self.builder.build_all([native_source(self.library, model.source) for model in models])
        for genome, model, built in zip(genomes, models, libraries, strict=True):
            if isinstance(built, BuildFailed):
                raise built
            source, name = model.source, genome.fingerprint if genome.values else "default"
            counts = source.stages, len(self.model.program.parts)
            found.append(WholeSpec(f"whole:{name}", str(built.path), source.arrays, *counts, model.ragged_tile))
        return found

    def _compared(self, programs: Sequence[Program]) -> Confirmation:
        for program in programs:
            if self.process.check(program, self._patience(0))["digest"] != self.digest:
                return Confirmation(WRONG)
        taken: list[tuple[list[float], list[float]]] = [([], []) for _ in self.names]
        found = Confirmation()
        for _ in range(CONFIRM_TURNS):
            for pair, name in zip(taken, self.names, strict=True):
                for seconds, more in zip(pair, self._rounds_of(programs, name), strict=True):
                    seconds.extend(more)
            before, after = (tuple(typical(pair[n]) for pair in taken) for n in (0, 1))
            doubts = [w * max(map(_doubt, pair)) for w, pair in zip(self.weights, taken, strict=True)]
            found = Confirmation(OK, before, after, sum(doubts))
            if found.noise < abs(weighted(self.weights, [1.0] * len(before), found.ratios)) / 3:
                break  # clear enough
        return found

    def _rounds_of(self, programs: Sequence[Program], name: str) -> list[list[float]]:
        """Seconds of a step of each program, in some rounds of a workload."""
        at = next(n for n, load in enumerate(self.loads) if n and load.name == name)
        if at not in self.steps:
            self.steps[at] = self.process.time([programs[0]], at, 1, self._patience(at))["ns"][0][0] / 1e9
        rounds = self._rounds(at, CONFIRM_SECONDS / 2, CONFIRM_ROUNDS)
        answer = self.process.time(programs, at, rounds, self._patience(at, 2 * rounds))
        return [[ns / 1e9 for ns in program] for program in answer["ns"]]


def typical(seconds: Sequence[float]) -> float:
    """What a step takes where nobody else wants the machine: the mean of the fastest third."""
    fastest = sorted(seconds)[: max(1, len(seconds) // 3)]
    return statistics.fmean(fastest)


def _doubt(seconds: Sequence[float]) -> float:
    """By how much the logarithm of the typical time differs between every other measurement and the rest."""
    return abs(math.log(typical(seconds[::2]) / typical(seconds[1::2])))
