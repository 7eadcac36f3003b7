"""gpt-oss: logits against Transformers, window layers and experts in all shapes of a step, and the config's keys."""

from __future__ import annotations

import copy
import json

import oracles
import pytest
import serving
import torch
import transformers
from dense_state import DenseState
from hypothesis import given
from hypothesis import strategies as st
from serving import TOKENS, assert_same_logits, loaded
from tiny import COMMON, LINEAR_ROPE, build

from headrace.errors import CheckpointError
from headrace.models.configs.gpt_oss import parse_gpt_oss
from headrace.models.families.moe import mix_experts
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.models.spec import attention_group

FULL, WINDOW = "full_attention", "sliding_attention"
OWN = {"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8, "num_local_experts": 6, "num_experts_per_tok": 3}
CONFIGS = {
    "usual": {},
    "clamped": {"swiglu_limit": 0.3, "swiglu_alpha": 1.2, "num_local_experts": 3, "sliding_window": 1},
    "unbiased": {
        "attention_bias": False,
        "tie_word_embeddings": True,
        "num_experts_per_tok": 1,
        "layer_types": [FULL, FULL, WINDOW, WINDOW],
        "sliding_window": 33,
        "rope_parameters": LINEAR_ROPE,
    },
    "windows_only": {"layer_types": [WINDOW] * 4},
    "full_only": {"layer_types": [FULL] * 4, "num_local_experts": 32},
}


def config_of(name, **changes):
    return transformers.GptOssConfig(**copy.deepcopy({**COMMON, **OWN, **CONFIGS[name], **changes}))


def built(config):
    """With sinks that matter, and experts whose gates reach past the bound of the ``clamped`` one."""
    model = build(config, attention="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(0, 2)
            elif name.endswith("gate_up_proj"):
                parameter.mul_(2)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name, tmp_path):
    theirs = built(config_of(name))
    ours = loaded(theirs, tmp_path)
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunked_prefill_and_decoding(size, tmp_path):
    theirs = built(config_of("usual"))
    ours = loaded(theirs, tmp_path)
    assert_same_logits(serving.in_pieces(ours, TOKENS, size), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("name", ["usual", "clamped"])
def test_mixed_batches(name, tmp_path):
    theirs = built(config_of(name))
    serving.assert_mixed_batches_follow(loaded(theirs, tmp_path), theirs)


def test_bfloat16(tmp_path):
    ours = serving.assert_bfloat16_near(built(config_of("usual")), tmp_path)
    assert ours.frequencies.dtype == torch.float32


def test_keys_from_before_transformers_5(tmp_path):
    theirs = built(config_of("usual"))
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    del config["layer_types"]
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(open_checkpoint(tmp_path))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


def test_spec_has_a_group_of_either_kind(tmp_path):
    built(config_of("usual")).save_pretrained(tmp_path)
    spec = load_spec(open_checkpoint(tmp_path), "m")
    assert spec.family == "gpt_oss"
    assert spec.state_groups == (attention_group("full", [1, 3], 2, 32), attention_group("window", [0, 2], 2, 32, 8))


def test_experts_are_added_by_rank_whoever_else_is_in_the_batch():
    """With results of all sizes, so that a sum in another order is another one."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    sizes = 10.0 ** torch.arange(-3, 5)
    chosen = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(n))[:5] for n in range(50)])
    shares = torch.rand(50, 5, generator=torch.Generator().manual_seed(1))

    def mixed(rows):
        return mix_experts(x[rows], chosen[rows], shares[rows], 8, lambda n, group: group * sizes[n])

    whole = mixed(torch.arange(50))
    for rows in (torch.arange(50).flip(0), torch.arange(7, 20), torch.tensor([33])):
        assert torch.equal(mixed(rows), whole[rows])
    by_hand = torch.zeros(50, 4)
    for rank in range(5):
        by_hand += x * sizes[chosen[:, rank], None] * shares[:, rank, None]
    assert torch.equal(whole, by_hand)


def test_experts_without_tokens_are_not_asked(tmp_path):
    ours = loaded(built(config_of("full_only")), tmp_path)
    asked = []
    for block in ours.model.layers:
        block.mlp.experts.register_forward_pre_hook(lambda _, args: asked.append(len(args[1])))
    DenseState(ours.config.state_groups()).step(ours, ("only", [5]))
    assert asked == [1] * 3 * 4


GOOD = json.loads(config_of("usual").to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("use_diff", [True, False])
def test_transformers_configs_are_read(name, use_diff):
    theirs = config_of(name)
    ours = parse_gpt_oss(json.loads(theirs.to_json_string(use_diff=use_diff)), "config.json")
    assert ours.windowed == tuple(kind == WINDOW for kind in theirs.layer_types)
    assert ours.window == (theirs.sliding_window if any(ours.windowed) else 0)
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (4, 2, 32)
    assert (ours.experts, ours.chosen_experts) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (ours.swiglu_alpha, ours.swiglu_limit) == (theirs.swiglu_alpha, theirs.swiglu_limit)
    assert (ours.attention_bias, ours.tied) == (theirs.attention_bias, theirs.tie_word_embeddings)
    assert (ours.rope.type, ours.rope.theta) == tuple(
        theirs.rope_parameters[key] for key in ("rope_type", "rope_theta")
    )


def test_absent_keys_have_transformers_defaults():
    sizes = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_local_experts")
    ours = parse_gpt_oss({key: GOOD[key] for key in sizes}, "f")
    theirs = transformers.GptOssConfig()
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (
        theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim
    )  # fmt: skip
    assert (ours.norm_eps, ours.context_length) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert (ours.window, ours.chosen_experts) == (theirs.sliding_window, theirs.num_experts_per_tok)
    assert (ours.swiglu_alpha, ours.swiglu_limit) == (theirs.swiglu_alpha, theirs.swiglu_limit)
    assert (ours.tied, ours.attention_bias) == (theirs.tie_word_embeddings, theirs.attention_bias)
    assert ours.windowed == (True, False, True, False)
    full = parse_gpt_oss({**GOOD, "rope_parameters": theirs.rope_parameters}, "f")
    assert ours.rope == full.rope
    assert (ours.rope.theta, ours.rope.factor, ours.rope.truncate) == (150000.0, 32.0, False)


def test_null_sizes_follow_from_the_others():
    ours = parse_gpt_oss({**GOOD, "head_dim": None, "num_key_value_heads": None}, "f")
    assert (ours.head_dim, ours.kv_heads) == (16, 4)


BAD = {
    "vocab_size": [None, 0, "256"],
    "hidden_size": [None, 0],
    "intermediate_size": [None],
    "num_hidden_layers": [None, 0],
    "num_attention_heads": [0, 3.0],
    "num_key_value_heads": [3, 0],
    "head_dim": [15, 0],
    "max_position_embeddings": [0],
    "rms_norm_eps": [0, "x"],
    "sliding_window": [None, 0, 2.5],
    "layer_types": ["x", [], [WINDOW] * 3, [WINDOW] * 3 + ["chunked_attention"]],
    "attention_bias": [1],
    "tie_word_embeddings": ["no"],
    "hidden_act": ["gelu", 3],
    "num_local_experts": [None, 0, 2],
    "num_experts_per_tok": [0, 7],
    "swiglu_alpha": [0, "x"],
    "swiglu_limit": [0, float("inf")],
    "quantization_config": [{"quant_method": "mxfp4"}],
    "rope_scaling": [{"rope_type": "linear", "factor": 8.0}],
    "rope_parameters": [[]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    named = "num_experts_per_tok" if (key, value) == ("num_local_experts", 2) else key
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{named}'"):
        parse_gpt_oss({**GOOD, key: value}, "some/config.json")


def test_published_quantized_folders_are_refused_before_their_tensors_are_read(tmp_path):
    """Their tensors are of uint8, which alone would be named otherwise."""
    config = {**GOOD, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"'quantization_config' is set: weights quantized as 'mxfp4' are not"):
        open_checkpoint(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from([*GOOD, "rope_scaling"]), value=json_values)
def test_any_json_value_parses_or_is_a_checkpoint_error(key, value):
    try:
        config = parse_gpt_oss({**GOOD, key: value}, "f")
    except CheckpointError:
        return
    assert sorted(layer for group in config.state_groups() for layer in group.layers) == list(range(config.layers))
