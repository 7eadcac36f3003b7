"""What becomes of a candidate on trial: it passed, or what is wrong with it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Passed:
    """Every output was right.

    Attributes:
        seconds: A run, the median of the samples.
        best: The fastest sample.
        samples: How many there are.
    """

    kind: ClassVar[str] = "ok"
    seconds: float
    best: float
    samples: int = 1

    def __str__(self) -> str:
        return f"{self.seconds * 1e6:.1f} us, median of {self.samples}"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process ended, or cut itself off.

    Attributes:
        signal: The signal's number; None if it ended by itself.
        exit_code: What it returned if it ended by itself.
        said: The end of what it wrote on standard error.
    """

    kind: ClassVar[str] = "crashed"
    signal: int | None
    exit_code: int | None = None
    said: str = ""

    def __str__(self) -> str:
        if self.signal is not None:
            names = {number.value: number.name for number in signal.Signals}
            return f"crashed: {names.get(self.signal, f'signal {self.signal}')}"
        return (
            "cut its connection or wrote to it"
            if self.exit_code is None
            else f"ended the process with code {self.exit_code}"
        )


@dataclass(frozen=True, slots=True)
class TimedOut:
    """It did not return in time.

    Attributes:
        seconds: The time it had.
    """

    kind: ClassVar[str] = "timed_out"
    seconds: float

    def __str__(self) -> str:
        return f"did not return within {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Wrong:
    """An output differs from what is expected.

    Attributes:
        output: Its number among the operands.
        error: The largest absolute difference.
        where: The index of the element that exceeds its tolerance most.
        count: How many elements exceed theirs.
    """

    kind: ClassVar[str] = "wrong"
    output: int
    error: float
    where: tuple[int, ...]
    count: int

    def __str__(self) -> str:
        return f"operand {self.output} is wrong in {self.count} elements, by {self.error:g} at {list(self.where)}"


@dataclass(frozen=True, slots=True)
class NotFinite:
    """An output has a NaN or an infinity where a finite value is expected; or it was not written.

    Attributes:
        output: Its number among the operands.
        where: The index of the first such element.
        count: How many there are.
    """

    kind: ClassVar[str] = "not_finite"
    output: int
    where: tuple[int, ...]
    count: int

    def __str__(self) -> str:
        return f"operand {self.output} has {self.count} elements that are not finite, the first at {list(self.where)}"


@dataclass(frozen=True, slots=True)
class OutOfBounds:
    """Memory around an operand was overwritten.

    Attributes:
        operand: The nearest one.
        distance: Bytes before its begin (negative), or from its end on.
    """

    kind: ClassVar[str] = "out_of_bounds"
    operand: int
    distance: int

    def __str__(self) -> str:
        side = "before the begin" if self.distance < 0 else "after the end"
        return f"wrote to memory {abs(self.distance)} bytes {side} of operand {self.operand}"


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    """A sanitizer stopped it.

    Attributes:
        report: What it said.
    """

    kind: ClassVar[str] = "sanitizer"
    report: str

    def __str__(self) -> str:
        lines = (line.strip() for line in self.report.splitlines())
        return next((line for line in lines if "ERROR" in line or "runtime error" in line), "stopped by a sanitizer")


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """There is no such library or function.

    Attributes:
        message: Why, in one line.
    """

    kind: ClassVar[str] = "build_failed"
    message: str

    def __str__(self) -> str:
        return self.message


Rejected = Crashed | TimedOut | Wrong | NotFinite | OutOfBounds | SanitizerReport | Unbuilt
Verdict = Passed | Rejected
