"""Writing results: JSON for programs, text for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError


def print_json(value: Any) -> None:
    """One JSON value as one line on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def write_json(value: Any, target: str) -> None:
    """One JSON value as one line to a file, or to standard output for ``-``.

    Raises:
        HeadraceError: The file cannot be written.
    """
    if target == "-":
        print_json(value)
        return
    try:
        Path(target).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise HeadraceError(f"cannot write {target}: {error.strerror or error}") from None


def plain(text: str) -> str:
    """Text without what a terminal would obey: control characters, and those that turn the direction of writing."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def human_bytes(size: int) -> str:
    """Such as ``98.4 MB``: powers of 1000, as package managers and disks count."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def read_stdin() -> str:
    """All of standard input as text, without its last line break, which shells add.

    Raises:
        HeadraceError: It is not UTF-8.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeadraceError(f"standard input is not UTF-8 text (byte {error.start})") from None
    return text.removesuffix("\n").removesuffix("\r")
