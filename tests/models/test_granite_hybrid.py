"""Granite 4 against Transformers: Mamba and attention layers, with and without experts and positions."""

from __future__ import annotations

import contextlib
import copy
import json

import numpy as np
import oracles
import pytest
import torch
import transformers
from dense_state import DenseState
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from serving import TOKENS, assert_mixed_batches_follow, assert_same_logits, in_pieces, loaded
from tiny import LINEAR_ROPE, build

from headrace.errors import CheckpointError
from headrace.models.configs.granite_hybrid import parse_granite_hybrid
from headrace.models.families.granite_hybrid import Router
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec

COMMON = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 48,
    "shared_intermediate_size": 80,
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "attention", "mamba", "attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "mamba_n_heads": 8,
    "mamba_d_state": 12,
    "position_embedding_type": "nope",
    "max_position_embeddings": 512,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.3,
    "logits_scaling": 1.5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHANGES = {
    "nope": {},
    "rope": {"position_embedding_type": "rope", "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    "linear_rope": {"position_embedding_type": "rope", "rope_parameters": LINEAR_ROPE},
    "no_positions": {"position_embedding_type": None, "mamba_n_groups": 2, "mamba_conv_bias": False},
    "dense": {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True, "attention_bias": True},
    "mamba": {"layer_types": ["mamba"] * 4, "mamba_proj_bias": True, "time_step_limit": (0.6, 1.1)},
    "attention": {"layer_types": ["attention"] * 4, "position_embedding_type": "rope", "mamba_n_heads": 128},
}


def reference(name):
    return build(transformers.GraniteMoeHybridConfig(**copy.deepcopy({**COMMON, **CHANGES[name]})))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    theirs = reference("rope")
    return loaded(theirs, tmp_path_factory.mktemp("hybrid")), theirs


@pytest.mark.parametrize("name", CHANGES)
def test_logits(name, tmp_path):
    theirs = reference(name)
    ours = loaded(theirs, tmp_path)
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunks_and_decoding_follow(hybrid, size):
    ours, theirs = hybrid
    assert_same_logits(in_pieces(ours, TOKENS, size), oracles.their_logits(theirs, TOKENS))


def test_mixed_batches_follow(hybrid):
    assert_mixed_batches_follow(*hybrid)


@pytest.mark.parametrize(("kind", "seen"), [("nope", False), ("rope", True)])
def test_positions_count_with_rope_alone(kind, seen, tmp_path):
    """One layer of attention: without positions, the last token does not see that two before it were swapped."""
    changes = {"layer_types": ["attention"], "num_hidden_layers": 1, "position_embedding_type": kind}
    ours = loaded(build(transformers.GraniteMoeHybridConfig(**{**COMMON, **changes})), tmp_path)
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:10]]
    one, two = (oracles.our_logits(ours, tokens)[-1] for tokens in (TOKENS[:10], swapped))
    assert (np.abs(one - two).max() > 1e-3) == seen
    assert (ours.frequencies is not None) == seen


@pytest.mark.parametrize("name", ["rope", "no_positions"])
def test_bfloat16_is_near(name, tmp_path):
    theirs = reference(name)
    exact = oracles.their_logits(theirs, TOKENS)
    ours = loaded(theirs.to(torch.bfloat16), tmp_path, torch.bfloat16)
    rounded = oracles.their_logits(theirs, TOKENS)
    # Rounding may choose another expert, so a token's greatest difference says little.
    far = 1.5 * np.abs(rounded - exact).mean()
    for logits in (oracles.our_logits(ours, TOKENS), in_pieces(ours, TOKENS, 16)):
        assert np.abs(logits - exact).mean() < far
    wide = {name.rpartition(".")[2] for name, p in ours.named_parameters() if p.dtype == torch.float32}
    assert wide == {"A_log", "D", "dt_bias"}


def test_names_are_those_of_checkpoints(hybrid, tmp_path):
    ours, theirs = hybrid
    theirs.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    assert "model.layers.0.block_sparse_moe.input_linear.weight" in names
    assert {name for name, _ in ours.named_parameters()} == names


def test_equal_scores_choose_the_lower_expert():
    router = Router(4, 6, 3)
    with torch.no_grad():
        router.layer.weight.copy_(torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0, 2.0])[:, None].expand(6, 4))
        chosen, weights = router(torch.ones(2, 4))
    assert chosen.tolist() == [[1, 2, 4]] * 2
    assert torch.allclose(weights, torch.full((2, 3), 1 / 3))


def test_spec(tmp_path):
    reference("nope").save_pretrained(tmp_path)
    spec = load_spec(open_checkpoint(tmp_path), "m")
    assert (spec.family, spec.context_length) == ("granite_hybrid", 512)
    full, recurrent = spec.state_groups
    assert (full.kind, full.layers, full.parts[0].shape) == ("full", (1, 3), (2, 16))
    assert (recurrent.kind, recurrent.layers) == ("recurrent", (0, 2))
    assert [(part.name, part.shape, part.wide) for part in recurrent.parts] == [
        ("conv", (3, 128 + 2 * 12), False),
        ("ssm", (8, 16, 12), True),
    ]


def test_models_of_one_layer_type_keep_one_kind_of_state():
    for name, kind in (("mamba", "recurrent"), ("attention", "full")):
        (group,) = parse_granite_hybrid({**GOOD, "layer_types": [name] * 4}, "f").state_groups()
        assert (group.kind, group.layers) == (kind, (0, 1, 2, 3))


def test_attention_scale_and_state_reach_the_executor(hybrid):
    ours, _ = hybrid
    seen = []

    class Noted(DenseState):
        def attend(self, layer, query, key, value, *, scale=None, sinks=None):
            seen.append((layer, tuple(query.shape), tuple(key.shape), scale))
            return super().attend(layer, query, key, value, scale=scale, sinks=sinks)

    Noted(ours.config.state_groups()).step(ours, ("a", TOKENS[:5]))
    assert seen == [(1, (5, 4, 16), (5, 2, 16), 0.3), (3, (5, 4, 16), (5, 2, 16), 0.3)]


# The config.

GOOD = json.loads(transformers.GraniteMoeHybridConfig(**COMMON).to_json_string(use_diff=False))
BAD = {
    "vocab_size": [None, 0, "256"],
    "hidden_size": [None, 0],
    "num_hidden_layers": [None, 0, 10**6],
    "num_attention_heads": [None, 0],
    "num_key_value_heads": [3, 0],
    "intermediate_size": [None, 0],
    "shared_intermediate_size": [0, "x"],
    "num_local_experts": [-1, 2.0, True],
    "num_experts_per_tok": [0, 7],
    "layer_types": [[], ["mamba"] * 3, ["mamba", "attention", "mamba", "sliding_attention"], "mamba", [[]] * 4],
    "position_embedding_type": ["alibi", 3],
    "max_position_embeddings": [None, 0],
    "embedding_multiplier": [0, -1, "x"],
    "residual_multiplier": [0, "x"],
    "attention_multiplier": [0, float("nan")],
    "logits_scaling": [0, float("inf")],
    "rms_norm_eps": [0],
    "attention_bias": [1],
    "tie_word_embeddings": ["false"],
    "mamba_n_heads": [0, 7],
    "mamba_n_groups": [0, 3],
    "mamba_d_state": [0],
    "mamba_d_head": [0, 15.0, "x"],
    "mamba_d_conv": [1, 0],
    "mamba_expand": [0],
    "mamba_conv_bias": [1],
    "mamba_proj_bias": ["no"],
    "time_step_limit": [[0.0], [1.0, 0.5], 3],
    "hidden_act": ["gelu", 3],
    "normalization_function": ["layernorm"],
    "quantization_config": [{"quant_method": "gptq"}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{key}'"):
        parse_granite_hybrid({**GOOD, key: value}, "some/config.json")


@pytest.mark.parametrize(
    ("key", "value"), [("rope_type", "dynamic"), ("rope_type", "longrope"), ("partial_rotary_factor", 0.5)]
)
def test_rope_that_is_not_supported_is_named_if_it_is_used(key, value):
    config = {**GOOD, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", key: value}}
    assert parse_granite_hybrid(config, "f").rope is None
    with pytest.raises(CheckpointError, match=f"config key 'rope_parameters.{key}'"):
        parse_granite_hybrid({**config, "position_embedding_type": "rope"}, "f")


def test_odd_heads_cannot_rotate():
    config = {**GOOD, "head_dim": 15}
    assert parse_granite_hybrid(config, "f").head_dim == 15
    with pytest.raises(CheckpointError, match="'head_dim' must be even"):
        parse_granite_hybrid({**config, "position_embedding_type": "rope"}, "f")


def test_configs_as_published_are_read():
    """Keys of Transformers 4: short names of layers, rope beside, sizes of heads left to the reader."""
    old = {**GOOD, "layer_types": COMMON["layer_types"], "mamba_d_head": "auto", "rope_scaling": None}
    del old["rope_parameters"], old["time_step_limit"]
    assert parse_granite_hybrid(old, "f") == parse_granite_hybrid(GOOD, "f")
    older = {**old, "layers_block_type": old.pop("layer_types")}
    assert parse_granite_hybrid(older, "f") == parse_granite_hybrid(GOOD, "f")
    del older["layers_block_type"]
    assert set(parse_granite_hybrid({**older, "layer_types": None}, "f").layer_types) == {"mamba"}


def test_without_experts_and_mamba_layers_their_keys_do_not_matter():
    config = {**GOOD, "num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": None}
    assert parse_granite_hybrid(config, "f").experts is None
    config = {**GOOD, "layer_types": ["attention"] * 4, "mamba_n_heads": 7}
    assert parse_granite_hybrid(config, "f").mixer is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from([*GOOD, "layers_block_type", "head_dim"]), value=json_values)
def test_any_json_value_parses_or_is_a_checkpoint_error(key, value):
    with contextlib.suppress(CheckpointError):
        parse_granite_hybrid({**GOOD, key: value}, "f").state_groups()
