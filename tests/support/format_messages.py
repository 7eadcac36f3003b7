"""Messages as models write them in a format: well-formed, with what they must be read as; and bent."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.text.formats.notation import Calls, Format
from headrace.text.formats.pieces import MessagePiece, Text, Thought, ToolCall, joined
from headrace.text.formats.writer import new_id, write_calls

NAMES = ("f", "get_weather", "now", "a.b-c_1", "Ünï", "x" * 64)
KEYS = ("city", "n", "a_b", "Größe", "q", "path")
# What breaks naive readers: quotes, escapes, brackets, markers of other formats, white space, scripts, controls.
AWKWARD = (
    *(
        "",
        " ",
        "\n",
        "  two  ",
        'say "hi"',
        "it's",
        "\\",
        "\\n",
        "\\\\",
        "\t",
        "{",
        "}",
        "[1, 2",
        "a: b",
        "a=b",
        "<",
        "</",
    ),
    *(
        "<x>&amp;</x>",
        "Zürich",
        "北京市",
        "👩‍👩‍👧",
        "\u2028",
        "\x7f",
        "12",
        "true",
        "null",
        "None",
        "1e5",
        '"',
        "'",
        "`",
        ",",
    ),
    *(
        "line one\nline two\n",
        "</arg>",
        "<tool_call>",
        "[TOOL_CALLS]",
        "```json\n{}\n```",
        "$name",
        "%s",
        "“q”",
        "x" * 70,
    ),
)
PROSE = (
    *(
        "Hello.",
        "The weather",
        "is fine,",
        "a < b",
        "x > y",
        "1, 2, 3",
        "naïve café",
        "北京",
        "👍🏽",
        "“quoted”",
        "`code`",
    ),
    *(
        "it's",
        "e.g.",
        "<b>bold</b>",
        "a\n\nb",
        "- item\n- item",
        "```py\nf(x)\n```",
        "100 %",
        "(so)",
        "C:\\dir",
        "{",
        "]",
    ),
)
WHITE = ("", "", "\n", "\n\n", " ", " \n\t")


def number(rng: random.Random) -> int | float:
    return rng.choice([0, -1, 7, 2**40, -(10**20), 0.5, -2.25, 1e-7, 1e21, rng.randrange(10**6)])


def value(rng: random.Random, depth: int = 2) -> Any:
    """A value of JSON's types."""
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice([True, False, None])
    if kind == 1:
        return number(rng)
    if kind < 5:
        return "".join(rng.choice(AWKWARD) for _ in range(rng.randint(0, 3)))
    if kind < 7:
        return {rng.choice([*KEYS, "", "a b"]): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]


def arguments(rng: random.Random) -> dict[str, Any]:
    """The arguments of a call; often none."""
    return {rng.choice(KEYS): value(rng) for _ in range(rng.choice([0, 1, 1, 2, 3]))}


def call(found: Format, calls: Calls, rng: random.Random, index: int) -> ToolCall | None:
    """A call that the format can write, with the id that it writes; None if this one cannot be."""
    name, given = rng.choice(NAMES), arguments(rng)
    if rng.random() < 0.2:
        given["quoting"] = f"a {rng.choice(found.markers)} b"
    made = ToolCall(name, json.dumps(given, ensure_ascii=False), new_id(calls, name, index))
    try:
        write_calls(calls, [made])
    except InvalidInput:
        return None
    return made


def kinds_of(made: Sequence[MessagePiece]) -> dict[str, dict[str, frozenset[str]]]:
    """Schemas by which these calls may be read: what each argument of each is."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for one in made:
        if isinstance(one, ToolCall):
            kinds = found.setdefault(one.name, {})
            for key, item in json.loads(one.arguments).items():
                kinds[key] = kinds.get(key, frozenset()) | {"string" if isinstance(item, str) else "other"}
    return found


def _is_clear(made: Sequence[MessagePiece]) -> bool:
    """Whether no argument is a string in one call and something else in another."""
    return all(len(kinds) == 1 for tool in kinds_of(made).values() for kinds in tool.values())


def prose(rng: random.Random, markers: Sequence[str] = ()) -> str:
    """Text that begins and ends with what is neither white space nor a quote; of markers, it has quoted ones."""
    words = [rng.choice(PROSE) for _ in range(rng.randint(1, 4))]
    if markers and rng.random() < 0.2:
        # A reader looks for the first line of what a call begins with.
        marker = rng.choice(markers).split("\n")[0].rstrip("[{(")
        words.append(rng.choice(["`{}`,", '("{}")', "“{}”。", "'{}' x", "``{}`` x"]).format(marker))
    return " ".join(words) + rng.choice(["x", ".", "北", "…"])


def well_formed(found: Format, rng: random.Random) -> tuple[str, list[MessagePiece]]:
    """A message, and what it must be read as but for ambiguous values and ids that the format does not write."""
    text, pieces = "", list[MessagePiece]()

    def add(written: str, read: Sequence[MessagePiece]) -> None:
        nonlocal text
        text += (rng.choice(WHITE) if text else "") + written
        pieces.extend(read)

    calls = found.calls
    if found.reasoning is not None and rng.random() < 0.6:
        thought = prose(rng, found.markers) if rng.random() < 0.8 else ""
        white = rng.choice(WHITE)
        add(found.reasoning.open + white + thought + white + found.reasoning.close, [Thought(thought)])
    for _ in range(rng.randint(0, 3)):
        if rng.random() < 0.5 and not (calls and calls.at_start) and not (pieces and isinstance(pieces[-1], Text)):
            said = prose(rng, found.markers)
            add(found.answer.open + said + found.answer.close, [Text(said)])
        elif calls is not None:
            if calls.at_start and any(not isinstance(piece, Thought) for piece in pieces):
                break
            count = rng.randint(1, 3) if calls.parallel else 1
            made = [one for i in range(count) if (one := call(found, calls, rng, i)) is not None]
            if made and _is_clear([*pieces, *made]):
                add(write_calls(calls, made), made)
    if not pieces:
        said = prose(rng)
        add(said, [Text(said)])
    return text, joined(pieces)


def fragments(found: Format) -> list[str]:
    """Texts that mean something in a format, whole and broken."""
    whole = [*found.markers, *(line for marker in found.markers for line in marker.split("\n") if line)]
    made = [ToolCall("f", '{"city": "x y"}', "abcdefghi"), ToolCall("now", "{}", "functions.now:0")]
    if found.calls is not None:
        calls = found.calls
        whole += [calls.begin, calls.end, calls.separator, write_calls(calls, made[:1]), write_calls(calls, made)]
        whole += ["f", "(", ")", "$name", '{"name": "f", "arguments": {', "}}", '{"city": "x', '"', "'", "\\", "["]
        if found.calls.arguments.syntax == "pairs":
            pair = found.calls.arguments.pair or ""
            whole += [pair.replace("$key", "city").replace("$value", "x"), pair.split("$value")[0]]
    return [text for text in whole if text]


def bent(found: Format, rng: random.Random) -> str:
    """A message with markers missing, repeated, quoted, broken or moved, or cut off."""
    text = well_formed(found, rng)[0]
    parts = fragments(found)
    bend: Sequence[Callable[[str], str]] = (
        lambda text: _insert(text, rng, rng.choice(parts)),
        lambda text: _insert(text, rng, _broken(rng.choice(parts), rng)),
        lambda text: _insert(text, rng, _quoted(rng.choice(parts), rng)),
        lambda text: text.replace(rng.choice(parts), "", 1),
        lambda text: _at_marker(text, rng, parts, lambda marker: marker * 2),
        lambda text: _at_marker(text, rng, parts, lambda marker: _quoted(marker, rng)),
        lambda text: _at_marker(text, rng, parts, lambda marker: _broken(marker, rng)),
        lambda text: _at_marker(text, rng, parts, lambda marker: rng.choice(WHITE) + marker + rng.choice(WHITE)),
        lambda text: text[: rng.randrange(len(text) + 1)],
        lambda text: _insert(text, rng, rng.choice(string.printable)),
        lambda text: text + rng.choice(parts),
    )
    for _ in range(rng.choice([1, 1, 2, 3])):
        text = rng.choice(bend)(text)
    return text


def _insert(text: str, rng: random.Random, what: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + what + text[at:]


def _at_marker(text: str, rng: random.Random, parts: Sequence[str], change: Callable[[str], str]) -> str:
    there = [part for part in parts if part in text]
    if not there:
        return text
    part = rng.choice(there)
    at = rng.choice([i for i in range(len(text)) if text.startswith(part, i)])
    return text[:at] + change(part) + text[at + len(part) :]


def _broken(part: str, rng: random.Random) -> str:
    begin = rng.randrange(len(part))
    return part[begin : rng.randint(begin, len(part))]


def _quoted(part: str, rng: random.Random) -> str:
    before, after = rng.choice([('"', '"'), ("'", "'"), ("`", "`"), ("``", "``"), ("“", "”"), ('"', ""), ("", "`")])
    return before + part + after


def soup(found: Format, rng: random.Random) -> str:
    """Bytes that are mostly fragments of the format, read as a tokenizer's output is."""
    parts = [part.encode() for part in fragments(found)] + [
        b"\xff",
        b"\xe2\x96",
        b"\n",
        b" ",
        b"12",
        b"x",
        b"\xf0\x9f\x91",
    ]
    made = b"".join(
        part if rng.random() < 0.7 else part[: rng.randrange(len(part) + 1)]
        for part in rng.choices(parts, k=rng.randint(1, 8))
    )
    return made.decode("utf-8", errors="replace")


# One number decides everything: cheap, and a failure is repeated by it.
seeds = st.integers(0, 2**48).map(random.Random)
