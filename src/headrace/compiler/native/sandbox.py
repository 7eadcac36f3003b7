"""Candidates on trial: run in a child process, compared with what is expected, and only then timed.

    parent                                  child (no package, no PyTorch)
    ------                                  ------------------------------
    case: inputs, outputs, guards  ◀─ shared memory ─▶  the same
    "run f of x.so on case 3"      ─ socket ─▶          dlopen, limits, run, clock
    judge outputs and guards       ◀─ socket ─          nanoseconds
    clock, signals                 ── kill ─▶           whatever it does

A candidate that kills the child, stops it or never returns costs a new child, some 30 ms, and its own rejection:
after another run in a child of its own, for it may be the victim of one before it.
"""

from __future__ import annotations

import math
import statistics
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.case import Case
from headrace.compiler.native.cores import default_threads
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.pool import pool_path
from headrace.compiler.native.sandbox_process import START_SECONDS, ChildProcess, Gone, SandboxError
from headrace.compiler.native.toolchain import BuildFailed
from headrace.compiler.native.verdict import Passed, Unbuilt, Verdict

SAMPLE_SECONDS = 2e-3  # of one sample: short kernels run several times in it
MAX_RUNS = 1000
CANDIDATES_A_CHILD = 256
HARNESS = Path(__file__).with_name("harness.c")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel on trial: ``void symbol(hr_pool *pool, void *const *buffers, const int64_t *sizes)``.

    Attributes:
        library: The shared library.
        symbol: The function's name.
    """

    library: Path
    symbol: str


class Sandbox:
    """A child process in which candidates run, started when the first one comes.

    Not for several threads at once. Two sandboxes are two processes.

    Args:
        threads: Of the pool that kernels run on. Default: one a core that this process may use.
        seconds: How long a run may take.
        memory: Bytes that a candidate may allocate.
        sanitize: For libraries built with ``Source(sanitize=True)``, and only those: guards are poisoned, so that
            reads beyond an operand are found too. Timing means nothing then.

    Raises:
        ToolchainError: Our own part of it cannot be compiled here, or there is no sanitizer.
    """

    def __init__(
        self, threads: int | None = None, *, seconds: float = 10.0, memory: int = 1 << 30, sanitize: bool = False
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        self.seconds = seconds
        self.memory = 0 if sanitize else memory
        builder = Builder()
        runtime = builder.sanitizer_runtime() if sanitize else None
        if sanitize and runtime is None:
            raise BuildFailed(f"{builder.compiler.version} has no address sanitizer that a process can load")
        harness = builder.build(Source("harness", HARNESS.read_text(), flags=("-O2",))).path
        self._child = ChildProcess([str(pool_path()), str(harness), str(self.threads)], runtime)
        # What this child, and no earlier one, was told.
        self._generation = 0
        self._shared: dict[int, weakref.ref[Case]] = {}
        self._ran: set[Candidate] = set()

    def check(self, candidate: Candidate, case: Case) -> Verdict:
        """Run a candidate once and judge what it did."""
        try:
            taken = self._run(candidate, case, 1, sweep=0)
        except Gone as gone:
            return gone.verdict
        wrong = case.judge()
        return Passed(taken[0], taken[0]) if wrong is None else wrong

    def time(self, candidate: Candidate, case: Case, *, samples: int = 5, cold: bool = False) -> Verdict:
        """``time_together`` of one."""
        return self.time_together([(candidate, case)], samples=samples, cold=cold)[0]

    def time_together(
        self,
        trials: Sequence[tuple[Candidate, Case]],
        *,
        samples: int = 5,
        cold: bool = False,
        drop_above: float | None = None,
    ) -> list[Verdict]:
        """Check candidates, then time those that passed in turn, A B C A B C ..., then check them again.

        In turn, because machines change their speed from second to second. What works in place gets its contents
        anew for each sample, not for each run within one.

        Args:
            trials: Candidates, each with its case; cases may be shared.
            samples: Rounds; a sample lasts about 2 ms, or one run.
            cold: Empty the caches before each run.
            drop_above: After the first round leave out those that took this many times the best.

        Returns:
            In order; ``Passed.seconds`` is the median of the samples, each the median of its runs.
        """
        verdicts: dict[int, Verdict] = {i: self.check(*trial) for i, trial in enumerate(trials)}
        times: dict[int, list[float]] = {i: [] for i, verdict in verdicts.items() if isinstance(verdict, Passed)}
        runs = {i: _runs(verdict.seconds, cold) for i, verdict in verdicts.items() if isinstance(verdict, Passed)}
        sweep = 2 * max(cpu_features().cache_bytes(level) for level in (2, 3)) or 64 << 20 if cold else 0
        for turn in range(samples):
            for i in list(times):
                try:
                    times[i].append(_sample(self._run(*trials[i], runs[i], sweep=sweep, again=True), cold))
                except Gone as gone:
                    verdicts[i] = gone.verdict
                    del times[i]
            if turn == 0 and drop_above is not None and times:
                limit = drop_above * min(taken[0] for taken in times.values())
                for i in [i for i, taken in times.items() if taken[0] > limit]:
                    verdicts[i] = Passed(times[i][0], times[i][0])
                    del times[i]
        for i, taken in times.items():
            again = self.check(*trials[i])
            verdicts[i] = Passed(statistics.median(taken), min(taken), len(taken)) if again.kind == "ok" else again
        return [verdicts[i] for i in range(len(trials))]

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, candidate: Candidate, case: Case, runs: int, *, sweep: int, again: bool = False) -> list[float]:
        """Seconds of each run.

        Args:
            candidate: What runs.
            case: What on; its outputs are put into their first state, or if ``again`` only those that work in place.
            runs: How often.
            sweep: Bytes to read before each run.
            again: Whether outputs may hold what an earlier run left.

        Raises:
            Gone: The candidate did something else than return; the child is dead, or has said why it cannot run it.
        """
        try:
            return self._attempt(candidate, case, runs, sweep, again)
        except Gone:
            # Another one may have left a broken heap or a thread behind: whoever is rejected had a child of its own.
            if self._ran <= {candidate}:
                raise
        self._child.stop()
        return self._attempt(candidate, case, runs, sweep, again)

    def _attempt(self, candidate: Candidate, case: Case, runs: int, sweep: int, again: bool) -> list[float]:
        case.reset(only_in_place=again)
        if candidate not in self._ran and len(self._ran) >= CANDIDATES_A_CHILD:
            self._child.stop()
        self._enter(case)
        self._ran.add(candidate)
        message = {
            "do": "run",
            "library": str(candidate.library),
            "symbol": candidate.symbol,
            "case": case.number,
            "runs": runs,
            "sweep": sweep,
            "memory": self.memory,
            "seconds": self.seconds,
        }
        answer = self._child.ask(message, self.seconds)
        if "error" in answer:
            raise Gone(Unbuilt(answer["error"]))
        return [taken / 1e9 for taken in answer["ns"]]

    def _enter(self, case: Case) -> None:
        """Have a child that knows the case."""
        try:
            self._share(case)
        except Gone:
            try:
                self._share(case)
            except Gone as gone:
                raise SandboxError(f"the process for candidates does not live: {gone.verdict}") from None

    def _share(self, case: Case) -> None:
        self._child.start()
        if self._child.starts != self._generation:
            self._generation = self._child.starts
            self._shared.clear()
            self._ran.clear()
        for number, shared in list(self._shared.items()):
            known = shared()
            if known is None or known.closed:
                self._child.ask({"do": "forget", "case": number}, START_SECONDS)
                del self._shared[number]
        if case.number in self._shared:
            return
        message = {
            "do": "share",
            "case": case.number,
            "bytes": case.bytes,
            "buffers": [place[:2] for place in case.places],
            "guards": case.guards(),
            "sizes": case.sizes,
        }
        answer = self._child.ask(message, START_SECONDS, case.files)
        if "error" in answer:
            raise SandboxError(f"a case of {sum(case.bytes)} bytes cannot be shared: {answer['error']}")
        self._shared[case.number] = weakref.ref(case)


def _runs(seconds: float, cold: bool) -> int:
    """How many runs a sample has, by what one took: the first of several is a warm-up."""
    if cold:
        return 3
    return 1 if seconds > 10 * SAMPLE_SECONDS else min(MAX_RUNS, 1 + math.ceil(SAMPLE_SECONDS / max(seconds, 1e-7)))


def _sample(taken: list[float], cold: bool) -> float:
    return statistics.median(taken if cold or len(taken) == 1 else taken[1:])
