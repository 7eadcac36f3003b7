"""Gemma 3: logits against Transformers, window layers in all shapes of a step, and the config's keys."""

from __future__ import annotations

import copy
import json

import oracles
import pytest
import serving
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from serving import TOKENS, assert_same_logits, loaded
from tiny import COMMON, build

from headrace.errors import CheckpointError
from headrace.models.configs.gemma3 import parse_gemma3
from headrace.models.configs.rope import RopeConfig
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.models.spec import attention_group

FULL, WINDOW = "full_attention", "sliding_attention"
SCALED = {
    FULL: {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
    WINDOW: {"rope_type": "default", "rope_theta": 500.0},
}
OWN = {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24}
CONFIGS = {
    "usual": {},
    "scaled": {"rope_parameters": SCALED, "sliding_window": 1, "layer_types": [WINDOW, FULL, FULL] + [WINDOW] * 4},
    "biased": {"attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1, "sliding_window": 33},
    "windows_only": {"layer_types": [WINDOW] * 3, "num_hidden_layers": 3},
    "full_only": {"layer_types": [FULL] * 3, "num_hidden_layers": 3},
}


def config_of(name, **changes):
    return transformers.Gemma3TextConfig(**copy.deepcopy({**COMMON, **OWN, **CONFIGS[name], **changes}))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name, tmp_path):
    theirs = build(config_of(name))
    ours = loaded(theirs, tmp_path)
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunked_prefill_and_decoding(size, tmp_path):
    theirs = build(config_of("usual"))
    ours = loaded(theirs, tmp_path)
    assert_same_logits(serving.in_pieces(ours, TOKENS, size), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("name", ["usual", "scaled"])
def test_mixed_batches(name, tmp_path):
    theirs = build(config_of(name))
    serving.assert_mixed_batches_follow(loaded(theirs, tmp_path), theirs)


def test_bfloat16(tmp_path):
    ours = serving.assert_bfloat16_near(build(config_of("usual")), tmp_path)
    assert {ours.frequencies.dtype, ours.window_frequencies.dtype} == {torch.float32}


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 8.0}])
def test_keys_from_before_transformers_5(scaling, tmp_path):
    new = config_of("usual", rope_parameters={FULL: {"rope_theta": 2e5, "rope_type": "default", **(scaling or {})},
                                              WINDOW: {"rope_theta": 300.0, "rope_type": "default"}})  # fmt: skip
    theirs = build(new)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_parameters", "layer_types", "_sliding_window_pattern"):
        del config[key]
    config |= {"rope_theta": 2e5, "rope_local_base_freq": 300.0, "rope_scaling": scaling, "sliding_window_pattern": 6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_model(open_checkpoint(tmp_path))
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


def test_spec_has_a_group_of_either_kind(tmp_path):
    build(config_of("usual")).save_pretrained(tmp_path)
    spec = load_spec(open_checkpoint(tmp_path), "m")
    assert spec.family == "gemma3"
    assert spec.state_groups == (
        attention_group("full", [5], 2, 32),
        attention_group("window", [0, 1, 2, 3, 4, 6], 2, 32, 8),
    )


GOOD = json.loads(config_of("usual").to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("use_diff", [True, False])
def test_transformers_configs_are_read(name, use_diff):
    theirs = config_of(name)
    ours = parse_gemma3(json.loads(theirs.to_json_string(use_diff=use_diff)), "config.json")
    assert ours.windowed == tuple(kind == WINDOW for kind in theirs.layer_types)
    assert ours.window == (theirs.sliding_window if any(ours.windowed) else 0)
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (4, theirs.num_key_value_heads, 32)
    assert (ours.query_scalar, ours.norm_eps) == (24, theirs.rms_norm_eps)
    assert (ours.attention_bias, ours.tied) == (theirs.attention_bias, theirs.tie_word_embeddings)
    assert {g.kind: g.layers for g in ours.state_groups()} == {
        kind: layers
        for kind, flag in (("full", False), ("window", True))
        if (layers := tuple(n for n, windowed in enumerate(ours.windowed) if windowed == flag))
    }


def test_absent_keys_have_transformers_defaults():
    sizes = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    ours = parse_gemma3({key: GOOD[key] for key in sizes}, "f")
    theirs = transformers.Gemma3TextConfig()
    assert (ours.heads, ours.kv_heads, ours.head_dim) == (
        theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim
    )  # fmt: skip
    assert (ours.norm_eps, ours.context_length) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert (ours.query_scalar, ours.window) == (theirs.query_pre_attn_scalar, theirs.sliding_window)
    assert (ours.tied, ours.attention_bias) == (theirs.tie_word_embeddings, theirs.attention_bias)
    assert ours.windowed == (True, True, True, True, True, False, True)
    assert (ours.rope, ours.window_rope) == (RopeConfig(theta=1e6), RopeConfig(theta=1e4))


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
    "layer_types": ["x", [], [WINDOW] * 6, [WINDOW] * 6 + ["linear_attention"], [WINDOW] * 6 + [[]]],
    "query_pre_attn_scalar": [0, "x"],
    "attention_bias": [1],
    "tie_word_embeddings": ["no"],
    "hidden_activation": ["gelu", "silu", 3],
    "attn_logit_softcapping": [50.0],
    "final_logit_softcapping": [30.0],
    "use_bidirectional_attention": [True, "all"],
    "quantization_config": [{"quant_method": "gptq"}],
    "rope_scaling": [{"rope_type": "linear", "factor": 8.0}],
    "rope_theta": ["x"],
    "rope_local_base_freq": [0],
    "rope_parameters": [[]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{key}'"):
        parse_gemma3({**GOOD, key: value}, "some/config.json")


@pytest.mark.parametrize("kind", [FULL, WINDOW])
@pytest.mark.parametrize(
    ("key", "value"), [("rope_theta", 0), ("rope_type", "dynamic"), ("rope_type", "linear"), ("factor", 0)]
)
def test_bad_rope_values_are_named(kind, key, value):
    rope = copy.deepcopy(GOOD["rope_parameters"])
    rope[kind] = {"rope_type": "linear", key: value}
    named = "factor" if value == "linear" else key
    with pytest.raises(CheckpointError, match=f"config key 'rope_parameters.{kind}.{named}'"):
        parse_gemma3({**GOOD, "rope_parameters": rope}, "f")


def test_rope_settings_without_kinds_of_layers_are_refused():
    with pytest.raises(CheckpointError, match=r"'rope_parameters.rope_type' is none of the kinds of layers"):
        parse_gemma3({**GOOD, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "f")


def test_pattern_must_be_a_count():
    config = {key: value for key, value in GOOD.items() if key != "layer_types"}
    with pytest.raises(CheckpointError, match="'sliding_window_pattern'"):
        parse_gemma3({**config, "sliding_window_pattern": 0}, "f")
    assert parse_gemma3({**config, "sliding_window_pattern": 1}, "f").windowed == (False,) * 7


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from([*GOOD, "rope_scaling", "sliding_window_pattern"]), value=json_values)
def test_any_json_value_parses_or_is_a_checkpoint_error(key, value):
    try:
        config = parse_gemma3({**GOOD, key: value}, "f")
    except CheckpointError:
        return
    assert sorted(layer for group in config.state_groups() for layer in group.layers) == list(range(config.layers))
