"""Sets of characters: sorted, disjoint ranges of code points. Surrogates are no characters."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby

Characters = tuple[tuple[int, int], ...]
"""Ranges (first, last) of code points, both inclusive, sorted, with a gap between any two."""

NONE: Characters = ()
ANY: Characters = ((0, 0xD7FF), (0xE000, sys.maxunicode))


def of(*ranges: tuple[int, int] | str) -> Characters:
    """The set of ranges, or of the characters of strings."""
    pairs: list[tuple[int, int]] = []
    for part in ranges:
        pairs += [(ord(c), ord(c)) for c in part] if isinstance(part, str) else [part]
    return intersection(_joined(pairs), ANY)


def union(*sets: Characters) -> Characters:
    """What is in any of them."""
    return _joined([pair for one in sets for pair in one])


def complement(one: Characters) -> Characters:
    """What is not in it."""
    gaps, begin = [], 0
    for first, last in one:
        if begin < first:
            gaps.append((begin, first - 1))
        begin = last + 1
    if begin <= sys.maxunicode:
        gaps.append((begin, sys.maxunicode))
    return _clipped(gaps)


def intersection(one: Characters, other: Characters) -> Characters:
    """What is in both."""
    both, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            both.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def contains(one: Characters, point: int) -> bool:
    """Whether a code point is in it."""
    return any(first <= point <= last for first, last in one)


def _joined(pairs: Iterable[tuple[int, int]]) -> Characters:
    ranges: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], last)
        else:
            ranges.append((first, last))
    return tuple(ranges)


def _clipped(pairs: Iterable[tuple[int, int]]) -> Characters:
    return intersection(tuple(pairs), ANY)


DIGITS = of((0x30, 0x39))
WORD = of((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A), "_")
# White space and line ends of ECMA-262, section 12.2 and 12.3.
SPACE = of((9, 13), " \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff", (0x2000, 0x200A))
LINE_ENDS = of("\n\r\u2028\u2029")

_LONG_NAMES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Control": "Cc",
    "Format": "Cf",
}


def property_named(name: str) -> Characters | None:
    """The characters of a general category, as in ``\\p{L}``; None for a name not known here."""
    key, _, value = name.partition("=")
    if value and key not in {"General_Category", "gc"}:
        return None
    category = _LONG_NAMES.get(value or key, value or key)
    if category in {"Any", "ASCII"}:
        return ANY if category == "Any" else of((0, 127))
    found = [pair for name, pairs in _categories().items() if name.startswith(category) for pair in pairs]
    known = 1 <= len(category) <= 2 and category[0] in "LMNPSZC" and (found or category in {"C", "Cn", "Co"})
    return _clipped(_joined(found)) if known else None


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """The ranges of each general category of Unicode."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for category, run in groupby(range(sys.maxunicode + 1), lambda point: unicodedata.category(chr(point))):
        points = list(run)
        ranges.setdefault(category, []).append((points[0], points[-1]))
    return ranges
