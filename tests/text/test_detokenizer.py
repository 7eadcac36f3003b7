"""What is streamed, joined, is what is decoded at once."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.text import Detokenizer, Tokenizer

quick = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def token_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Random tokens, often bytes of multi-byte characters, spaces, and control tokens."""
    single = [i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1]
    high = [i for i in single if tokenizer.token_bytes(i)[0] >= 0x80 or tokenizer.token_bytes(i) == b" "]
    characters = st.sampled_from("é中🦄👩‍👩‍👧").map(
        lambda c: [next(i for i in single if tokenizer.token_bytes(i) == bytes([b])) for b in c.encode()]
    )
    piece = (
        st.integers(0, tokenizer.vocab_size + 3).map(lambda i: [i])
        | st.sampled_from(high).map(lambda i: [i])
        | st.sampled_from(sorted(tokenizer.special_ids)).map(lambda i: [i])
        | characters
    )
    return st.lists(piece, max_size=30).map(lambda pieces: [token for piece in pieces for token in piece])


def test_joined_is_decoded(tokenizer: Tokenizer):
    @quick
    @given(token_lists(tokenizer), st.booleans(), st.booleans(), st.data())
    def check(tokens: list[int], skip: bool, continues: bool, data: st.DataObject) -> None:
        whole = tokenizer.decode(tokens, skip_special_tokens=skip, continues=continues)
        stream = Detokenizer(tokenizer, skip, continues=continues)
        shown, at = "", 0
        while at < len(tokens):
            step = data.draw(st.integers(1, 4))
            shown += stream.push(tokens[at : at + step])
            # Nothing shown is ever taken back.
            assert whole.startswith(shown)
            at += step
        assert shown + stream.finish() == whole

    check()


def test_a_character_comes_with_the_token_that_completes_it(tokenizer: Tokenizer, texts: st.SearchStrategy[str]):
    @quick
    @given(texts)
    def check(text: str) -> None:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        stream = Detokenizer(tokenizer, skip_special_tokens=False)
        shown = ""
        for i, token in enumerate(tokens):
            shown += stream.push([token])
            # The only thing wrong with the bytes so far can be that the last character is incomplete.
            so_far = b"".join(tokenizer.token_bytes(token) for token in tokens[: i + 1]).decode("utf-8", "ignore")
            assert shown == (so_far.removeprefix(" ") if tokenizer.strip_left else so_far)
        assert stream.finish() == ""

    check()


def test_an_unfinished_character_is_shown_as_such(byte_level: Tokenizer):
    tokens = byte_level.encode("🦄")
    stream = Detokenizer(byte_level)
    assert stream.push(tokens[:-1]) == ""
    assert stream.finish() == "\ufffd"


def test_only_the_first_space_is_a_prefix(sentencepiece: Tokenizer):
    space = sentencepiece.token_id("<0x20>")
    assert space is not None
    stream = Detokenizer(sentencepiece)
    assert [stream.push([space]), stream.push([space])] == ["", " "]
    assert Detokenizer(sentencepiece, continues=True).push([space]) == " "


def test_agrees_with_the_library_on_real_text(byte_level: Tokenizer):
    text = "Ünïcödé 中文 🎉 it's fine\n" * 50
    stream = Detokenizer(byte_level)
    assert "".join(stream.push([t]) for t in byte_level.encode(text)) == text


def test_work_per_token_does_not_grow(byte_level: Tokenizer):
    stream = Detokenizer(byte_level)
    tokens = byte_level.encode("word 🎉 ") * 3000

    def seconds() -> float:
        begin = time.perf_counter()
        for token in tokens:
            stream.push([token])
        return time.perf_counter() - begin

    first = min(seconds() for _ in range(3))
    last = min(seconds() for _ in range(3))
    assert last < 3 * first
