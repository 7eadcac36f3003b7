"""Starting a replica as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from headrace.fleet.options import EngineOptions
from headrace.logs import LogFormat


class ReplicaLauncher:
    """Starts replicas of one kind.

    Args:
        options: How they run the model.
        log_format: Style of their logs.
    """

    def __init__(self, options: EngineOptions, log_format: LogFormat = "text") -> None:
        self.options = options
        self._log_format = log_format

    def __call__(self, down: str, up: str) -> subprocess.Popen[bytes]:
        """Start a process that connects to the two endpoints; its log goes to our standard error."""
        options = msgspec.json.encode(self.options).decode()
        parent = str(os.getpid())
        command = [sys.executable, "-m", "headrace.fleet.replica", down, up, options, self._log_format, parent]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - our own words
