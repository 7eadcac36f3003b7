"""Reading messages: the same however they were cut, nothing lost, nothing taken for a call that is none."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from format_checks import check_message, check_nothing_lost, read
from format_messages import bent, kinds_of, seeds, soup, well_formed
from hypothesis import given, settings
from random_formats import random_format, random_message

from headrace.text.formats.catalog import format_named, formats
from headrace.text.formats.notation import Format
from headrace.text.formats.pieces import MessagePiece, Text, Thought, ToolCall
from headrace.text.formats.reader import FormatReader, primed_by
from headrace.text.formats.writer import write_calls

each_format = pytest.mark.parametrize("found", formats().values(), ids=formats())


def plain(pieces: list[MessagePiece]) -> list[Any]:
    """Pieces without ids, which not all formats write, and with arguments as they are meant."""
    return [(p.name, json.loads(p.arguments)) if isinstance(p, ToolCall) else p for p in pieces]


def check_well_formed(found: Format, rng: random.Random, **effort: int) -> None:
    text, meant = well_formed(found, rng)
    check_message(found, text, rng, **effort)
    assert plain(read(found, [text], tools=kinds_of(meant) or {"other": {}})) == plain(meant), text


def check_bent(found: Format, rng: random.Random, **effort: int) -> None:
    cut = rng.random() < 0.3
    text = bent(found, rng) if rng.random() < 0.7 else soup(found, rng)
    check_message(found, text, rng, cut=cut, **effort)


@each_format
def test_well_formed_messages(found: Format):
    @settings(max_examples=100)
    @given(seeds)
    def check(rng: random.Random) -> None:
        check_well_formed(found, rng)

    check()


@each_format
def test_bent_messages(found: Format):
    @settings(max_examples=100)
    @given(seeds)
    def check(rng: random.Random) -> None:
        check_bent(found, rng)

    check()


def check_random_formats(seeds: range) -> int:
    checked = 0
    for seed in seeds:
        rng = random.Random(seed)
        found = random_format(rng)
        if found is not None:
            check_message(found, random_message(found, rng), rng, cut=rng.random() < 0.3)
            checked += 1
    return checked


def test_formats_whose_markers_overlap():
    assert check_random_formats(range(2000)) > 300


@pytest.mark.bars
def test_many_formats_whose_markers_overlap():
    assert check_random_formats(range(2000, 200_000)) > 30_000


@pytest.mark.bars
@each_format
def test_every_cut_in_two_of_many_messages(found: Format):
    for seed in range(125):
        check_well_formed(found, random.Random(seed), short=10_000, ways=10)
        check_bent(found, random.Random(-seed - 1), short=10_000, ways=10)


@pytest.mark.bars
def test_a_million_texts_raise_nothing():
    every = list(formats().values())
    for seed in range(1_000_000):
        rng = random.Random(seed)
        found = every[seed % len(every)]
        reader = FormatReader(found, any_tool=True)
        reader.push(soup(found, rng))
        reader.finish(cut=rng.random() < 0.3)


@each_format
def test_no_cut_of_a_message_is_read_as_more_calls_than_it_has(found: Format):
    """Each call of a message that is cut off anywhere is one of the whole message."""
    for seed in range(4):
        text, _ = well_formed(found, random.Random(seed))
        whole = [piece for piece in read(found, [text]) if isinstance(piece, ToolCall)]
        for end in range(len(text)):
            calls = [piece for piece in read(found, [text[:end]], cut=True) if isinstance(piece, ToolCall)]
            assert calls == whole[: len(calls)], text[:end]


# --- rules that docs/formats.md states -----------------------------------------------------------------------------

HERMES, QWEN, LLAMA, PYTHONIC, HARMONY = map(
    format_named, ["hermes", "qwen3-coder", "llama3-json", "llama4-pythonic", "gpt-oss"]
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = ToolCall("f", '{"a": 1}')
UNCLOSED = '<tool_call>{"name": "f", "arguments": {"a": 1}'
NAMELESS = '<tool_call>{"arguments": {"a": 1}}'
BEFORE = '<tool_call>{"name": "f", "arguments": {"a": '


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("  Hello. \n", [Text("  Hello. \n")]),
        ("<think>\nhm\n</think>\n\nHi", [Thought("hm"), Text("Hi")]),
        ("<think>hm", [Thought("hm")]),
        ("<think></think>Hi", [Text("Hi")]),
        # Markers too many.
        ("<think><think>\nhm</think></think>Hi", [Thought("hm"), Text("Hi")]),
        ("<think>a<think>b</think>c", [Thought("a<think>b"), Text("c")]),
        ("</think>Hi", [Text("Hi")]),
        ("hm</think>Hi", [Text("hm</think>Hi")]),
        ("a<think>b</think>c<think>d</think>", [Text("a"), Thought("b"), Text("c"), Thought("d")]),
        # Quoted markers.
        ("<think>I close with `</think>`.</think>Hi", [Thought("I close with `</think>`."), Text("Hi")]),
        ('Say "<think>" or (\'<tool_call>\').', [Text('Say "<think>" or (\'<tool_call>\').')]),
        ('<think>"Yes."</think>"No."', [Thought('"Yes."'), Text('"No."')]),
        ("<think>the users'</think>'tis", [Thought("the users'"), Text("'tis")]),
        ("<think>用“</think>”结束</think>好", [Thought("用“</think>”结束"), Text("好")]),
        ('<think>用"</think>"结束</think>好', [Thought('用"</think>"结束'), Text("好")]),
        ("<think>``</think>``</think>Hi", [Thought("``</think>``"), Text("Hi")]),
        ("<think>`</think>", [Thought("`")]),
        # White space: layout next to markers, kept elsewhere.
        (f"a  b\n\n{CALL}\n\nc ", [Text("a  b"), F, Text("c ")]),
        (f"{CALL}\n{CALL}", [F, F]),
        # Calls in reasoning are a part of it if it is closed later.
        (f"<think>so {CALL}</think>Hi", [Thought(f"so {CALL}"), Text("Hi")]),
        (f"<think>so\n{CALL}", [Thought("so"), F]),
        # What closes a call may be missing; what it consists of may not.
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', [F]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}} and', [F, Text("and")]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [F]),
        (UNCLOSED, [Text(UNCLOSED, "malformed")]),
        (f"{NAMELESS}</tool_call>!", [Text(NAMELESS, "malformed"), Text("</tool_call>!")]),
        ("<tool_call> oops", [Text("<tool_call> ", "malformed"), Text("oops")]),
        (f"<tool_call>{CALL}", [Text("<tool_call>", "malformed"), F]),
        # Python's words are read, and written as JSON.
        ('<tool_call>{"name": "f", "arguments": {"a": None}}</tool_call>', [ToolCall("f", '{"a": null}')]),
        # What is no text or no number of JSON's is no argument.
        *(
            (BEFORE + bad + "}}", [Text(BEFORE, "malformed"), Text(bad + "}}")])
            for bad in ('"\\ud800"', "1e999", "NaN", "01", "+1", '"\\x"')
        ),
    ],
)  # fmt: skip
def test_rules_of_marked_formats(text: str, pieces: list[MessagePiece]):
    assert check_message(HERMES, text, random.Random(0)) == pieces


def test_a_call_that_was_cut_short_is_text():
    text = CALL.removesuffix("</tool_call>")
    assert check_message(HERMES, text, random.Random(0), cut=True) == [Text(text, "cut")]
    assert check_message(HERMES, text, random.Random(0)) == [F]
    assert check_message(HERMES, CALL, random.Random(0), cut=True) == [F]


def test_a_call_in_reasoning_that_was_cut_short_is_reasoning():
    assert check_message(HERMES, f"<think>{CALL}", random.Random(0), cut=True) == [Thought(CALL)]


@pytest.mark.parametrize(
    ("found", "text", "pieces"),
    [
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}', [F]),
        (LLAMA, ' <|python_tag|>{"name": "f", "arguments": {"a": 1}}', [F]),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', [F, ToolCall("g", "{}")]),
        (LLAMA, '{"name": "other", "parameters": {}}', [Text('{"name": "other", "parameters": {}}')]),
        (LLAMA, '{"a": 1}', [Text('{"a": 1}')]),
        (LLAMA, 'See: {"name": "f", "parameters": {}}', [Text('See: {"name": "f", "parameters": {}}')]),
        (PYTHONIC, "[f(a=1), g()]", [F, ToolCall("g", "{}")]),
        (PYTHONIC, "<|python_start|>[f(a=1)]<|python_end|>", [F]),
        (PYTHONIC, "[f(a='it\\'s\\n', b=[None, True])]", [ToolCall("f", '{"a": "it\'s\\n", "b": [null, true]}')]),
        (PYTHONIC, "[1, 2]", [Text("[1, 2]")]),
    ],
)
def test_rules_of_formats_whose_calls_are_not_marked(found: Format, text: str, pieces: list[MessagePiece]):
    tools = {"f": {}, "g": {}}
    for parts in ([text], list(text)):
        assert read(found, parts, tools=tools) == pieces


@pytest.mark.parametrize("white", ["", " ", "\n"])
@pytest.mark.parametrize("name", ["mistral", "granite", "phi-4", "apriel", "cohere", "nemotron-nano"])
def test_white_space_before_a_list_of_calls(name: str, white: str):
    found = format_named(name)
    assert found.calls is not None
    text = write_calls(found.calls, [F, F]).replace("[{", f"{white}[{{").replace("[\n", f"{white}[\n", 1)
    assert plain(check_message(found, f"Hi {text}", random.Random(0))) == plain([Text("Hi"), F, F])


def test_channels():
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    )
    assert check_message(HARMONY, text, random.Random(0)) == [Thought("hm"), Text("I look."), F]


@pytest.mark.parametrize(
    ("kinds", "value"),
    [({"a": {"string"}}, "12"), ({"a": {"other"}}, 12), ({}, 12), ({"a": {"string", "other"}}, 12)],
)
def test_schemas_tell_strings_from_values(kinds: dict[str, set[str]], value: object):
    text = "<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n</function>\n</tool_call>"
    tools = {"f": {key: frozenset(kind) for key, kind in kinds.items()}}
    (call,) = read(QWEN, [text], tools=tools)
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": value}


BOTH_KINDS = {"string", "other"}


@pytest.mark.parametrize(
    ("kinds", "written", "value"),
    [
        ({"other"}, '["</parameter>", 1]', ["</parameter>", 1]),
        (BOTH_KINDS, '{"b": "\n</parameter>\n"}', {"b": "\n</parameter>\n"}),
        (BOTH_KINDS, "['</parameter>', None]", ["</parameter>", None]),
        (BOTH_KINDS, '["not closed', '["not closed'),
        (BOTH_KINDS, '"quoted', '"quoted'),
        (BOTH_KINDS, '"quoted"', '"quoted"'),
        (BOTH_KINDS, "12 apples", "12 apples"),
        (BOTH_KINDS, " 12\n", 12),
        (BOTH_KINDS, "[1] [2]", "[1] [2]"),
        ({"string"}, ' ["a"]\n', ' ["a"]\n'),
        ({"string"}, "", ""),
    ],
)
def test_values_that_hold_what_ends_them(kinds: set[str], written: str, value: object):
    text = "<tool_call>\n<function=f>\n<parameter=a>\n" + written + "\n</parameter>\n</function>\n</tool_call>"
    tools = {"f": {"a": frozenset(kinds)}}
    for cut in range(len(text)):
        (call,) = read(QWEN, [text[:cut], text[cut:]], tools=tools)
        assert isinstance(call, ToolCall)
        assert json.loads(call.arguments) == {"a": value}


def test_a_value_that_is_none_is_no_call():
    for written in ("", '["', "[1", "12 apples", '["a"] b'):
        text = "<tool_call>\n<function=f>\n<parameter=a>\n" + written + "\n</parameter>\n</function>\n</tool_call>"
        whole = read(QWEN, [text], tools={"f": {"a": frozenset({"other"})}})
        assert not [piece for piece in whole if isinstance(piece, ToolCall)]
        assert "".join(piece.text for piece in whole if isinstance(piece, Text)) == text


def test_without_tools_what_looks_like_a_call_is_text():
    assert read(HERMES, [CALL], tools={}) == [Text(CALL)]


def test_the_prompt_may_have_opened_the_reasoning():
    primed = primed_by(HERMES, "<|im_start|>assistant\n<think>\n")
    reader = FormatReader(HERMES, primed=primed)
    assert reader.in_reasoning
    assert reader.push("hm\n</think>\n\nHi") == [Thought("hm"), Text("Hi")]
    assert not reader.in_reasoning
    assert primed_by(HERMES, "<|im_start|>assistant\n") == ""


def test_text_is_shown_as_soon_as_it_is_certain():
    reader = FormatReader(HERMES, any_tool=True)
    assert [reader.push(part) for part in ("Hel", "lo <", "b> ", "x", "<tool", "s>")] == [
        [Text("Hel")], [Text("lo")], [Text(" <b>")], [Text(" x")], [], [Text("<tools>")],
    ]  # fmt: skip


def test_nothing_comes_after_the_end():
    reader = FormatReader(HERMES)
    assert reader.push("a") + reader.finish() == [Text("a")]
    assert reader.push("b") == reader.finish() == []


@pytest.mark.parametrize(
    "wrong",
    [
        [Text("a"), F],
        [Text("ab"), F, Text("b")],
        [F, Text("a b")],
        [Text("a"), F, F, Text("b")],
        [Text("a"), Text("b")],
    ],
)
def test_the_check_that_nothing_is_lost_finds_losses(wrong: list[MessagePiece]):
    check_nothing_lost(HERMES, f"a {CALL} b", [Text("a"), F, Text("b")])
    with pytest.raises(AssertionError):
        check_nothing_lost(HERMES, f"a {CALL} b", wrong)
