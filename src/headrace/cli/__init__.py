"""The command line: one file a verb."""

from __future__ import annotations


def main() -> None:
    """Run ``headrace`` with this process's arguments.

    Exits with 0, 1 (Headrace refused or failed; one line on standard error says why), 2 (wrong usage), or 130 (Ctrl-C).
    """
    _open_standard_streams()
    from headrace.cli.app import app

    app(prog_name="headrace")


def _open_standard_streams() -> None:
    """Open what was closed of 0, 1 and 2: else a socket gets the number, and what is printed goes into it."""
    import os
    import sys

    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end of the process
