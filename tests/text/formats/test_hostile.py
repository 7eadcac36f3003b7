"""Long and hostile messages: the work grows with the text and not faster."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from headrace.text.formats.catalog import formats
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import ToolCall
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.writer import write_calls

each_format = pytest.mark.parametrize("found", formats().values(), ids=formats())


def attacks(found: Format) -> Iterator[tuple[str, str]]:
    """Beginnings, and what follows them again and again."""
    yield from [("", " "), ("", ' "'), ("", "<"), ("", "x\n")]
    if found.reasoning is not None:
        thought = found.reasoning.open
        yield from [(thought, " "), ("", thought), ("", f"`{thought}`"), ("", thought + found.reasoning.close)]
    if found.calls is None:
        return
    opening = found.calls.begin or next(iter(found.calls.openings), "")
    call = write_calls(found.calls, [ToolCall("f", '{"city": "x y"}', "abcdefghi")])
    value = call.find("x y")
    begun, before_quote = call[:value], call[: value - 1]
    yield from [
        ("", opening),
        ("", f"`{opening}`"),
        ("", call),
        (call, " "),
        (opening, " "),
        ("", begun),
        ("", begun + "\\q"),
    ]
    yield from [(begun, text) for text in ("x", " ", "\\", "\\n", "\\u00e9", begun)]
    yield from [(before_quote, text) for text in ("1", "[", "[[],", '{"a":', "e", "-")]
    yield from [(call[: call.find("city")], "b"), (call[: call.find("f")] if "f" in call else call, "f")]
    if found.reasoning is not None:
        yield from [("", found.reasoning.open + opening), (found.reasoning.open + opening, "x ")]


def push(found: Format, text: str, step: int) -> None:
    reader = FormatReader(found, any_tool=True)
    for at in range(0, len(text), step):
        reader.push(text[at : at + step])
    reader.finish()


def calls_made(found: Format, begin: str, text: str, step: int) -> int:
    """How many functions are called, Python's and others."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    push(found, begin, step)  # what is made once for a format is made now
    gc.disable()  # what it calls back is not ours
    sys.setprofile(note)
    try:
        push(found, text, step)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("step", [4, 10**9], ids=["by four", "whole"])
@each_format
def test_twice_the_text_is_twice_the_work(found: Format, step: int):
    for begin, unit in attacks(found):
        if unit:
            short, long = (calls_made(found, begin, begin + unit * (size // len(unit)), step) for size in (500, 1000))
            assert long <= 2.4 * short + 300, (begin, unit)


@pytest.mark.bars
@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "llama3-json", "llama4-pythonic", "gpt-oss", "gemma-4"])
def test_a_million_characters(name: str):
    """Work that no function call shows, such as copying what is left, would take hours here."""
    found = formats()[name]
    for begin, unit in attacks(found):
        if unit:
            push(found, begin + unit * (1_000_000 // len(unit)), 10**9)
            push(found, begin + unit * (100_000 // len(unit)), 4)


def test_long_messages():
    hermes = formats()["hermes"]
    for unit in ("<tool_call>", '<tool_call>{"name": "f", "arguments": {"a": "', " ", "`<think>`"):
        push(hermes, unit * (300_000 // len(unit)), 10**9)
        push(hermes, "<tool_call>" + unit * (50_000 // len(unit)), 4)
