"""Starting a replica as a process of its own."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from headrace.fleet.assembly import EngineOptions


class ReplicaLauncher:
    """Starts replicas of one kind.

    Args:
        options: How they run the model.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    def __call__(self, down: str, up: str) -> subprocess.Popen[bytes]:
        """Start a process that connects to the two endpoints; its log goes to our standard error."""
        options = msgspec.json.encode(self.options).decode()
        command = [sys.executable, "-m", "headrace.fleet.replica", down, up, options]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - our own words
