"""Candidates on trial: run in a child process, compared with what is expected, and only then timed.

    parent                                  child (no package, no PyTorch)
    ------                                  ------------------------------
    case: inputs, outputs, guards  ◀─ shared memory ─▶  the same
    "run f of x.so on case 3"      ─ socket ─▶          dlopen, limits, run, clock
    judge outputs and guards       ◀─ socket ─          nanoseconds
    clock, signals                 ── kill ─▶           whatever it does

A candidate that kills the child, stops it or never returns costs a new child, some 40 ms, and its own rejection.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.case import Case
from headrace.compiler.native.cores import default_threads
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.pool import pool_path
from headrace.compiler.native.toolchain import BuildFailed
from headrace.compiler.native.verdict import Crashed, Passed, Rejected, SanitizerReport, TimedOut, Unbuilt, Verdict
from headrace.errors import HeadraceError

START_SECONDS = 30.0
DEATH_SECONDS = 2.0  # between the end of its connection and the end of a process
SAMPLE_SECONDS = 2e-3  # of one sample: short kernels run several times in it
MAX_RUNS = 1000
LIBRARIES_A_CHILD = 256
SANITIZER_CODE = 86  # the exit code that sanitizers are told to use
SAID_BYTES = 8000
_HERE = Path(__file__).parent


class SandboxError(HeadraceError):
    """The child process itself cannot be started or does not answer; no candidate's fault."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel on trial: ``void symbol(hr_pool *pool, void *const *buffers, const int64_t *sizes)``.

    Attributes:
        library: The shared library.
        symbol: The function's name.
    """

    library: Path
    symbol: str


class _Gone(Exception):
    """The child is dead; why the candidate is rejected."""

    def __init__(self, verdict: Rejected) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


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
        self._runtime = builder.sanitizer_runtime() if sanitize else None
        if sanitize and self._runtime is None:
            raise BuildFailed(f"{builder.compiler.version} has no address sanitizer that a process can load")
        self._pool = pool_path()
        self._harness = builder.build(Source("harness", (_HERE / "harness.c").read_text(), flags=("-O2",))).path
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._pending = b""
        self._requests = 0
        self._shared: set[int] = set()
        self._libraries: set[Path] = set()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the sandbox

    def check(self, candidate: Candidate, case: Case) -> Verdict:
        """Run a candidate once and judge what it did."""
        try:
            case.reset()
            taken = self._run(candidate, case, 1, sweep=0)
        except _Gone as gone:
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
                    trials[i][1].reset(only_in_place=True)
                    times[i].append(_sample(self._run(*trials[i], runs[i], sweep=sweep), cold))
                except _Gone as gone:
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

    def forget(self, case: Case) -> None:
        """Take a case out of the child; call it before closing the case."""
        if case.number in self._shared and self._child is not None:
            with contextlib.suppress(_Gone):
                self._ask({"do": "forget", "case": case.number}, START_SECONDS)
        self._shared.discard(case.number)

    def close(self) -> None:
        """End the child."""
        self._stop()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, candidate: Candidate, case: Case, runs: int, *, sweep: int) -> list[float]:
        """Seconds of each run.

        Raises:
            _Gone: The candidate did something else than return; the child is dead, or has said why it cannot run it.
        """
        if candidate.library not in self._libraries and len(self._libraries) >= LIBRARIES_A_CHILD:
            self._stop()
        self._share(case)
        self._libraries.add(candidate.library)
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
        answer = self._ask(message, self.seconds)
        if "error" in answer:
            raise _Gone(Unbuilt(answer["error"]))
        return [taken / 1e9 for taken in answer["ns"]]

    def _share(self, case: Case) -> None:
        self._start()
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
        answer = self._ask(message, START_SECONDS, case.files)
        if "error" in answer:
            raise SandboxError(f"a case of {sum(case.bytes)} bytes cannot be shared: {answer['error']}")
        self._shared.add(case.number)

    def _start(self) -> None:
        if self._child is not None and self._child.poll() is None:
            return
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            poison = "poison" if self._runtime else "-"
            arguments = [str(number), str(self._pool), str(self._harness), str(self.threads), poison]
            self._child = subprocess.Popen(  # noqa: S603 - our own script
                [sys.executable, "-I", "-S", str(_HERE / "sandbox_child.py"), *arguments],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=_environment(self._runtime),
                start_new_session=True,
            )
        self._channel = ours
        try:
            self._receive(0, START_SECONDS)
        except _Gone as gone:
            raise SandboxError(f"the process for candidates does not start: {gone.verdict}") from None

    def _stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._child is not None:
            # Its whole session: threads that are stopped, and whatever a candidate has started.
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._child = self._channel = None
        self._pending = b""
        self._shared.clear()
        self._libraries.clear()

    def _ask(self, message: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> dict[str, Any]:
        channel = self._channel
        if channel is None:
            raise SandboxError("the process for candidates is not running")
        self._requests += 1
        self._said.seek(0)  # the child writes through the same offset
        self._said.truncate()
        line = json.dumps({"id": self._requests, **message}).encode() + b"\n"
        try:
            if files:
                socket.send_fds(channel, [line], list(files))
            else:
                channel.sendall(line)
        except OSError:
            raise _Gone(self._post_mortem()) from None
        return self._receive(self._requests, seconds)

    def _receive(self, number: int, seconds: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            _Gone: The time is up, the child is dead, or it says something else; it is then dead in any case.
        """
        deadline = time.monotonic() + seconds
        channel = self._channel
        while channel is not None:
            line, end, rest = self._pending.partition(b"\n")
            if end:
                self._pending = rest
                answer = _decoded(line)
                if answer.get("id") != number:
                    self._stop()
                    raise _Gone(Crashed(None))
                return answer
            channel.settimeout(max(1e-3, deadline - time.monotonic()))
            try:
                part = channel.recv(1 << 16)
            except TimeoutError:
                self._stop()
                raise _Gone(TimedOut(seconds)) from None
            except OSError:
                part = b""
            if not part:
                raise _Gone(self._post_mortem())
            self._pending += part
        raise SandboxError("the process for candidates is not running")

    def _post_mortem(self) -> Rejected:
        """What the child, which has cut its connection, died of."""
        code = None
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._child.wait(DEATH_SECONDS)
        self._stop()
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - SAID_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        if self._runtime and (code == SANITIZER_CODE or "Sanitizer" in said):
            return SanitizerReport(said)
        if code is None:
            return Crashed(None, None, said)
        return Crashed(-code, None, said) if code < 0 else Crashed(None, code, said)


def _decoded(line: bytes) -> dict[str, Any]:
    """An answer; empty where a candidate has written to the socket."""
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _environment(runtime: Path | None) -> dict[str, str]:
    if runtime is None:
        return dict(os.environ)
    common = f"exitcode={SANITIZER_CODE}:allocator_may_return_null=1"
    return {
        **os.environ,
        "LD_PRELOAD": str(runtime),
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=1",
    }


def _runs(seconds: float, cold: bool) -> int:
    """How many runs a sample has, by what one took: the first of several is a warm-up."""
    if cold:
        return 3
    return 1 if seconds > 10 * SAMPLE_SECONDS else min(MAX_RUNS, 1 + math.ceil(SAMPLE_SECONDS / max(seconds, 1e-7)))


def _sample(taken: list[float], cold: bool) -> float:
    return statistics.median(taken if cold or len(taken) == 1 else taken[1:])
