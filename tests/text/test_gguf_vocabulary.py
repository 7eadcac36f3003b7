"""Tokenizers rebuilt from GGUF metadata, against Transformers' own classes and the tokenizers library."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import CheckpointError
from headrace.models.checkpoint import TokenizerSource
from headrace.text import Tokenizer, load_tokenizer
from headrace.text.gguf_vocabulary import KNOWN_PRE_TOKENIZERS, merges_from_scores
from headrace.text.vocabulary import byte_alphabet

quick = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def load(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(TokenizerSource(gguf=metadata))


@pytest.fixture(scope="session")
def byte_level_metadata(byte_level_folder: Path) -> dict[str, Any]:
    """The trained byte-level tokenizer, written down as a GGUF file would."""
    content = json.loads((byte_level_folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"] | {t["content"]: t["id"] for t in content["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    kinds = {t["content"]: 3 if t["special"] else 4 for t in content["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([kinds.get(token, 1) for token in tokens], np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
    }


def test_byte_alphabet_is_that_of_transformers():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    assert byte_alphabet() == {char: byte for byte, char in bytes_to_unicode().items()}


def test_byte_level_round_trip_through_metadata(
    byte_level: Tokenizer, byte_level_metadata: dict[str, Any], texts: st.SearchStrategy[str]
):
    rebuilt = load(byte_level_metadata)
    assert rebuilt.special_ids == byte_level.special_ids
    assert rebuilt.eos_token_ids == (2, 0)
    assert rebuilt.bos_token_id == 1

    @quick
    @given(texts)
    def check(text: str) -> None:
        tokens = byte_level.encode(text)
        assert rebuilt.encode(text) == tokens
        assert rebuilt.decode(tokens, skip_special_tokens=False) == text

    check()


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_pre_tokenizers_as_transformers(byte_level_metadata: dict[str, Any], texts: st.SearchStrategy[str], pre: str):
    """Qwen 2's class has its own pre-tokenizer; Llama 3's is the one in Transformers' GGUF conversion."""
    from tokenizers import Regex, pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    ours = load(byte_level_metadata | {"tokenizer.ggml.pre": pre})
    theirs = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )

    @quick
    @given(texts)
    def check(text: str) -> None:
        assert ours._backend.pre_tokenizer.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)

    check()


def test_digits_stand_alone_in_smollm(byte_level_metadata: dict[str, Any]):
    ours = load(byte_level_metadata | {"tokenizer.ggml.pre": "smollm"})
    assert [ours.token_text(t) for t in ours.encode("1234567")] == list("1234567")


def test_llama3_begins_with_bos_unless_told_otherwise(byte_level_metadata: dict[str, Any]):
    llama3 = byte_level_metadata | {"tokenizer.ggml.pre": "llama-bpe"}
    assert load(llama3).encode("x")[0] == 1
    assert load(llama3 | {"tokenizer.ggml.add_bos_token": False}).encode("x")[0] != 1
    assert load(byte_level_metadata).encode("x")[0] != 1
    both = load(byte_level_metadata | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    assert both.encode("") == [1, 2]


@pytest.fixture(scope="session")
def llama_reference(sentencepiece_metadata: dict[str, Any]) -> Any:
    """Transformers' Llama tokenizer over the same vocabulary, in its original ("legacy") behaviour, which is
    that of llama.cpp: the prefix space is a normalizer's."""
    from tokenizers import AddedToken, normalizers
    from transformers import LlamaTokenizerFast
    from transformers.tokenization_utils_base import generate_merges

    tokens = sentencepiece_metadata["tokenizer.ggml.tokens"]
    vocab = {token: index for index, token in enumerate(tokens)}
    scores = dict(zip(tokens, sentencepiece_metadata["tokenizer.ggml.scores"], strict=True))
    controls = {"<unk>", "<s>", "</s>", "[INST]", *(f"<0x{byte:02X}>" for byte in range(256))}
    merges = generate_merges(vocab, scores, skip_tokens=controls)
    tokenizer = LlamaTokenizerFast(vocab=vocab, merges=merges, add_bos_token=True)
    tokenizer.add_tokens([AddedToken("[INST]", normalized=False)])
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.backend_tokenizer.pre_tokenizer = None
    return tokenizer


def test_sentencepiece_as_transformers(sentencepiece: Tokenizer, llama_reference: Any, texts: st.SearchStrategy[str]):
    pieces = st.lists(st.sampled_from(["the ", "dog", " quick", "it's", "[INST]", "<s>", "</s>", "  ", "é", "中"]))

    @quick
    @given(texts | pieces.map("".join))
    def check(text: str) -> None:
        tokens = llama_reference(text)["input_ids"]
        assert sentencepiece.encode(text) == tokens
        for skip in (True, False):
            assert sentencepiece.decode(tokens, skip_special_tokens=skip) == llama_reference.decode(
                tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )

    check()


def test_sentencepiece_without_prefix_space(sentencepiece_metadata: dict[str, Any]):
    plain = load(sentencepiece_metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert plain.strip_left == 0
    assert plain.decode(plain.encode(" dog")) == " dog"
    assert plain.token_text(plain.encode("dog")[1]) == "d" or plain.decode(plain.encode("dog")) == "dog"


def test_broken_byte_runs_keep_their_good_characters(sentencepiece: Tokenizer):
    """Where Transformers differs: it replaces every byte of a run that is not UTF-8 as a whole."""
    run = [sentencepiece.token_id(f"<0x{byte:02X}>") for byte in (*"é".encode(), 0xFF, 0x41)]
    tokens = [token for token in run if token is not None]
    assert sentencepiece.decode(tokens) == "é\ufffdA"


def test_output_that_continues_a_text_keeps_its_space(sentencepiece: Tokenizer):
    text = "the dog jumps"
    tokens = sentencepiece.encode(text, add_special_tokens=False)
    for cut in range(1, len(tokens)):
        joined = sentencepiece.decode(tokens[:cut]) + sentencepiece.decode(tokens[cut:], continues=True)
        assert joined == text


def test_merges_are_in_the_order_of_the_scores():
    tokens = ["a", "b", "ab", "aba", "<s>"]
    merges = merges_from_scores(tokens, [0, 0, -2.0, -1.0, 0], [False, False, True, True, False])
    assert merges == [("ab", "a"), ("a", "b")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "unknown tokenizer.ggml.model 'rwkv'"),
        ({"tokenizer.ggml.model": None}, "unknown tokenizer.ggml.model None"),
        ({"tokenizer.ggml.pre": "klingon"}, "known: .*smollm"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "not text"),
        ({"tokenizer.ggml.merges": "a b"}, "merges is missing or not an array"),
        ({"tokenizer.ggml.merges": ["ab"]}, "malformed merge"),
        ({"tokenizer.ggml.merges": ["no such"]}, "do not fit"),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types for"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id is not an integer"),
        ({"tokenizer.chat_template": 5}, "not a string"),
    ],
)
def test_malformed_metadata(byte_level_metadata: dict[str, Any], change: dict[str, Any], says: str):
    with pytest.raises(CheckpointError, match=says):
        load(byte_level_metadata | change)


def test_scores_must_match(sentencepiece_metadata: dict[str, Any]):
    with pytest.raises(CheckpointError, match="1 scores for"):
        load(sentencepiece_metadata | {"tokenizer.ggml.scores": [0.0]})
    with pytest.raises(CheckpointError, match="cannot be used: could not convert"):
        load(
            sentencepiece_metadata
            | {"tokenizer.ggml.scores": ["x"] * len(sentencepiece_metadata["tokenizer.ggml.tokens"])}
        )


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "tokenizer.ggml.model",
                "tokenizer.ggml.pre",
                "tokenizer.ggml.tokens",
                "tokenizer.ggml.scores",
                "tokenizer.ggml.merges",
                "tokenizer.ggml.token_type",
                "tokenizer.ggml.eos_token_id",
                "tokenizer.chat_template",
            ]
        ),
        st.none()
        | st.integers()
        | st.floats()
        | st.sampled_from(["gpt2", "llama", "smollm"])
        | st.lists(st.integers() | st.floats() | st.text(max_size=3), max_size=4)
        | st.lists(st.text(max_size=3), max_size=4),
    )
)
@quick
def test_any_metadata_loads_or_is_refused(metadata: dict[str, Any]):
    with contextlib.suppress(CheckpointError):
        load(metadata)


def test_every_known_pre_tokenizer_builds(byte_level_metadata: dict[str, Any]):
    for pre in KNOWN_PRE_TOKENIZERS:
        assert load(byte_level_metadata | {"tokenizer.ggml.pre": pre}).encode("a 1")
