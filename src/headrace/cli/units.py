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


def parse_share(text: str, field: str) -> float:
    """A number from 0 to 1 from ``99%``.

    Raises:
        InvalidInput: It is no percentage up to 100; ``field`` names the option.
    """
    number = text.strip().removesuffix("%").strip()
    if text.strip().endswith("%") and re.fullmatch(r"\d+(\.\d+)?", number) and 0 < float(number) <= 100:
        return round(float(number) / 100, 12)  # 99.9 / 100 is a little more than 0.999
    raise InvalidInput(f"{text!r} is not a share; write it like 99%", field=field)
