"""Sources of grammars: what they admit, and what of users' grammars is refused."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_cases import ByteGrammar

from headrace.errors import InvalidInput
from headrace.text import Tokenizer
from headrace.text.grammar import (
    GrammarEngine,
    GrammarError,
    choice_source,
    grammar_source,
    json_object_source,
    json_schema_source,
    regex_source,
)

LARK = """
// a comment
start: greeting ("," " " name)* END?
greeting: "Hello" | "Hi"i
name: /[A-Z][a-z]+/   # another
END: "!"{1,3} | "a".."f"
"""
GBNF = r"""
root  ::= item ("," item)*
item  ::= [0-9]+ | "\"" char* "\""
char  ::= [^"\\] | "\\" ["\\nu]
"""


def test_any_json_object():
    grammar = ByteGrammar(json_object_source())
    for seed in range(20):
        text = grammar.walk(random.Random(seed))
        assert text is None or isinstance(json.loads(text), dict)
    assert grammar.accepts('{"a": [1, {"b": null}]}')
    assert not grammar.accepts("[]")


@pytest.mark.parametrize("choices", [["yes"], ["a", "ab", "b"], ['"', "\\", "é\n", "\x7f\u2028", "🧑🏾‍🤝‍🧑🏾"]])
def test_choices(choices: list[str]):
    grammar = ByteGrammar(choice_source(choices, field="f"))
    assert all(map(grammar.accepts, choices))
    assert not grammar.accepts("".join(choices) + "x")


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), min_size=1, max_size=5))
def test_choices_of_any_text(choices: list[str]):
    grammar = ByteGrammar(choice_source(choices, field="f"))
    assert all(map(grammar.accepts, choices))
    assert {grammar.walk(random.Random(seed)) for seed in range(5)} <= set(choices)


@pytest.mark.parametrize("choices", [[], [""], ["a"] * 1001, ["x" * 70_000]])
def test_bad_choices(choices: list[str]):
    with pytest.raises(InvalidInput):
        choice_source(choices, field="f")


def test_a_regex_matches_from_beginning_to_end():
    grammar = ByteGrammar(regex_source(r"(\d{3})-\d+|x", field="f"))
    assert grammar.accepts("123-4")
    assert grammar.accepts("x")
    assert not grammar.accepts("a123-4")
    with pytest.raises(InvalidInput, match=re.escape("f: the regular expression refers back")):
        regex_source(r"(a)\1", field="f")
    with pytest.raises(InvalidInput, match="matches no text"):
        regex_source(r"a^b", field="f")


def test_lark():
    grammar = ByteGrammar(grammar_source(LARK, field="f"))
    assert grammar.accepts("Hello, Ann, Bob!!")
    assert grammar.accepts("hIb")
    assert not grammar.accepts("Hello,Ann")


def test_gbnf():
    grammar = ByteGrammar(grammar_source(GBNF, field="f"))
    assert grammar.accepts('12,"a\\nb"')
    assert not grammar.accepts("12,")


def test_json_in_lark_passes_its_gate():
    source = grammar_source('start: "<" call ">"\ncall: %json {"enum": [1, "x"]} | %json {"type": "null"}', field="f")
    grammar = ByteGrammar(source)
    assert grammar.accepts('<"x">')
    assert grammar.accepts("<null>")
    assert not grammar.accepts("<2>")
    with pytest.raises(InvalidInput, match="line 2 of the grammar has a schema that cannot be enforced"):
        grammar_source('start: call\ncall: %json {"uniqueItems": true}', field="f")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: <|im_end|>", "control token"),
        ("start: <[5]>", "control token"),
        ("start: <[*]>", "control token"),
        ("start: @other", "another grammar"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "settings of the library"),
        ("start: %lark { start: /a/ }", "nests a grammar"),
        ('start: %regex {"substring_chars": "abc"}', "not supported"),
        ("start: perm::0x0", "parameter"),
        ('start: "a" %if bit_clear(0)', "parameter"),
        ("%import python.STRING\nstart: STRING", "imports from elsewhere"),
        ("%declare X\nstart: X", "not supported"),
        ('start[lazy]: "a"', "no rule named start"),
        ('start: x\nx[stop="a"]: /b/', "attributes"),
        ("start: x\nx[max_tokens=3]: /b/", "attributes"),
        ('x: "a"', "no rule named start"),
        ('start: "a', "cannot be read"),
        ('start: "a"{1,100000}', "more than 10000"),
        ("start: " + "(" * 60 + '"a"' + ")" * 60, "nests deeper"),
        ("start: (", "without its )"),
        ("start: ~", "ends too early"),
        ('start: "a"' + "\n" * 70_000, "longer than"),
        ("start: %json {", "no JSON"),
        ("root ::= (", "cannot be read"),
        ('rule ::= "a"', "cannot be read"),
        ("\n".join(f"r{n} ::= r{n + 1}" for n in range(300)), "write it in Lark"),
    ],
)
def test_what_is_refused_in_a_grammar(text: str, reason: str):
    with pytest.raises(InvalidInput) as refused:
        grammar_source(text, field="f")
    assert reason in refused.value.message
    assert refused.value.field == "f"


NEGATIONS = ['start: ~"abc"', "start: A\nA: ~/[a-z]*/", 'start: A "x"\nA: ~("a" | ~"b")+', 'start: "(" ~(~/a/ "b") ")"']


@pytest.mark.parametrize("text", NEGATIONS)
def test_a_complement_reaches_no_control_token_and_no_broken_text(byte_level: Tokenizer, text: str):
    grammar = GrammarEngine(byte_level).compile(grammar_source(text, field="f"))
    rng, ends = random.Random(1), set(byte_level.eos_token_ids)
    for _ in range(20):
        matcher = grammar.matcher()
        spelled = b""
        while len(spelled) < 30:
            bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
            allowed = set(np.flatnonzero(bits).tolist())
            assert not (allowed & byte_level.special_ids) - ends
            assert not allowed & ends or matcher.may_end
            choices = sorted(allowed - ends)
            if not choices:
                break
            token = rng.choice(choices)
            matcher.accept(token)
            spelled += byte_level.token_bytes(token)
        spelled.decode(errors="surrogateescape")
        assert all(byte < 0xF8 for byte in spelled)


WORDS = (
    'start x X : | ( ) [ ] {1,2} ~ & * + ? "a" /b/ .. -> %ignore %import %json %llguidance common . INT {} <x> @g = , 3'
    " // #"
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from([*WORDS.split(), "\n"]), max_size=25))
def test_any_tokens_are_a_source_or_an_invalid_input(byte_level: Tokenizer, words: list[str]):
    try:
        source = grammar_source("start: x\nx: /b/\n" + " ".join(words), field="f")
        GrammarEngine(byte_level).compile(source).matcher().mask()
    except (InvalidInput, GrammarError):
        return


def test_schemas_use_the_field_of_the_caller():
    with pytest.raises(InvalidInput) as refused:
        json_schema_source({"items": {"uniqueItems": True}}, field="response_format.json_schema.schema")
    assert refused.value.field == "response_format.json_schema.schema.items.uniqueItems"
