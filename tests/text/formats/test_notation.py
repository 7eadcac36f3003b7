"""Files that describe formats: what is wrong with one is said, and where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.text import ChatTemplate
from headrace.text.formats.catalog import GENERIC, format_named, formats
from headrace.text.formats.detection import detect_format, format_problem
from headrace.text.formats.loading import LARGEST, load_format, read_format
from headrace.text.formats.notation import Format
from headrace.text.formats.reader import FormatReader
from headrace.text.formats.round_trip import contradiction

GOOD = """
name = "mine"
models = "mine"

[reasoning]
open = "<think>"
close = "</think>"

[answer]
markers = ["<answer>"]

[calls]
call = "<call>$name($arguments)</call>"
id = "$random9"

[calls.arguments]
syntax = "python"
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "mine"', "", "name"),
        ('name = "mine"', "name = 5", r"\$.name"),
        ('models = "mine"', 'models = "mine"\ndetect = "x"', r"\$.detect"),
        ('models = "mine"', 'models = "mine"\ncolour = "x"', "colour"),
        ('open = "<think>"', "", r"open` - at `\$.reasoning"),
        ('close = "</think>"', 'close = " "', "reasoning needs open and close"),
        ('close = "</think>"', 'close = "<think> "', "are the same"),
        ('["<answer>"]', '[""]', "a marker is empty"),
        ("[answer]", "[answers]", "answers"),
        ('id = "$random9"', 'id = "$random8"', "calls.id"),
        ('id = "$random9"', "parallel = 1", r"\$.calls.parallel"),
        ('call = "<call>$name($arguments)</call>"', "", r"call` - at `\$.calls"),
        ("<call>$name($arguments)</call>", "", "calls.call is empty"),
        ("<call>$name($arguments)</call>", "<call>$name", "needs .name"),
        ("<call>$name($arguments)</call>", "<call>$name $name($arguments)", "each once"),
        ("<call>$name($arguments)</call>", "<call>$name($arguments)$key", "each once"),
        ("<call>$name($arguments)</call>", "<call>$nome($arguments)", "nome is not known"),
        ("<call>$name($arguments)</call>", "<call>$id$name($arguments)", "between .id and .name"),
        ("<call>$name($arguments)</call>", "<call>$id($arguments)", "calls.id must have .name"),
        ("<call>$name($arguments)</call>", "<call>$name: ($arguments)", "cannot begin with ':'"),
        ("<call>$name($arguments)</call>", "<call>$name $arguments", "in parentheses"),
        ("<call>$name($arguments)</call>", "<call>($arguments) $name", "last"),
        ("<call>$name($arguments)</call>", "$name($arguments)", "nothing marks a call"),
        ("<call>$name($arguments)</call>", "<<$name($arguments)", "nothing marks a call"),
        ("<call>$name($arguments)</call>", "<call>$record", "calls.record is JSON"),
        ('id = "$random9"', "record = '{\"name\": $name, \"a\": $arguments}'", "if and only if calls.record"),
        ('id = "$random9"', "record = '{\"name\": $name'", "calls.record is not JSON"),
        ('id = "$random9"', "record = '[$name, $arguments]'", "calls.record needs"),
        ('syntax = "python"', 'syntax = "yaml"', r"\$.calls.arguments.syntax"),
        ('syntax = "python"', 'syntax = "pairs"', "calls.arguments.pair"),
        ('syntax = "python"', 'syntax = "pairs"\npair = "$key=$value"', "calls.arguments.pair"),
        ('syntax = "python"', 'syntax = "pairs"\npair = "<k>$value</k><v>$key</v>"', "calls.arguments.pair"),
        ('syntax = "python"', 'syntax = "python"\npair = "<k>$key</k><v>$value</v>"', "calls.arguments.pair"),
        ('syntax = "python"', 'quote = " "', "calls.arguments.quote"),
        ("[calls]", "[calls", "not TOML"),
        ("[reasoning]", "x = " + "[" * 30_000 + "\n[reasoning]", "nested too deeply|not TOML"),
        ("[reasoning]", "#" * LARGEST + "\n[reasoning]", "more than"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(old: str, new: str, says: str):
    assert read_format(GOOD, "mine.toml").name == "mine"
    assert old in GOOD
    with pytest.raises(InvalidInput, match=says) as caught:
        read_format(GOOD.replace(old, new), "mine.toml")
    assert caught.value.field == "tool_format"
    assert "mine.toml" in str(caught.value)


def test_a_record_that_is_not_given():
    source = GOOD.replace("$name($arguments)", "$record").replace("python", "json")
    with pytest.raises(InvalidInput, match="if and only if"):
        read_format(source, "mine.toml")


@given(st.dictionaries(st.sampled_from(["call", "begin", "separator", "end", "record", "id"]), st.text(max_size=12)))
@settings(max_examples=300)
def test_any_texts_make_a_format_that_reads_or_are_refused(texts: dict[str, str]):
    source = 'name = "x"\nmodels = "x"\n[calls]\n' + "\n".join(
        f"{key} = {json.dumps(text)}" for key, text in texts.items()
    )
    try:
        found = read_format(source.replace("\\ud", "?"), "x.toml")
    except InvalidInput:
        return
    reader = FormatReader(found, any_tool=True)
    reader.push("".join(texts.values()) * 3)
    reader.finish()


def test_a_format_of_ones_own(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert format_named(str(path)) == load_format(path)
    for bad in (tmp_path / "no.toml", tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidInput):
            load_format(bad)
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_format(path)
    with pytest.raises(InvalidInput, match="hermes"):
        format_named("nosuch")


def test_the_formats_that_come_with_it():
    for name, found in formats().items():
        assert found.name == name
        assert found.detect or name == GENERIC
    files = {path.stem for path in (Path(load_format.__code__.co_filename).parent / "data").glob("*.toml")}
    assert files == set(formats())


def test_the_page_on_formats_lists_them_all():
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \|$", page.partition("## The formats")[2], re.MULTILINE)
    assert [(name, models) for name, models, _ in rows] == [(n, formats()[n].models) for n in sorted(formats())]
    for name, _, kind in rows:
        calls = formats()[name].calls
        assert kind == ("–" if calls is None else "records" if calls.records else calls.arguments.syntax)


def test_the_page_on_formats_has_every_key():
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
    keys = set(re.findall(r"^\| `([a-z_.]+)`", page.partition("## The formats")[0], re.MULTILINE))
    assert keys == set(_keys(Format, ""))
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert read_format(example, "example.toml").calls is not None


def _keys(table: type[msgspec.Struct], before: str) -> Iterator[str]:
    for field in msgspec.structs.fields(table):
        inner = next((kind for kind in (field.type, *get_args(field.type)) if _is_table(kind)), None)
        if inner is None:
            yield before + field.name
        else:
            yield from _keys(inner, f"{before}{field.name}.")


def _is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


HERMES_LIKE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
)


def test_detection():
    assert detect_format(ChatTemplate(HERMES_LIKE, {})).name == "hermes"
    assert detect_format(None).name == GENERIC
    assert detect_format(ChatTemplate("{{ broken", {})).name == GENERIC
    # The marks of a format alone do not make it the right one: calls must be read as they are written.
    changed = HERMES_LIKE.replace('"arguments"', '"args"')
    assert detect_format(ChatTemplate(changed, {})).name == GENERIC
    assert "what is read" in format_problem(ChatTemplate(changed, {}), format_named("hermes"))
    refuses = ChatTemplate("{{ raise_exception('no <tool_call>') }}", {})
    assert "cannot write calls" in format_problem(refuses, format_named("hermes"))


@pytest.mark.parametrize(
    "body",
    [
        '[calls]\nbegin = "##"\nend = "##"\ncall = "$name $arguments@@"',
        '[calls]\nbegin = "##"\nend = ";;"\nseparator = ";;"\ncall = "$name $arguments@@"',
        '[calls]\ncall = "@@@$name $arguments@@"\n[calls.arguments]\nquote = "}"',
        '[reasoning]\nopen = "@@@"\nclose = "</t>"\n[calls]\ncall = "@@@$name $arguments@@"',
    ],
    ids=["begin is end", "separator is end", "quote is a bracket", "reasoning is a call"],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, body: str):
    path = tmp_path / "format.toml"
    path.write_text(f'name = "x"\nmodels = "x"\n{body}\n')
    with pytest.raises(InvalidInput, match="contradicts itself"):
        format_named(str(path))


@pytest.mark.parametrize("name", sorted(formats()))
def test_no_format_contradicts_itself(name: str):
    assert contradiction(formats()[name]) is None
