"""Small tokenizers, trained on the spot: byte-level with every byte, and SentencePiece-style with fallback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.models.checkpoint import TokenizerSource
from headrace.text import Tokenizer as OurTokenizer
from headrace.text import load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. It's 1234567 o'clock, isn't it?",
    "def f(x):\n    return x ** 2  # squares\n\n\nprint(f(12))\t\tDONE",
    "Ünïcödé naïve café, 中文字符 и кириллица, العربية, हिन्दी, 👩‍👩‍👧 🇫🇷 🎉",
    " leading and trailing spaces  matter   here ",
] * 3

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Ordinary text, and the characters where tokenizers go wrong.
awkward = st.sampled_from([*" \n\t\r\x00'’▁Ġ0123456789٣²½ÀéßŁ中文👩\u200d\u0301\ufeff\ufffd\u3000", "<|im_end|>", "'s"])
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.lists(
    awkward | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=20
).map("".join)


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>", "__type": "AddedToken"},
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    return folder


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> OurTokenizer:
    return load_tokenizer(TokenizerSource(folder=byte_level_folder))


@pytest.fixture(scope="session")
def sentencepiece_metadata() -> dict[str, Any]:
    """GGUF metadata in the manner of Llama 2: control tokens, bytes, then pieces by descending score."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, show_progress=False))
    by_rank = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    letters = [t for t, _ in by_rank if len(t) == 1 and (t.isascii() or t == "▁")]
    merged = [t for t, _ in by_rank if len(t) > 1 and all(c.isascii() or c == "▁" for c in t)]
    pieces = merged + letters
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "[INST]"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))] + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_metadata: dict[str, Any]) -> OurTokenizer:
    return load_tokenizer(TokenizerSource(gguf=sentencepiece_metadata))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> OurTokenizer:
    from headrace.models.opening import open_checkpoint

    return load_tokenizer(open_checkpoint(smollm2).tokenizer)


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    return any_text
