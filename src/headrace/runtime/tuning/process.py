"""Asking the process in which programs are tried: what it was told is told again to the next one if it dies."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.compiler.native.sandbox_process import ChildProcess, Gone
from headrace.compiler.native.verdict import Unbuilt
from headrace.runtime.tuning.child import BlockSpec, Opening, WholeSpec

OPEN_SECONDS = 120.0  # reading and packing a model's weights
LOAD_SECONDS = 60.0
PROGRAM = (sys.executable, "-m", "headrace.runtime.tuning.child")

Program = tuple[BlockSpec, ...] | WholeSpec


class TrialProcess:
    """A child process with a model in it, started when it is first asked.

    Args:
        opening: The model.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._child = ChildProcess((), None, PROGRAM)
        self._starts = 0
        self._told: dict[str, BlockSpec | WholeSpec] = {}

    def check(self, program: Program, seconds: float) -> dict[str, Any]:
        """Run the first workload; see ``Child.check``.

        Raises:
            Gone: The program did something else than return.
        """
        return self._ask({"do": "check"}, [program], seconds)

    def agree(self, program: Program, seconds: float) -> float:
        """By how much the program differs from the interpreter, as a share of the largest logit.

        Raises:
            Gone: The program did something else than return.
        """
        return float(self._ask({"do": "agree"}, [program], seconds)["error_share"])

    def time(self, programs: Sequence[Program], workload: int, rounds: int, seconds: float) -> dict[str, Any]:
        """Time programs in turn; see ``Child.time``.

        Raises:
            Gone: A program did something else than return.
        """
        return self._ask({"do": "time", "workload": workload, "rounds": rounds}, programs, seconds)

    def forget(self, keys: Sequence[str]) -> None:
        """Give up blocks that are not needed any more."""
        known = [key for key in keys if key in self._told]
        for key in known:
            del self._told[key]
        if known and self._alive():
            self._say({"do": "forget", "keys": known}, LOAD_SECONDS)

    def close(self) -> None:
        """End the process for good."""
        self._child.close()

    def _ask(self, message: dict[str, Any], programs: Sequence[Program], seconds: float) -> dict[str, Any]:
        try:
            self._open()
            for program in programs:
                for spec in (program,) if isinstance(program, WholeSpec) else program:
                    self._tell(spec)
            keys = [p.key if isinstance(p, WholeSpec) else [spec.key for spec in p] for p in programs]
            which: dict[str, Any] = {"programs": keys} if message["do"] == "time" else {"program": keys[0]}
            return self._say({**message, **which, "seconds": seconds}, seconds)
        except KeyboardInterrupt:
            self._child.stop()  # its answer would come in place of the next one's
            raise

    def _alive(self) -> bool:
        process = self._child.process
        return process is not None and process.poll() is None and self._child.starts == self._starts

    def _open(self) -> None:
        if self._alive():
            return
        self._child.start()
        self._starts = self._child.starts
        self._told.clear()
        self._say({"do": "open", "about": msgspec.to_builtins(self._opening)}, OPEN_SECONDS)

    def _tell(self, spec: BlockSpec | WholeSpec) -> None:
        if spec.key not in self._told:
            kind = "whole" if isinstance(spec, WholeSpec) else "block"
            self._say({"do": kind, "spec": msgspec.to_builtins(spec)}, LOAD_SECONDS)
            self._told[spec.key] = spec

    def _say(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        answer = self._child.ask(dict(message), seconds)
        if "error" in answer:
            raise Gone(Unbuilt(str(answer["error"])))
        return answer
