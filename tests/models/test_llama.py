"""Logits against Transformers: tiny random models through safetensors and GGUF, then the real SmolLM2."""

from __future__ import annotations

import json

import gguf
import numpy as np
import oracles
import pytest
import torch
import transformers
from dense_state import DenseState
from tiny import CONFIGS, LINEAR_ROPE, LLAMA3_ROPE, make

from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec

Q = gguf.GGMLQuantizationType
TOKENS = np.random.default_rng(1).integers(3, 256, 200).tolist()


def assert_same_logits(ours, theirs, bar=1e-4):
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.3, "the reference's logits are too flat to tell models apart"
    assert np.abs(ours - theirs).max() < bar


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shards", ["whole", "sharded"])
def test_safetensors_logits(name, shards, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path, max_shard_size="100KB" if shards == "sharded" else "1GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards == "sharded")
    ours = load_model(open_checkpoint(tmp_path))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(model, TOKENS))


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "llama_yarn"])
def test_gguf_logits(name, tmp_path):
    model = make(name)
    oracles.write_gguf(model, tmp_path / "m.gguf", rope_factors=llama3_factors() if name == "llama3" else None)
    ours = load_model(open_checkpoint(tmp_path / "m.gguf"))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(model, TOKENS))


def llama3_factors():
    """The divisors that the converter stores, from the published rule, in float64."""
    rope = LLAMA3_ROPE
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, 16, 2) / 16)
    old = rope["original_max_position_embeddings"]
    smooth = (old / wavelengths - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    smooth = np.clip(smooth, 0, 1)
    return 1 / ((1 - smooth) / rope["factor"] + smooth)


@pytest.mark.parametrize("kind", [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1], ids=lambda k: k.name)
def test_quantized_gguf_logits(kind, tmp_path):
    """The reference computes with the weights that the gguf package dequantizes."""
    model = make("llama2")
    oracles.write_gguf(model, tmp_path / "m.gguf", kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(rounded.reshape(parameter.shape)))
    ours = load_model(open_checkpoint(tmp_path / "m.gguf"))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(model, TOKENS))


@pytest.mark.parametrize("name", ["llama3", "qwen3", "qwen2"])
def test_bfloat16_follows_transformers_rounding(name, tmp_path):
    exact = oracles.their_logits(make(name), TOKENS)
    model = make(name).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ours = load_model(open_checkpoint(tmp_path), torch.bfloat16)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert ours.frequencies.dtype == torch.float32
    theirs = oracles.their_logits(model, TOKENS)
    # Two orders of rounding may differ by about as much as either differs from float32.
    assert_same_logits(oracles.our_logits(ours, TOKENS), theirs, bar=1.5 * np.abs(theirs - exact).max())


@pytest.mark.parametrize("rope", [LLAMA3_ROPE, LINEAR_ROPE], ids=["llama3", "linear"])
def test_rope_keys_from_before_transformers_5(rope, tmp_path):
    model = make("llama3", rope_parameters=dict(rope)) if rope is LLAMA3_ROPE else make("llama_linear")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    old = config.pop("rope_parameters")
    config["rope_theta"] = old.pop("rope_theta")
    config["rope_scaling"] = old
    if old["rope_type"] == "linear":  # the oldest files call it `type`
        old["type"] = old.pop("rope_type")
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(open_checkpoint(tmp_path))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(model, TOKENS))


def test_ragged_tokens_of_two_sequences_equal_each_alone(tmp_path):
    make("qwen3").save_pretrained(tmp_path)
    model = load_model(open_checkpoint(tmp_path))
    one, two = TOKENS[:11], TOKENS[11:40]
    both = torch.cat(DenseState(model.config.state_groups()).step(model, (1, one), (2, two))).numpy()
    alone = np.concatenate((oracles.our_logits(model, one), oracles.our_logits(model, two)))
    assert np.abs(both - alone).max() < 1e-5


def test_attend_sees_each_layer_once_in_order_with_its_shapes(tmp_path):
    make("qwen3").save_pretrained(tmp_path)
    model = load_model(open_checkpoint(tmp_path))
    calls = []

    class Noted:
        def attend(self, layer, q, k, v):
            calls.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
            return q

    with torch.inference_mode():
        hidden = model.hidden(torch.tensor([3, 4, 5]), torch.arange(3), Noted())
    assert calls == [(layer, (3, 4, 32), (3, 2, 32), (3, 2, 32)) for layer in range(3)]
    assert hidden.shape == (3, 64)
    assert model.logits(hidden[-1:]).shape == (1, 256)


def test_loading_reports_progress_and_asks_for_no_gradients(tmp_path):
    make("smollm2").save_pretrained(tmp_path)
    seen = []
    model = load_model(open_checkpoint(tmp_path), progress=lambda done, total: seen.append((done, total)))
    assert not any(parameter.requires_grad for parameter in model.parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert load_spec(open_checkpoint(tmp_path), "m").parameters == total


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_other_dtypes_are_refused(dtype, tmp_path):
    make("llama2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"float32 or torch.bfloat16"):
        load_model(open_checkpoint(tmp_path), dtype)


def dequantized_smollm2(path):
    """Transformers' model on the weights that the gguf package reads, names and order undone here."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.tie_weights()
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = stored[oracles.gguf_name(name)]
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(parameter.shape)
            if ".q_proj." in name or ".k_proj." in name:
                order = np.argsort(oracles.permute(np.arange(weight.shape[0]), weight.shape[0] // 64))
                weight = weight[order]
            parameter.copy_(torch.from_numpy(weight.copy()))
    return model


@pytest.mark.model
def test_smollm2_logits(smollm2):
    reference = dequantized_smollm2(smollm2)
    ours = load_model(open_checkpoint(smollm2))
    random = np.random.default_rng(7)
    for length in (1, 2, 33, 130):
        tokens = random.integers(17, 49152, length).tolist()
        theirs = oracles.their_logits(reference, tokens)
        assert np.abs(oracles.our_logits(ours, tokens) - theirs).max() < 1e-3


@pytest.mark.model
def test_smollm2_spec(smollm2):
    spec = load_spec(open_checkpoint(smollm2), "smollm2-135m")
    assert (spec.family, spec.vocab_size, spec.hidden_size, spec.context_length) == ("llama", 49152, 576, 8192)
    assert spec.eos_token_ids == (2,)
    assert spec.parameters == 134_515_008
    assert spec.state_groups[0].item_bytes(1) == 30 * 3 * 128
