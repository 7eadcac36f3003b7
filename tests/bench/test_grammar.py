"""What grammars cost: the measurement counts what it says it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.grammar import measure_grammars, read_schemas
from headrace.errors import InvalidInput
from headrace.models.checkpoint import TokenizerSource
from headrace.text import load_tokenizer


def test_schemas_come_from_files_and_lines(tmp_path: Path):
    (tmp_path / "a.json").write_text('{\n"type": "null"}')
    (tmp_path / "b.jsonl").write_text('{"type": "string"}\n\n{"enum": [1]}\n')
    assert list(read_schemas(tmp_path)) == [{"type": "null"}, {"type": "string"}, {"enum": [1]}]
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(InvalidInput, match="no JSON"):
        list(read_schemas(tmp_path))
    with pytest.raises(InvalidInput, match="holds no"):
        list(read_schemas(tmp_path / "none"))


def test_every_kind_is_counted(byte_vocabulary: Path):
    tokenizer = load_tokenizer(TokenizerSource(folder=byte_vocabulary))
    schemas = [{"const": "ab"}, {"const": "cd"}, {"uniqueItems": True}]
    costs = measure_grammars(schemas, tokenizer)
    assert (costs.schemas, costs.refused, costs.ended) == (2, 1, 2)
    assert costs.source.count == costs.compile.count == costs.both.count == costs.first_mask.count == 2
    assert costs.mask.count == costs.accept.count == 8  # four bytes each, and a mask at the end
    assert 0 < costs.mask.p50 <= costs.mask.p99 <= costs.mask.max
    with pytest.raises(InvalidInput, match="every schema is refused"):
        measure_grammars(schemas[2:], tokenizer)


@pytest.fixture
def byte_vocabulary(tmp_path: Path) -> Path:
    """A tokenizer of single bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return tmp_path
