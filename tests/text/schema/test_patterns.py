"""Patterns as languages, judged by Python's ``re`` on what both dialects read alike."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schema_cases import ByteGrammar

from headrace.text.schema.expressions import PatternError
from headrace.text.schema.notation import as_string, as_text
from headrace.text.schema.patterns import pattern_language, whole_language
from headrace.text.schema.regex import Languages

many = settings(max_examples=150, suppress_health_check=list(HealthCheck))
atoms = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", r"\.", "é", '"', r"\\", "^", "$", "(?=a)", "(?!b)"]
)
plain_atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", r"\.", "é", '"', r"\\"])
texts = st.text(st.sampled_from('ab.1é"\\-'), max_size=6)


def expressions(atom: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        atom,
        lambda inner: (
            st.lists(inner, max_size=3).map("".join)
            | st.lists(inner, min_size=1, max_size=3).map(lambda options: f"({'|'.join(options)})")
            | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])).map(
                lambda two: f"(?:{two[0]}){two[1]}"
            )
        ),
        max_leaves=6,
    )


def python_pattern(pattern: str) -> re.Pattern[str]:
    """For ``re``, whose ``$`` and ``\\w`` say more than those of ECMA-262."""
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern), re.ASCII)


@many
@given(expressions(atoms), st.lists(texts, min_size=3, max_size=10))
def test_a_pattern_matches_what_re_finds(pattern: str, samples: list[str]):
    languages = Languages()
    try:
        language = pattern_language(languages, pattern)
    except PatternError:
        assume(False)
    expected = python_pattern(pattern)
    for sample in samples:
        assert languages.has(language, sample) == (expected.search(sample) is not None), (pattern, sample)


@many
@given(expressions(plain_atoms), st.lists(texts, min_size=3, max_size=10))
def test_the_library_reads_what_we_write(pattern: str, samples: list[str]):
    languages = Languages()
    language = whole_language(languages, pattern)
    if languages.is_empty(language):
        return
    text = ByteGrammar(f"start: T\nT: {as_text(languages, language)}")
    string = ByteGrammar(f'start: T\nT: "\\"" {as_string(languages, language)} "\\""')
    other = ByteGrammar(f'start: T\nT: "\\"" {as_string(languages, languages.complement(language))} "\\"" | "never"')
    expected = python_pattern(pattern)
    for sample in samples:
        fits = expected.fullmatch(sample) is not None
        assert text.accepts(sample) == fits, (pattern, sample)
        assert string.admits(sample) == fits, (pattern, sample)
        assert other.admits(sample) != fits, (pattern, sample)


@many
@given(expressions(plain_atoms), expressions(plain_atoms))
def test_emptiness_agrees_with_membership(one: str, other: str):
    languages = Languages()
    first, second = whole_language(languages, one), whole_language(languages, other)
    both = languages.intersection([first, languages.complement(second)])
    samples = ["", "a", "b", "ab", "ba", "aa", ".", "1", "é", '"', "\\", "aab", "a.b"]
    if languages.is_empty(both):
        assert not any(languages.has(both, sample) for sample in samples)
    assert not languages.is_empty(languages.union([first, languages.complement(first)]))
    assert languages.is_empty(languages.intersection([first, languages.complement(first)]))


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "( without a )"),
        (")", ") without a ("),
        ("*", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("[a", "ends too early"),
        ("[b-a]", "range"),
        ("a{2,1}", "counts down"),
        ("a{1001}", "more than 1000"),
        ("a{", "no count"),
        (r"\b", "looks back"),
        ("(?<=a)b", "looks back"),
        (r"(a)\1", "refers back"),
        (r"\Z", "no escape"),
        (r"\p{Klingon}", "not known"),
        (r"\ud800", "names no character"),
        (r"\u12", "hexadecimal"),
        ("(?i)a", "not known"),
        ("(" * 50 + ")" * 50, "nests deeper"),
        ("a" * 2001, "longer than"),
        ("(^a)*", "repeats an assertion"),
        ("a*^b", "after what may be empty"),
    ],
)
def test_what_cannot_be_enforced_is_named(pattern: str, reason: str):
    with pytest.raises(PatternError, match=re.escape(reason)):
        pattern_language(Languages(), pattern)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        (r"^\p{Lu}\p{L}*$", "Éa", "éa"),
        (r"^\S+$", "a\u200b", "a\u3000b"),
        (r"^.$", "\x85", "\u2028"),
        (r"^\cA\x41\u0042\u{43}\0$", "\x01ABC\0", "ABC"),
        (r"^\ud83d\ude00$", "😀", "x"),
        (r"^[\w-]+$", "a-b", "a b"),
        (r"^[^]$", "\n", ""),
        (r"^(?!.*secret).*$", "plain", "a secret"),
        (r"^[\b]$", "\b", "b"),
        (r"^(?<year>\d{4})$", "2026", "26"),
    ],
)
def test_the_dialect_is_that_of_ecma_262(pattern: str, fits: str, fails: str):
    languages = Languages()
    language = pattern_language(languages, pattern)
    assert languages.has(language, fits)
    assert not languages.has(language, fails)
