"""Stop strings against a search of the whole text, and the two users of the matcher against each other."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.engine.sampling_params import SamplingParams
from headrace.text import MessageStream, StopMatcher, StopWatch, Tokenizer
from headrace.text.constraint import ConstraintMaker
from headrace.text.formats.catalog import formats
from headrace.text.formats.pieces import Text, Thought, ToolCall, joined
from headrace.text.reading import Reading
from headrace.text.stream import MessageForm

quick = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
letters = st.text("ab", max_size=8)


def first_match(text: str, stops: list[str], after: int = 0) -> tuple[int, int, str] | None:
    """The match that ends first (beyond ``after`` characters), then begins first, then is listed first."""
    found = [
        (end, end - len(stop), order, stop)
        for order, stop in enumerate(stops)
        for end in range(max(after + 1, len(stop)), len(text) + 1)
        if stop and text[end - len(stop) : end] == stop
    ]
    if not found:
        return None
    end, begin, _, stop = min(found)
    return begin, end, stop


@quick
@given(st.lists(letters, max_size=12), st.lists(letters, max_size=4), st.booleans(), st.integers(0, 4))
def test_matches_as_a_search_of_the_whole_text(pieces: list[str], stops: list[str], include: bool, ignored: int):
    text = "".join(pieces)
    expected = first_match(text, stops, after=len("".join(pieces[:ignored])))
    matcher = StopMatcher(stops, include)
    shown, stop = "", None
    for i, piece in enumerate(pieces):
        part = matcher.push(piece, counts=i >= ignored)
        shown += part.text
        stop = stop or part.stop
        seen = "".join(pieces[: i + 1])
        if stop is None:
            # What is held back is the longest end of the text that may still become a stop string.
            held = len(seen) - len(shown)
            longest = max((n for s in stops for n in range(len(s)) if seen.endswith(s[:n])), default=0)
            assert seen.startswith(shown)
            assert held == longest
    shown += matcher.finish()
    if expected is None:
        assert (shown, stop) == (text, None)
    else:
        begin, end, expected_stop = expected
        assert (shown, stop) == (text[: end if include else begin], expected_stop)


def test_the_samples_of_a_request_share_their_automaton():
    matchers = [StopMatcher(["a" * 1000, "b"]) for _ in range(128)]
    assert len({id(matcher._automaton) for matcher in matchers}) == 1
    for matcher in matchers[:2]:
        assert matcher.push("aab").stop == "b"


def test_nothing_after_the_end():
    matcher = StopMatcher(["x"])
    assert matcher.push("axb").text == "a"
    assert matcher.push("c").text == matcher.finish() == ""


def test_many_long_stop_strings_cost_no_more_per_character():
    def seconds(stops: list[str]) -> float:
        matcher = StopMatcher(stops)
        begin = time.perf_counter()
        for _ in range(2000):
            matcher.push("aaaa bbbb ")
        return time.perf_counter() - begin

    few = min(seconds(["zzz"]) for _ in range(3))
    many = min(seconds([f"{i}-" + "aaaa bbbb " * 20 + "!" for i in range(64)]) for _ in range(3))
    assert many < 10 * few


# Letters of several tokens, sequences of emoji, marks that combine, what is spelled byte by byte.
WORDS = [
    "the",
    " dog",
    "é",
    "e\u0301",
    "中",
    "🦄",
    "👩\u200d👩\u200d👧",
    "🇫🇷",
    "👍🏽",
    "\n",
    " ",
    "<|im_end|>",
    "s.",
    "\x00",
]


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("examples", [300, pytest.param(50_000, marks=pytest.mark.bars)])
def test_engine_and_gateway_agree(tokenizer: Tokenizer, examples: int):
    tokens = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25)
    words = st.lists(st.sampled_from(WORDS), max_size=12)
    output = tokens | words.map(lambda w: tokenizer.encode("".join(w), add_special_tokens=False))
    make = ConstraintMaker(tokenizer, tokenizer.vocab_size, formats()["generic"])

    @settings(quick, max_examples=examples)
    @given(output, st.data(), st.booleans(), st.booleans(), st.integers(0, 5))
    def check(tokens: list[int], data: st.DataObject, skip: bool, include: bool, min_tokens: int) -> None:
        text = tokenizer.decode(tokens, skip_special_tokens=skip, continues=True)
        cuts = st.tuples(st.integers(0, len(text)), st.integers(1, 4)).map(lambda c: text[c[0] : c[0] + c[1]])
        stop = data.draw(st.lists(cuts.filter(bool) if text else st.just("x"), max_size=3))
        params = SamplingParams(
            stop=tuple(stop),
            min_tokens=min_tokens,
            max_tokens=None,
            skip_special_tokens=skip,
            include_stop_str_in_output=include,
        )
        constraint = make(params)
        assert (constraint is None) == (not stop)
        ended, at = None, len(tokens)
        for i, token in enumerate(tokens if constraint else []):
            ended = constraint.accept(token)
            if ended is not None:
                at = i + 1
                assert at > min_tokens
                break
        stream = MessageStream(
            tokenizer, skip_special_tokens=skip, stop=stop, min_tokens=min_tokens, include_stop_str_in_output=include
        )
        shown, stopped, i = "", None, 0
        while i < len(tokens):
            step = data.draw(st.integers(1, 4))
            delta = stream.push(tokens[i : min(i + step, at)])
            shown, stopped, i = shown + delta.text, stopped or delta.stop, i + step
            if i >= at:
                break
        rest = stream.finish()
        assert rest.stop is None
        shown += rest.text
        assert stopped == ended
        if ended is None:
            assert shown == text
        else:
            assert text.startswith(shown if not include else shown[: -len(ended)])
            assert shown.endswith(ended) or not include

    check()


def spell(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    """Tokens of these exact bytes."""
    by_bytes = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [by_bytes[piece.encode()] for piece in pieces]


def test_text_before_a_stop_string_inside_a_token_is_kept(byte_level: Tokenizer):
    the, dog = spell(byte_level, " the", " dog")
    stream = MessageStream(byte_level, stop=["e do"])
    assert stream.push([the]).text == " th"
    end = stream.push([dog])
    assert (end.text, end.stop, stream.finish().text) == ("", "e do", "")
    included = MessageStream(byte_level, stop=["e do"], include_stop_str_in_output=True)
    assert included.push([the, dog]).text == " the do"


def test_min_tokens_counts_the_completing_token(byte_level: Tokenizer):
    tokens = spell(byte_level, "a", "b", "a", "b")
    for min_tokens, expected in [(0, 2), (1, 2), (2, 4), (3, 4), (4, None)]:
        constraint = StopWatch(MessageStream(byte_level, stop=["ab"], min_tokens=min_tokens))
        ends = [i + 1 for i, token in enumerate(tokens) if constraint.accept(token)]
        assert (ends[0] if ends else None) == expected


def test_tokens_after_the_stop_string_in_one_delta_are_dropped(byte_level: Tokenizer):
    stream = MessageStream(byte_level, stop=["b"])
    delta = stream.push(spell(byte_level, "a", "b", "c"))
    assert (delta.text, delta.stop) == ("a", "b")
    assert stream.push(spell(byte_level, "c")).text == ""


def test_a_stop_string_across_a_split_character(byte_level: Tokenizer):
    tokens = byte_level.encode("x🦄y")
    stream = MessageStream(byte_level, stop=["🦄y"])
    parts = [stream.push([token]) for token in tokens]
    assert "".join(part.text for part in parts) == "x"
    assert parts[-1].stop == "🦄y"


def test_control_tokens_are_matched_only_when_shown(byte_level: Tokenizer):
    end = byte_level.token_id("<|im_end|>")
    assert end is not None
    for skip, ended in ((True, None), (False, "<|im_end|>")):
        watch = StopWatch(MessageStream(byte_level, stop=["<|im_end|>"], skip_special_tokens=skip))
        assert watch.accept(end) == ended


def test_stop_strings_are_sought_in_the_answer_alone(byte_level: Tokenizer):
    found = formats()["hermes"]
    message = (
        '<think>\na stop\n</think>\n\nst<tool_call>\n{"name": "f", "arguments": {"x": "stop"}}\n</tool_call>op a stop b'
    )
    form = MessageForm(found, Reading("", {"f": {}}))
    for size in (1, 3, 1000):
        stream, watch = (MessageStream(byte_level, stop=["stop"], form=form) for _ in range(2))
        tokens = byte_level.encode(message, add_special_tokens=False)
        ends = [i for i, token in enumerate(tokens) if StopWatch(watch).accept(token) is not None]
        deltas = [stream.push(tokens[i : i + size]) for i in range(0, len(tokens), size)]
        pieces = joined(piece for delta in deltas for piece in delta.pieces)
        assert pieces == [Thought("a stop"), Text("st"), ToolCall("f", '{"x": "stop"}'), Text("op a ")]
        assert [delta.stop for delta in deltas if delta.stop] == ["stop"]
        assert len(ends) == 1
