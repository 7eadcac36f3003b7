"""The child process of a sandbox: started, asked, buried."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.compiler.native.verdict import Crashed, Rejected, SanitizerReport, TimedOut
from headrace.errors import HeadraceError

START_SECONDS = 30.0
DEATH_SECONDS = 2.0  # between the end of its connection and the end of a process
SANITIZER_CODE = 86  # the exit code that sanitizers are told to use
SAID_BYTES = 8000
SCRIPT = Path(__file__).with_name("sandbox_child.py")


class SandboxError(HeadraceError):
    """The child process itself cannot be started or does not answer; no candidate's fault."""


class Gone(Exception):
    """The child is dead, or cannot run the candidate; why that is rejected."""

    def __init__(self, verdict: Rejected) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class ChildProcess:
    """A process that runs ``sandbox_child.py``, or another program that speaks like it.

    Args:
        arguments: Of the script: pool, harness, threads.
        runtime: The library of the sanitizer; None: without.
        program: What to run instead: the command, to which the number of the socket and ``arguments`` are added.

    Attributes:
        process: The process, None before its start and after its end.
        starts: How often one was started. What an earlier one was told is forgotten.
    """

    def __init__(self, arguments: Sequence[str], runtime: Path | None, program: Sequence[str] = ()) -> None:
        self.arguments = tuple(arguments)
        self.program = tuple(program)
        self.runtime = runtime
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._channel: socket.socket | None = None
        self._pending = b""
        self._requests = 0
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this object

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            SandboxError: It does not start.
        """
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            poison = "poison" if self.runtime else "-"
            script = [sys.executable, "-I", "-S", str(SCRIPT), str(number), *self.arguments, poison]
            self.process = subprocess.Popen(  # noqa: S603 - our own script
                [*self.program, str(number), *self.arguments] if self.program else script,
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=_environment(self.runtime),
                start_new_session=True,
            )
        self._channel = ours
        self.starts += 1
        try:
            self._receive(0, START_SECONDS)
        except Gone as gone:
            raise SandboxError(f"the process for candidates does not start: {gone.verdict}") from None

    def stop(self) -> None:
        """End it, if it runs."""
        if self._channel is not None:
            self._channel.close()
        if self.process is not None:
            # Its whole session: threads that are stopped, and whatever a candidate has started.
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = self._channel = None
        self._pending = b""

    def ask(self, message: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Args:
            message: The request.
            seconds: How long to wait.
            files: File descriptors that go with it.

        Raises:
            Gone: It died or did not answer in time, and is dead now.
        """
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
            raise Gone(self._post_mortem()) from None
        return self._receive(self._requests, seconds)

    def _receive(self, number: int, seconds: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Gone: The time is up, the child is dead, or it says something else; it is then dead in any case.
        """
        deadline = time.monotonic() + seconds
        channel = self._channel
        while channel is not None:
            line, end, rest = self._pending.partition(b"\n")
            if end:
                self._pending = rest
                answer = _decoded(line)
                if answer.get("id") != number:
                    self.stop()
                    raise Gone(Crashed(None))
                return answer
            channel.settimeout(max(1e-3, deadline - time.monotonic()))
            try:
                part = channel.recv(1 << 16)
            except TimeoutError:
                self.stop()
                raise Gone(TimedOut(seconds)) from None
            except OSError:
                part = b""
            if not part:
                raise Gone(self._post_mortem())
            self._pending += part
        raise SandboxError("the process for candidates is not running")

    def _post_mortem(self) -> Rejected:
        """What the child, which has cut its connection, died of."""
        code = None
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(DEATH_SECONDS)
        self.stop()
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - SAID_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        if self.runtime and (code == SANITIZER_CODE or "Sanitizer" in said):
            return SanitizerReport(said)
        if code is None:
            return Crashed(None, None, said)
        return Crashed(-code, None, said) if code < 0 else Crashed(None, code, said)

    def close(self) -> None:
        """End it for good."""
        self.stop()
        self._said.close()


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
