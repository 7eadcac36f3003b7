"""Masks and matchers, judged by Python's own ``re`` over all short strings."""

from __future__ import annotations

import random
import re
import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.text import Tokenizer
from headrace.text.grammar import GrammarEngine, GrammarError
from headrace.text.grammar.engine import Mask
from headrace.text.grammar.sources import grammar_source

STRINGS = ["".join(letters) for n in range(10) for letters in product("ab", repeat=n)]
LONGEST_JUDGED = 6  # a regex of three leaves that fits the beginning of a string fits one three letters longer

leaf = st.sampled_from(["a", "b", "[ab]"])
regexes = st.recursive(
    leaf,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})")
        | st.tuples(inner, st.sampled_from(["?", "*", "+", "{1,2}"])).map(lambda two: f"({two[0]}){two[1]}")
    ),
    max_leaves=3,
)


def source(body: str) -> str:
    return f'%llguidance {{"no_forcing": true}}\nstart: {body}\n'


def ids(mask: Mask) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def engine(request: pytest.FixtureRequest) -> tuple[Tokenizer, GrammarEngine]:
    tokenizer = request.getfixturevalue(request.param)
    return tokenizer, GrammarEngine(tokenizer)


def check_walk(tokenizer: Tokenizer, engine: GrammarEngine, regex: str, data: st.DataObject) -> None:
    """Follow random allowed tokens; every mask is what the strings of the language say."""
    language = {string for string in STRINGS if re.fullmatch(regex, string)}
    matcher, text = engine.compile(source(f"/{regex}/")).matcher(), ""
    ends = set(tokenizer.eos_token_ids)
    while True:
        allowed = ids(matcher.mask())
        rests = {string[len(text) :].encode() for string in language if string.startswith(text)}
        assert matcher.may_end == (b"" in rests)
        assert (allowed & ends) == (ends if matcher.may_end else set())
        assert matcher.is_complete == (rests == {b""})
        prefixes = {rest[:n] for rest in rests for n in range(1, LONGEST_JUDGED - len(text) + 1)}
        for token in range(tokenizer.vocab_size):
            spelled = tokenizer.token_bytes(token)
            if token not in ends and len(text) + len(spelled) <= LONGEST_JUDGED:
                assert (token in allowed) == (spelled in prefixes and token not in tokenizer.special_ids), spelled
        choices = sorted(t for t in allowed - ends if len(text) + len(tokenizer.token_bytes(t)) <= LONGEST_JUDGED)
        if not choices:
            return
        token = data.draw(st.sampled_from(choices))
        matcher.accept(token)
        text += tokenizer.token_bytes(token).decode()


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data(), regex=regexes)
def test_masks_allow_what_re_allows(engine: tuple[Tokenizer, GrammarEngine], data: st.DataObject, regex: str):
    check_walk(*engine, regex, data)


@pytest.mark.model
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
@given(data=st.data(), regex=regexes)
def test_masks_of_a_real_vocabulary(smollm2_tokenizer: Tokenizer, data: st.DataObject, regex: str):
    check_walk(smollm2_tokenizer, GrammarEngine(smollm2_tokenizer), regex, data)


def test_rows_that_name_no_token_are_never_allowed(byte_level: Tokenizer):
    rows = byte_level.vocab_size + 77
    mask = GrammarEngine(byte_level, rows).compile(source("/(?s:.)*/")).matcher().mask()
    assert len(mask) == -(-rows // 32)
    allowed = ids(mask)
    assert max(allowed) < byte_level.vocab_size
    assert allowed & byte_level.special_ids == set(byte_level.eos_token_ids)


def test_a_model_may_have_fewer_rows_than_its_tokenizer(byte_level: Tokenizer):
    mask = GrammarEngine(byte_level, 300).compile(source("/(?s:.)*/")).matcher().mask()
    assert len(mask) == 10
    assert max(ids(mask)) < 300


def test_a_model_without_an_end_is_refused(byte_level: Tokenizer):
    first_end = min(byte_level.eos_token_ids)
    with pytest.raises(GrammarError, match="no end-of-sequence token"):
        GrammarEngine(byte_level, first_end)


def test_matchers_of_a_grammar_are_independent(engine: tuple[Tokenizer, GrammarEngine]):
    tokenizer, grammars = engine
    a, b = (tokenizer.token_id(letter) for letter in "ab")
    assert a is not None
    assert b is not None
    grammar = grammars.compile(source("/ab|ba/"))
    one, other = grammar.matcher(), grammar.matcher()
    one.accept(a)
    other.accept(b)
    assert a not in ids(one.mask())
    assert b not in ids(other.mask())


def test_an_end_is_taken_where_the_text_may_end(engine: tuple[Tokenizer, GrammarEngine]):
    tokenizer, grammars = engine
    a, end = tokenizer.token_id("a"), tokenizer.eos_token_ids[0]
    assert a is not None
    matcher = grammars.compile(source("/a+/")).matcher()
    matcher.accept(a)
    assert matcher.may_end
    assert not matcher.is_complete
    matcher.accept(end)
    assert matcher.is_complete
    with pytest.raises(GrammarError):
        grammars.compile(source("/a+/")).matcher().accept(end)


def test_a_token_that_does_not_fit_breaks_its_matcher_alone(engine: tuple[Tokenizer, GrammarEngine]):
    tokenizer, grammars = engine
    a, b = tokenizer.token_id("a"), tokenizer.token_id("b")
    assert a is not None
    assert b is not None
    grammar = grammars.compile(source("/aa/"))
    good, bad = grammar.matcher(), grammar.matcher()
    good.accept(a)
    with pytest.raises(GrammarError):
        bad.accept(b)
    with pytest.raises(GrammarError):
        bad.mask()
    assert a in ids(good.mask())
    assert grammars.compile(source("/aa/")) is not grammar


def test_a_lexer_that_grows_too_large_is_an_error(byte_level: Tokenizer):
    matcher = GrammarEngine(byte_level).compile(source("/[ab]*a[ab]{20}/")).matcher()
    letters = [byte_level.token_id("a"), byte_level.token_id("b")]

    def follow(rng: random.Random) -> None:
        for _ in range(200_000):
            matcher.mask()
            matcher.accept(rng.choice(letters))

    with pytest.raises(GrammarError, match="cannot be followed further"):
        follow(random.Random(1))


@pytest.mark.parametrize("body", ["/(/", "missing", '"a" <[5]', "/(?=a)b/"])
def test_what_does_not_compile_is_an_error(byte_level: Tokenizer, body: str):
    with pytest.raises(GrammarError, match="does not compile"):
        GrammarEngine(byte_level).compile(source(body))


def test_rules_nested_thousands_deep_compile(byte_level: Tokenizer):
    rules = "".join(f'r{n}: "a" r{n + 1} "b" | "c"\n' for n in range(4000))
    matcher = GrammarEngine(byte_level).compile(source(f'r0\n{rules}r4000: "c"')).matcher()
    assert ids(matcher.mask())


def test_kept_grammars(byte_level: Tokenizer):
    engine = GrammarEngine(byte_level, kept=2)
    first, second = engine.compile(source('"1"')), engine.compile(source('"2"'))
    assert engine.compile(source('"1"')) is first
    engine.compile(source('"3"'))
    assert engine.compile(source('"1"')) is first
    assert engine.compile(source('"2"')) is not second


def test_threads_may_share_a_grammar(engine: tuple[Tokenizer, GrammarEngine]):
    tokenizer, grammars = engine
    results: list[tuple[bytes, ...]] = []
    tokens = [tokenizer.token_id(letter) for letter in "abba" * 8]

    def follow() -> None:
        matcher = grammars.compile(source("/([ab]{2}|[ba]{3})*/")).matcher()
        masks = []
        for token in tokens:
            assert token is not None
            masks.append(matcher.mask().tobytes())
            matcher.accept(token)
        results.append(tuple(masks))

    threads = [threading.Thread(target=follow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1


def test_an_ambiguous_grammar_is_given_up_before_its_masks_take_long(smollm2_tokenizer: Tokenizer):
    ambiguous = grammar_source("start: s\ns: s s | /[a-zA-Z ]/", field="grammar")
    matcher, chance = GrammarEngine(smollm2_tokenizer).compile(ambiguous).matcher(), random.Random(0)

    def follow() -> None:
        for _ in range(40):  # the library's own limit is met after some 55
            allowed = ids(matcher.mask()) - set(smollm2_tokenizer.eos_token_ids)
            matcher.accept(chance.choice(sorted(allowed)))

    with pytest.raises(GrammarError, match="Too many items"):
        follow()
