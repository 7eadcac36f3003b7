"""Folders and files as they come: safetensors against its library, and every way a checkpoint can be wrong."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import make

from headrace.errors import CheckpointError
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.models.safetensors_folder import SafetensorsFile
from headrace.models.spec import attention_group

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    make("llama2").save_pretrained(path)
    return path


@pytest.fixture
def sharded(tmp_path):
    path = tmp_path / "sharded"
    make("llama2").save_pretrained(path, max_shard_size="100KB")
    return path


def rewrite(folder, change):
    """Change the tensors of an unsharded folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors_read_equals_the_library(dtype, folder):
    rewrite(folder, lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    checkpoint = open_checkpoint(folder)
    expected = load_file(folder / "model.safetensors")
    assert sorted(checkpoint.names()) == sorted(expected)
    for name, tensor in expected.items():
        ours = checkpoint.read(name)
        assert ours.dtype == np.float32
        assert ours.flags.writeable
        assert checkpoint.shape(name) == ours.shape
        np.testing.assert_array_equal(ours, tensor.float().numpy())


def test_shards_hold_the_same_as_the_whole(folder, sharded):
    whole, parts = open_checkpoint(folder), open_checkpoint(sharded)
    assert sorted(whole.names()) == sorted(parts.names())
    for name in whole.names():
        np.testing.assert_array_equal(whole.read(name), parts.read(name))
    assert whole.content_id() == parts.content_id()


def test_content_id_follows_the_weights(folder):
    before = open_checkpoint(folder).content_id()
    assert before == open_checkpoint(folder).content_id()
    rewrite(folder, lambda tensors: tensors[Q_PROJ][0].mul_(2))
    assert open_checkpoint(folder).content_id() != before


def test_spec_and_tokenizer_of_a_folder(folder):
    spec = load_spec(open_checkpoint(folder), "mine")
    assert (spec.name, spec.family, spec.context_length, spec.eos_token_ids) == ("mine", "llama", 512, (2,))
    assert spec.state_groups == (attention_group("full", range(3), heads=2, head_dim=16),)
    assert open_checkpoint(folder).tokenizer.folder == folder
    assert open_checkpoint(folder).tokenizer.gguf is None


def test_generation_config_decides_the_end_tokens(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 2, 9]}')
    assert load_spec(open_checkpoint(folder), "m").eos_token_ids == (9, 2)
    (folder / "generation_config.json").write_text('{"eos_token_id": 256}')
    with pytest.raises(CheckpointError, match="'eos_token_id' must hold token ids below 256"):
        load_spec(open_checkpoint(folder), "m")


def test_gguf_tokenizer_source(tmp_path):
    oracles.write_gguf(make("llama2"), tmp_path / "m.gguf")
    source = open_checkpoint(tmp_path).tokenizer  # a folder that holds one GGUF file is that file
    assert source.folder is None
    assert source.gguf["tokenizer.ggml.tokens"][:2] == ["t0", "t1"]
    assert all(key.startswith("tokenizer.") for key in source.gguf)


# Loading: every tensor is accounted for


@pytest.mark.parametrize(
    ("change", "tensor", "message"),
    [
        (lambda t: t.pop(Q_PROJ), Q_PROJ, "missing"),
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight", "missing"),
        (lambda t: t.update({"model.extra": torch.zeros(3)}), "model.extra", "no place"),
        (lambda t: t.update({Q_PROJ + "_scale": torch.zeros(3)}), Q_PROJ + "_scale", "no place"),
        (lambda t: t.update({Q_PROJ: torch.zeros(64, 65)}), Q_PROJ, r"shape \[64, 65\] does not fit .* \[64, 64\]"),
        (lambda t: t.update({Q_PROJ: torch.zeros(4096)}), Q_PROJ, r"shape \[4096\] does not fit"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, tensor, message, folder):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(open_checkpoint(folder))
    assert caught.value.tensor == tensor
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("hidden_size", 128, "model.embed_tokens.weight"),
        ("vocab_size", 300, "model.embed_tokens.weight"),
        ("intermediate_size", 64, "model.layers.0.mlp.gate_proj.weight"),
        ("num_hidden_layers", 4, "model.layers.3.input_layernorm.weight"),
        ("num_hidden_layers", 2, "model.layers.2.input_layernorm.weight"),
        ("num_key_value_heads", 4, "model.layers.0.self_attn.k_proj.weight"),
        ("attention_bias", True, "model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_a_config_that_does_not_fit_the_tensors(key, value, tensor, folder):
    edit_json(folder / "config.json", lambda config: config.update({key: value}))
    with pytest.raises(CheckpointError) as caught:
        load_model(open_checkpoint(folder))
    assert caught.value.tensor == tensor


def test_gguf_tensors_that_do_not_fit_are_named(tmp_path):
    model = make("qwen3")
    model.model.layers[1].self_attn.q_norm = torch.nn.Identity()
    oracles.write_gguf(model, tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"m\.gguf, tensor 'model.layers.1.self_attn.q_norm.weight': .* missing"):
        load_model(open_checkpoint(tmp_path / "m.gguf"))

    def extra(writer):
        writer.add_tensor("blk.0.ssm_in.weight", np.zeros((2, 2), np.float32))

    oracles.write_gguf(make("qwen3"), tmp_path / "m.gguf", extra=extra)
    with pytest.raises(CheckpointError, match=r"m\.gguf, tensor 'blk.0.ssm_in.weight': .* no place"):
        load_model(open_checkpoint(tmp_path / "m.gguf"))


def test_rotary_tables_of_old_converters_are_ignored(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}))
    load_model(open_checkpoint(folder))


def test_a_tied_model_may_repeat_its_embedding_only(tmp_path):
    make("smollm2").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert load_model(open_checkpoint(tmp_path)).lm_head is None
    rewrite(tmp_path, lambda t: t["lm_head.weight"].mul_(2))
    with pytest.raises(CheckpointError, match="the two differ"):
        load_model(open_checkpoint(tmp_path))


def test_unknown_tensor_names_are_errors(folder, tmp_path):
    oracles.write_gguf(make("llama2"), tmp_path / "m.gguf")
    for checkpoint in (open_checkpoint(folder), open_checkpoint(tmp_path / "m.gguf")):
        for method in (checkpoint.read, checkpoint.shape):
            with pytest.raises(CheckpointError, match="holds no such tensor"):
                method("nothing")


# What is not a checkpoint


def gguf_with(path, arch="llama", change=None):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    for key in ("embedding_length", "feed_forward_length", "block_count", "context_length"):
        writer.add_uint32(f"{arch}.{key}", 8)
    writer.add_uint32(f"{arch}.attention.head_count", 4)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("arch", "change", "message"),
    [
        ("mamba", None, "architecture 'mamba' is unknown; known are llama, qwen2, qwen3"),
        ("llama", lambda w: w.add_uint16("split.count", 3), "one of 3 parts"),
        ("llama", lambda w: w.add_uint32("llama.expert_count", 8), "mixtures of experts"),
        ("llama", lambda w: w.add_string("llama.attention.head_count_kv", "x"), "head_count_kv' has an unusable"),
        ("llama", lambda w: w.add_array("llama.attention.head_count_kv", [1, 2]), "head_count_kv' has an unusable"),
        ("llama", lambda w: w.add_float32("llama.attention.key_length", 8.0), "key_length' has an unusable"),
        ("llama", lambda w: w.add_uint32("llama.attention.value_length", 4), "'v_head_dim' must equal"),
        ("llama", lambda w: w.add_string("llama.rope.scaling.type", "yarn"), "rope.scaling.type' is 'yarn'"),
        ("llama", lambda w: w.add_uint32("llama.rope.dimension_count", 1), "partial_rotary_factor' is"),
        ("llama", lambda w: w.add_uint32("tokenizer.ggml.eos_token_id", 4), "'eos_token_id' must hold"),
        ("llama", lambda w: w.add_array("tokenizer.ggml.eos_token_id", [1, 2]), "'eos_token_id' must hold"),
        ("qwen3", lambda w: w.add_uint32("qwen3.attention.sliding_window", 4), "'sliding_window' is 4"),
    ],
)
def test_gguf_models_that_are_not_supported(arch, change, message, tmp_path):
    path = gguf_with(tmp_path / "m.gguf", arch, change)
    with pytest.raises(CheckpointError, match=message):
        load_spec(open_checkpoint(path), "m")


def test_a_gguf_file_may_say_that_nothing_ends_a_text(tmp_path):
    path = gguf_with(tmp_path / "m.gguf", "llama", lambda w: w.add_uint32("tokenizer.ggml.eos_token_id", 2**32 - 1))
    assert load_spec(open_checkpoint(path), "m").eos_token_ids == ()


def test_missing_gguf_metadata_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"metadata key 'llama.embedding_length' is missing"):
        open_checkpoint(tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickled_checkpoints_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match="pickled checkpoints are refused: unpickling runs"):
            open_checkpoint(path)


def test_paths_without_a_checkpoint(tmp_path, folder):
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="neither"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="name the folder"):
        open_checkpoint(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        open_checkpoint(folder / "config.json")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "empty" / name).touch()
    with pytest.raises(CheckpointError, match=r"several GGUF files; name one of a.gguf, b.gguf"):
        open_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff", "[" * 100_000, "1" * 5000])
def test_broken_config_json(text, folder):
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config.json: the file is not"):
        open_checkpoint(folder)


def test_missing_config_json(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config.json: the file cannot be read"):
        open_checkpoint(folder)


# Safetensors files and indexes


def test_missing_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=f"shard {shard.name} is missing") as caught:
        open_checkpoint(sharded)
    assert caught.value.file.endswith("model.safetensors.index.json")
    assert caught.value.tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.pop("weight_map"), "'weight_map' is missing"),
        (lambda index: index.update(weight_map=[]), "'weight_map' is missing"),
        (lambda index: index["weight_map"].update(more="../model.safetensors"), "not the name of a shard"),
        (lambda index: index["weight_map"].update(more="model.bin"), "not the name of a shard"),
        (lambda index: index["weight_map"].update(more=3), "not the name of a shard"),
        (lambda index: index["weight_map"].update(more=index["weight_map"][Q_PROJ]), "does not hold it"),
        (lambda index: index["weight_map"].pop(Q_PROJ), "does not place the tensor here"),
    ],
)
def test_indexes_that_contradict_the_shards(change, message, sharded):
    edit_json(sharded / "model.safetensors.index.json", change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded)


def test_a_tensor_in_two_files(folder):
    shutil.copy(folder / "model.safetensors", folder / "a.safetensors")
    open_checkpoint(folder)  # the conventional name wins
    (folder / "model.safetensors").rename(folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"also in a.safetensors"):
        open_checkpoint(folder)


def file_of(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(**changes):
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


BROKEN = {
    "empty": (b"", "empty"),
    "short": (b"abc", "truncated"),
    "huge header": (file_of({}, size=2**60), "not a safetensors file"),
    "header beyond the end": (file_of({}, size=1000), "truncated"),
    "not JSON": (file_of(b"{nonsense"), "not valid JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not valid JSON"),
    "not an object": (file_of([1]), "not a JSON object"),
    "nesting": (file_of(b"[" * 100_000), "not valid JSON"),
    "entry": (file_of({"x": 3}), "not an object"),
    "dtype": (file_of(entry(dtype="F8_E4M3"), bytes(8)), "'F8_E4M3' is not supported"),
    "dtype kind": (file_of(entry(dtype=[]), bytes(8)), "is not supported"),
    "shape": (file_of(entry(shape=[-2]), bytes(8)), "not a list of sizes"),
    "shape kind": (file_of(entry(shape="2"), bytes(8)), "not a list of sizes"),
    "shape bool": (file_of(entry(shape=[True, 2]), bytes(8)), "not a list of sizes"),
    "offsets": (file_of(entry(data_offsets=[8, 0]), bytes(8)), "not a beginning and an end"),
    "offsets count": (file_of(entry(data_offsets=[0, 4, 8]), bytes(8)), "not a beginning and an end"),
    "no offsets": (file_of({"x": {"dtype": "F32", "shape": [2]}}), "not a beginning and an end"),
    "size": (file_of(entry(shape=[3]), bytes(12)), "8 bytes do not hold shape"),
    "truncated": (file_of(entry(), bytes(7)), "truncated: the tensor ends"),
    "more": (file_of(entry(), bytes(9)), "last tensor ends"),
    "gap": (file_of(entry(data_offsets=[4, 12]), bytes(12)), "begins at byte"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
def test_damaged_safetensors_are_named(data, message, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFile(path)
    assert caught.value.file == str(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("st") / "small.safetensors"
    save_file({"a": torch.ones(3, 5), "b": torch.ones(7, dtype=torch.bfloat16), "c": torch.ones(())}, path)
    return path


@settings(max_examples=300, deadline=None)
@given(
    cut=st.one_of(st.none(), st.integers(0, 400)),
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
)
def test_damage_escapes_only_as_checkpoint_errors(small, tmp_path_factory, cut, flips):
    data = bytearray(small.read_bytes()[:cut])
    for at, value in flips:
        if at < len(data):
            data[at] = value
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    assert sum(tensor.raw().size for tensor in file.tensors.values()) <= len(data)
