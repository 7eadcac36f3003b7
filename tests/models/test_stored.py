"""Weights as stored, against the gguf package and against what reading them dequantized gives."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file, save_file
from tiny import make

from headrace.errors import CheckpointError
from headrace.models.opening import open_checkpoint
from headrace.models.stored import BLOCK_FORMATS, FLOAT_FORMATS, MIN_FACTORS, dequantize, unpack_blocks

FIXTURE = Path(__file__).parent / "data" / "formats.gguf"
BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}


def check(checkpoint, name):
    """The arrays of a weight, and that they mean what ``read`` gives."""
    weight = checkpoint.stored(name)
    assert weight.format == checkpoint.stored_format(name)
    assert weight.shape == checkpoint.shape(name)
    np.testing.assert_array_equal(dequantize(weight), checkpoint.read(name))
    if weight.values is not None:
        assert weight.values.shape == weight.shape
        assert weight.values.dtype == {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[weight.format]
        assert weight.codes is weight.scales is weight.mins is None
        return weight
    *rows, k = weight.shape
    assert (weight.codes.dtype, weight.codes.shape) == (np.uint8, (*rows, k // 32, 32))
    assert (weight.scales.dtype, weight.scales.shape) == (np.float16, (*rows, k // 32))
    assert (weight.mins is None) == (weight.format in MIN_FACTORS)
    mins = weight.scales.astype(float) * MIN_FACTORS[weight.format] if weight.mins is None else weight.mins
    values = weight.scales.astype(np.float32)[..., None] * weight.codes + mins.astype(np.float32)[..., None]
    np.testing.assert_array_equal(values.reshape(weight.shape), checkpoint.read(name))
    return weight


@pytest.mark.parametrize("form", [*BLOCK_FORMATS, *FLOAT_FORMATS])
@pytest.mark.parametrize("arch", ["llama2", "qwen2"])
def test_gguf_of_each_format(form, arch, tmp_path):
    """Rows of q and k, and their biases, are in the file's order in one architecture and ours in the other."""
    model = make(arch)
    oracles.write_gguf(model, tmp_path / "m.gguf", gguf.GGMLQuantizationType[form.upper()])
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for name, parameter in model.named_parameters():
        weight = check(checkpoint, name)
        assert weight.format == (form if parameter.dim() > 1 else "f32")


def test_biases_of_interleaved_heads(tmp_path):
    oracles.write_gguf(make("llama_biased"), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for name in checkpoint.names():
        check(checkpoint, name)


@pytest.mark.parametrize("form", BLOCK_FORMATS)
@given(data=st.data())
def test_any_block_is_the_packages(form, data):
    """Codes, scales and mins of any bits mean what the gguf package makes of them; NaN and infinities too."""
    raw = data.draw(arrays(np.uint8, (3, 2 * BYTES[form])))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[form.upper()])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(dequantize(unpack_blocks(raw, form, (3, 64))), expected)


def test_more_dimensions():
    raw = np.random.default_rng(0).integers(0, 60, (6, 40), np.uint8)
    weight = unpack_blocks(raw, "q4_1", (2, 3, 64))
    assert weight.codes.shape == (2, 3, 2, 32)
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q4_1).reshape(2, 3, 64)
    np.testing.assert_array_equal(dequantize(weight), expected)


def test_other_formats_come_dequantized():
    checkpoint = open_checkpoint(FIXTURE)
    formats = {name: check(checkpoint, name).format for name in checkpoint.names()}
    assert set(formats.values()) == {*BLOCK_FORMATS, *FLOAT_FORMATS}
    k = checkpoint.stored("model.layers.2.self_attn.k_proj.weight")
    assert k.format == "f32"  # Q6_K in the file
    assert k.values.flags.c_contiguous


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_safetensors(dtype, tmp_path):
    make("llama2").save_pretrained(tmp_path)
    tensors = {name: t.to(dtype) for name, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for name, tensor in tensors.items():
        weight = check(checkpoint, name)
        bits = tensor.view(torch.uint16).numpy() if dtype is torch.bfloat16 else tensor.numpy()
        np.testing.assert_array_equal(weight.values, bits)


def test_unknown_names(tmp_path):
    make("llama2").save_pretrained(tmp_path)
    for checkpoint in (open_checkpoint(tmp_path), open_checkpoint(FIXTURE)):
        for method in (checkpoint.stored, checkpoint.stored_format):
            with pytest.raises(CheckpointError, match="no such tensor"):
                method("model.nothing")


@pytest.mark.model
def test_the_real_model_bit_by_bit_in_a_moment(smollm2):
    checkpoint = open_checkpoint(smollm2)
    begin = time.perf_counter()
    weights = {name: checkpoint.stored(name) for name in checkpoint.names()}
    assert time.perf_counter() - begin < 5  # 0.4 s where nothing else runs
    assert sum(w.format == "q4_1" for w in weights.values()) == 210
    for name, weight in weights.items():
        # Bits, not only values: zeros have their signs. (q4_0's differ in those: -8 * scale + 8 * scale is never -0.)
        np.testing.assert_array_equal(dequantize(weight).view(np.uint32), checkpoint.read(name).view(np.uint32))
