"""The tokenizer against Transformers' and the tokenizers library."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import CheckpointError, InvalidInput
from headrace.models.checkpoint import TokenizerSource
from headrace.models.opening import open_checkpoint
from headrace.text import Tokenizer, load_tokenizer

quick = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
thorough = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def reference(byte_level_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(byte_level_folder)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: Path) -> Any:
    """Transformers' conversion, with the pre-tokenizer that SmolLM2 has: it forgets to split digits."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def agrees(ours: Tokenizer, theirs: Any, text: str) -> None:
    tokens = theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == tokens
    for skip in (True, False):
        expected = theirs.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(tokens, skip_special_tokens=skip) == expected


def test_agrees_with_transformers(byte_level: Tokenizer, reference: Any, texts: st.SearchStrategy[str]):
    @quick
    @given(texts)
    def check(text: str) -> None:
        agrees(byte_level, reference, text)
        assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text

    check()


@pytest.mark.model
def test_smollm2_agrees_with_transformers(
    smollm2_tokenizer: Tokenizer, smollm2_reference: Any, texts: st.SearchStrategy[str]
):
    quick(given(texts)(lambda text: agrees(smollm2_tokenizer, smollm2_reference, text)))()


@pytest.mark.model
@pytest.mark.bars
def test_smollm2_agrees_with_transformers_10000(
    smollm2_tokenizer: Tokenizer, smollm2_reference: Any, texts: st.SearchStrategy[str]
):
    thorough(given(texts)(lambda text: agrees(smollm2_tokenizer, smollm2_reference, text)))()


def test_random_tokens_decode_as_transformers_does(byte_level: Tokenizer, reference: Any):
    @quick
    @given(st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=30), st.booleans())
    def check(tokens: list[int], skip: bool) -> None:
        expected = reference.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert byte_level.decode(tokens, skip_special_tokens=skip) == expected

    check()


def test_facts_of_the_folder(byte_level: Tokenizer, reference: Any):
    assert byte_level.vocab_size == len(reference)
    assert byte_level.bos_token_id == reference.bos_token_id
    assert byte_level.eos_token_ids == (2, 0)
    assert byte_level.special_ids == {0, 1, 2}
    assert byte_level.missing_bytes == frozenset()
    assert byte_level.chat_template is not None
    assert byte_level.token_id("<think>") == reference.convert_tokens_to_ids("<think>")
    assert byte_level.token_id("no such token") is None


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("add_eos", [True, False, None])
def test_affixes_as_transformers(byte_level_folder: Path, tmp_path: Path, add_bos: bool | None, add_eos: bool | None):
    from transformers import AutoTokenizer

    folder = shutil.copytree(byte_level_folder, tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"add_bos_token": add_bos} if add_bos is not None else {}
    config |= {"add_eos_token": add_eos} if add_eos is not None else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(TokenizerSource(folder=folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in ("hello", ""):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


def test_control_tokens_as_text(byte_level: Tokenizer):
    text = "a<|im_end|>b"
    assert 2 in byte_level.encode(text)
    plain = byte_level.encode(text, parse_special=False)
    assert not byte_level.special_ids & set(plain)
    assert byte_level.decode(plain) == text
    assert byte_level.encode(text, parse_special=False) == byte_level.encode_batch([text], parse_special=False)[0]


def test_added_tokens_keep_their_ids_when_control_tokens_are_text(byte_level: Tokenizer):
    think = byte_level.token_id("<think>")
    assert byte_level.encode("<think>", parse_special=False) == byte_level.encode("<think>") == [think]


def test_batch(byte_level: Tokenizer):
    batch = ["one", "", "zwei 👩‍👩‍👧"]
    assert byte_level.encode_batch(batch) == [byte_level.encode(text) for text in batch]


def test_lone_surrogates_are_refused(byte_level: Tokenizer):
    with pytest.raises(InvalidInput, match="U\\+D800 at character 1"):
        byte_level.encode("a\ud800b")
    with pytest.raises(InvalidInput) as caught:
        byte_level.encode_batch(["fine", "\udfff"])
    assert caught.value.field == "[1]"


def test_null_bytes_are_text(byte_level: Tokenizer):
    assert byte_level.decode(byte_level.encode("a\0b\0")) == "a\0b\0"


def test_bytes_of_a_split_character(byte_level: Tokenizer):
    tokens = byte_level.encode("🦄")
    assert len(tokens) > 1
    assert b"".join(byte_level.token_bytes(t) for t in tokens) == "🦄".encode()
    assert "\ufffd" in byte_level.token_text(tokens[0])
    assert byte_level.token_bytes(2) == b"<|im_end|>"


def test_ids_that_name_no_token_have_no_text(byte_level: Tokenizer):
    assert byte_level.token_bytes(10**6) == byte_level.token_bytes(-1) == b""
    tokens = [*byte_level.encode("a"), 10**6, *byte_level.encode("b")]
    assert byte_level.decode(tokens) == byte_level.decode(np.array(tokens, np.int32)) == "ab"


@pytest.mark.model
def test_smollm2_loads_fast_and_drops_only_missing_bytes(smollm2: Path, smollm2_tokenizer: Tokenizer):
    source = open_checkpoint(smollm2).tokenizer
    begin = time.perf_counter()
    load_tokenizer(source)
    assert time.perf_counter() - begin < 1.0
    assert len(smollm2_tokenizer.missing_bytes) == 21
    assert {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2} <= smollm2_tokenizer.missing_bytes
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode("a\x04b\x00c")) == "ab\x00c"
    # A lead byte that is missing leaves its continuation bytes behind.
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode("x\U00040000y")) == "x\ufffd\ufffd\ufffdy"
    assert smollm2_tokenizer.eos_token_ids == (2,)
    assert len(smollm2_tokenizer.special_ids) == 17


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "not a readable tokenizer"),
        ("tokenizer_config.json", "[1]", "not a JSON object"),
        ("tokenizer_config.json", "{", "not readable as JSON"),
        ("tokenizer_config.json", "[" * 100_000, "not readable as JSON"),
        ("chat_template.jinja", "\udcff", "not readable as text"),
    ],
)
def test_broken_folders(byte_level_folder: Path, tmp_path: Path, name: str, content: str | None, says: str):
    folder = shutil.copytree(byte_level_folder, tmp_path / "m")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=says):
        load_tokenizer(TokenizerSource(folder=folder))


def test_an_unknown_decoder_is_refused(byte_level_folder: Path, tmp_path: Path):
    folder = shutil.copytree(byte_level_folder, tmp_path / "m")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="unsupported tokenizer decoder WordPiece"):
        load_tokenizer(TokenizerSource(folder=folder))


@pytest.mark.parametrize(
    ("name", "path", "value", "says"),
    [
        ("tokenizer.json", "normalizer", {"type": "Precompiled", "precompiled_charsmap": ""}, "Precompiled"),
        (
            "tokenizer.json",
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "no such", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            },
            "cannot be used",
        ),
        (
            "tokenizer.json",
            "model",
            {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "q"},
            "`q` not found",
        ),
        ("tokenizer.json", "model", {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}, "has the id 4294967295"),
        ("tokenizer_config.json", "bos_token", "\ud800", "surrogates"),
    ],
)
def test_hostile_folders(byte_level_folder: Path, tmp_path: Path, name: str, path: str, value: Any, says: str):
    """What makes the library panic, or fail once it is used, or fill the memory, is refused like any other file."""
    folder = shutil.copytree(byte_level_folder, tmp_path / "m")
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | {path: value}))
    with pytest.raises(CheckpointError, match=says):
        load_tokenizer(TokenizerSource(folder=folder))


def test_no_source():
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load_tokenizer(TokenizerSource())


def test_a_long_text_lets_other_threads_run(byte_level: Tokenizer):
    text = "Grüße, <|im_end|> 12 \U0001f600 " * 20_000
    gaps, done = [], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.wait(0.001):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = threading.Thread(target=tick)
    ticker.start()
    tokens = byte_level.encode(text)
    done.set()
    ticker.join()
    assert len(gaps) > 20  # one or two where the lock is held to the end
    assert tokens == byte_level._backend.encode(text).ids
    assert byte_level.decode(tokens, skip_special_tokens=False) == text
