"""Amounts as people write and read them."""

from __future__ import annotations

import re

from headrace.errors import InvalidInput

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", re.IGNORECASE)


def parse_bytes(text: str, field: str) -> int:
    """Bytes from ``2GiB``, ``512M`` or ``1000000``.

    Raises:
        InvalidInput: It is none of these; ``field`` names the option.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not an amount of memory; write it like 2GiB or 512MiB", field=field)
    return int(float(match[1]) * _UNITS[match[2].lower()])
