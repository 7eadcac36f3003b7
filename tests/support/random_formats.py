"""Formats that nobody would make: of few letters, so that markers overlap in every way."""

from __future__ import annotations

import json
import random

from headrace.errors import InvalidInput
from headrace.text.formats.loading import read_format
from headrace.text.formats.notation import Format

LETTERS = 'ab< \n"`'


def letters(rng: random.Random, least: int, most: int) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(least, most)))


def random_format(rng: random.Random) -> Format | None:
    """A format; None if what was drawn is none."""
    syntax = rng.choice(["json", "json", "python", "pairs"])
    call = (
        letters(rng, 0, 4) + "$name" + ("($arguments)" if syntax == "python" else f" {letters(rng, 0, 3)}$arguments ")
    )
    lines = ['name = "random"', 'models = "none"']
    if rng.random() < 0.7:
        opening, closing = json.dumps(letters(rng, 1, 3)), json.dumps(letters(rng, 1, 3))
        lines += ["[reasoning]", f"open = {opening}", f"close = {closing}"]
    if rng.random() < 0.5:
        lines += ["[answer]", f"markers = [{json.dumps(letters(rng, 1, 3))}]"]
    lines += ["[calls]"]
    if syntax == "json" and rng.random() < 0.5:
        call = letters(rng, 0, 4) + "$record" + letters(rng, 0, 3).strip()
        lines.append('record = \'{"n": $name, "a": $arguments}\'')
    lines.append(f"call = {json.dumps(call + letters(rng, 0, 3))}")
    lines += [
        f"{key} = {json.dumps(letters(rng, 0, 4))}" for key in ("begin", "separator", "end") if rng.random() < 0.5
    ]
    if rng.random() < 0.2:
        lines.append("at_start = true")
    if syntax != "json":
        lines += ["[calls.arguments]", f'syntax = "{syntax}"']
    if syntax == "pairs":
        a, b, c = (json.dumps(letters(rng, 1, 2))[1:-1] for _ in range(3))
        lines.append(f'pair = "{a} $key {b} $value {c}"')
    try:
        return read_format("\n".join(lines), "random.toml")
    except InvalidInput:
        return None


def random_message(found: Format, rng: random.Random) -> str:
    """A text of what means something in a format."""
    assert found.calls is not None
    parts = [*found.markers, found.calls.begin, found.calls.separator, "f", "f {}", "f(a=1)", '{"n": "f", "a": {}}']
    parts += ['{"n": "f", "a": {', "}", ")", " ", "\n", '"', "`", "x"]
    return "".join(rng.choice(parts) if rng.random() < 0.85 else letters(rng, 1, 2) for _ in range(rng.randint(1, 9)))
