"""The command line: one file a verb."""

from __future__ import annotations


def main() -> None:
    """Run ``headrace`` with this process's arguments.

    Exits with 0, 1 (Headrace refused or failed; one line on standard error says why), 2 (wrong usage), or 130 (Ctrl-C).
    """
    from headrace.cli.app import app

    app(prog_name="headrace")
