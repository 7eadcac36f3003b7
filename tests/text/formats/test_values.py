"""Values against the readers that Python has: what they take is taken as the same, and nothing else is taken."""

from __future__ import annotations

import ast
import json
import random
from typing import Any

import pytest
from format_checks import many_way
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.formats.dialect import JSON, PYTHON, Dialect
from headrace.text.formats.values import MAX_DEPTH, ValueReader, Verdict

GEMMA = Dialect(('<|"|>',), "none", bare_keys=True, comma=",", colon=":")
DIALECTS = {"json": JSON, "python": PYTHON, "gemma": GEMMA}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["\\", '"', "'", "\n", "\\n", "\u2028", "😀", "\x00", "a\\'b"]
)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
tokens = st.sampled_from(
    [
        *"{}[]:,\"'()=\\ \n0123456789.-+eE",
        "true",
        "false",
        "null",
        "None",
        "True",
        '"a"',
        "'b'",
        '\\"',
        "\\u00e9",
        "\\ud83d",
    ]
)


def read(dialect: Dialect, parts: list[str]) -> tuple[Verdict, int, Any]:
    """What comes of a value that arrives in these parts."""
    reader, text, at, verdict = ValueReader(dialect), "", 0, Verdict.MORE
    for i, part in enumerate(parts):
        text += part
        if verdict is Verdict.MORE:
            verdict, at = reader.read(text, at, final=i == len(parts) - 1)
    return verdict, at, reader.value


def json_value(text: str) -> Any:
    """What Python's reader makes of the beginning of a text, with where it ends; raises ``ValueError``."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    stripped = text.lstrip(" \t\r\n")
    decoder = json.JSONDecoder(strict=False, parse_constant=refuse)
    value, end = decoder.raw_decode(stripped)
    json.dumps(value, allow_nan=False).encode()
    json.dumps(value, ensure_ascii=False).encode()
    return value, len(text) - len(stripped) + end


@given(st.lists(tokens, max_size=14).map("".join) | values.map(json.dumps), st.randoms())
def test_json_is_read_as_python_reads_it(text: str, rng: random.Random):
    try:
        expected = json_value(text)
    except ValueError:
        expected = None
    verdict, end, value = read(JSON, [text])
    assert read(JSON, many_way(text, rng)) == (verdict, end, value)
    if any(word in text for word in ("None", "True", "False")):
        return  # these are read although they are not JSON
    # Python stops where a number or a word could end ("1" in "1e", "true" in "truer"); we take no part of one.
    if expected is None or _goes_on(text, expected[1]):
        assert verdict is not Verdict.DONE or text[end : end + 1] == "", (text, value)
        return
    assert (verdict, end) == (Verdict.DONE, expected[1])
    assert value == expected[0]


def _goes_on(text: str, end: int) -> bool:
    """Whether what stands behind a number or a word could belong to it."""
    before, after = text[end - 1 : end], text[end : end + 1]
    if before in '"]}' or after == "":
        return False
    return after in "0123456789.eE+-" if before.isdigit() else after == "_" or (after.isascii() and after.isalpha())


@given(st.lists(tokens, max_size=10).map("".join) | values.map(repr), st.randoms())
def test_python_literals_are_read_as_python_reads_them(text: str, rng: random.Random):
    verdict, end, value = read(PYTHON, [text])
    assert read(PYTHON, many_way(text, rng)) == (verdict, end, value)
    if verdict is not Verdict.DONE or any(word in text for word in ("null", "true", "false")):
        return
    taken = text[:end].strip().replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0")
    try:
        expected = ast.literal_eval(taken)
    except (SyntaxError, ValueError):
        return  # JSON's way to write a character beyond the first plane, in two escapes, is read too
    if "\\ud" not in taken.lower():
        assert value == expected or "\\\n" in text


@pytest.mark.parametrize("name", DIALECTS)
@given(value=values, rng=st.randoms())
def test_what_is_written_is_read(name: str, value: Any, rng: random.Random):
    dialect = DIALECTS[name]
    try:
        text = dialect.write(value)
    except ValueError:
        assert name == "gemma"
        assert '<|"|>' in str(value)
        return
    if name == "gemma" and not _keys_are_bare(value):
        return
    assert read(dialect, [text]) == (Verdict.DONE, len(text), value)
    assert read(dialect, many_way(text, rng)) == (Verdict.DONE, len(text), value)


def _keys_are_bare(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_keys_are_bare, value))
    if isinstance(value, dict):
        return all(key.isalnum() for key in value) and all(map(_keys_are_bare, value.values()))
    return True


@pytest.mark.parametrize(
    "text",
    [
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "1" * 5000,
        "9" * 400 + "e400",
        "1e999",
        "tru" + "e" * 20,
        '"\\ud800"',
        '"\\',
        '"a',
        "'a'",
        "{1: 2}",
        "[1,]",
        "{,}",
        "-",
        "²",
    ],
)
def test_what_is_no_value(text: str):
    assert read(JSON, [text])[0] is Verdict.FAIL
    assert read(JSON, list(text))[0] is Verdict.FAIL


@pytest.mark.parametrize("written", ["'\\x4'", "'\\u12'", "'\\U00110000'", "'\\udc00'", "'\\x'"])
def test_what_is_no_string_of_python(written: str):
    assert read(PYTHON, [written])[0] is Verdict.FAIL


def test_depth_is_counted():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert read(JSON, [text])[0] is Verdict.DONE
