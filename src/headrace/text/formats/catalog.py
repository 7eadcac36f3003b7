"""The formats that come with Headrace, and which of them a model writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from headrace.errors import InvalidInput
from headrace.text.formats.loading import load_format, read_format
from headrace.text.formats.notation import Format
from headrace.text.formats.round_trip import contradiction

GENERIC = "generic"


@cache
def formats() -> Mapping[str, Format]:
    """All formats that come with Headrace, by name; more special ones before those that they resemble."""
    files = resources.files("headrace.text.formats") / "data"
    found = [
        read_format(file.read_text(encoding="utf-8"), file.name) for file in files.iterdir() if _is_format(file.name)
    ]
    found.sort(key=lambda one: (-sum(map(len, one.detect)), one.name))
    return {one.name: one for one in found}


def _is_format(name: str) -> bool:
    return name.endswith(".toml")


def format_named(name: str) -> Format:
    """A format by its name, or from the file at that path.

    Raises:
        InvalidInput: There is no such format, or the file is none.
    """
    known = formats()
    if name in known:
        return known[name]
    if name.endswith(".toml") or "/" in name:
        found = load_format(Path(name))
        if (problem := contradiction(found)) is not None:
            raise InvalidInput(f"{name} contradicts itself: {problem}", field="tool_format")
        return found
    raise InvalidInput(
        f"{name!r} is no format; there are {', '.join(sorted(known))}, or give a .toml file", field="tool_format"
    )
