"""The config parser: what Transformers writes is read back; every bad value is named."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONFIGS

from headrace.errors import CheckpointError
from headrace.models.configs.llama import LlamaConfig, parse_llama
from headrace.models.configs.rope import RopeConfig
from headrace.models.registry import FAMILIES, family_of

GOOD = json.loads(CONFIGS["llama3"]().to_json_string(use_diff=False))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("use_diff", [True, False])
def test_transformers_configs_are_read(name, use_diff):
    theirs = CONFIGS[name]()
    config = json.loads(theirs.to_json_string(use_diff=use_diff))
    if use_diff and theirs.num_key_value_heads != theirs.num_attention_heads:
        config.setdefault("num_key_value_heads", theirs.num_key_value_heads)
    ours = parse_llama(config, "config.json")
    assert ours.variant == theirs.model_type
    assert (ours.vocab_size, ours.hidden_size, ours.layers) == (256, 64, 3)
    assert (ours.heads, ours.kv_heads) == (4, 2)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 16)
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.qk_norm == (name == "qwen3")
    assert ours.qkv_bias == (name in ("qwen2", "llama_biased"))
    assert ours.output_bias == ours.mlp_bias == (name == "llama_biased")
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.type == theirs.rope_parameters["rope_type"]


def test_llama3_rope_is_read_whole():
    assert parse_llama(GOOD, "f").rope == RopeConfig("llama3", 10000.0, 8.0, 1.0, 4.0, 64)


BAD = {
    "vocab_size": [None, 0, -1, 1.5, "256", True, 2**40],
    "hidden_size": [None, 0, [], {}],
    "intermediate_size": [None, "x"],
    "num_hidden_layers": [None, 0, 10**6, 10**400],
    "num_attention_heads": [None, 0, 3.0],
    "num_key_value_heads": [3, 0, [2, 2]],
    "head_dim": [15, 0, "16"],
    "max_position_embeddings": [None, 0, 2**40],
    "rms_norm_eps": [0, -1e-6, "1e-6", float("nan"), float("inf"), 10**400],
    "attention_bias": [1, "yes"],
    "mlp_bias": [0],
    "tie_word_embeddings": ["false"],
    "hidden_act": ["gelu", 3],
    "quantization_config": [{"quant_method": "gptq"}],
    "v_head_dim": [8],
    "model_type": [7],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{key}'"):
        parse_llama({**GOOD, key: value}, "some/config.json")


BAD_ROPE = {
    "rope_theta": [0, -1, "x", float("inf")],
    "rope_type": ["dynamic", "longrope", 4],
    "factor": [None, 0, "8"],
    "low_freq_factor": [None, 0],
    "high_freq_factor": [None, 1.0, 0.5],
    "original_max_position_embeddings": [0, -1, 2.5],
    "partial_rotary_factor": [0.5, "x"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD_ROPE.items() for value in values])
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_bad_rope_values_are_named(key, value, spelling):
    config = copy.deepcopy(GOOD)
    rope = {**config.pop("rope_parameters"), key: value}
    with pytest.raises(CheckpointError, match=f"config key '{spelling}.{key}'"):
        parse_llama({**config, spelling: rope}, "f")


@pytest.mark.parametrize("factors", [None, [], [1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")], "x"])
def test_bad_rope_factors_are_named(factors):
    rope = {"rope_type": "factors", "rope_theta": 1e4, "factors": factors}
    with pytest.raises(CheckpointError, match=r"rope_parameters.factors"):
        parse_llama({**GOOD, "rope_parameters": rope}, "f")


@pytest.mark.parametrize(
    ("variant", "window", "switch", "refused"),
    [
        ("mistral", 8, None, True),
        ("mistral", 511, None, True),
        ("mistral", 512, None, False),
        ("mistral", None, None, False),
        ("qwen2", 8, False, False),
        ("qwen2", 8, None, False),
        ("qwen2", 8, True, True),
        ("qwen2", 512, True, False),
        ("qwen3", 8, True, True),
        ("llama", 8, None, False),
    ],
)
def test_sliding_windows_that_hide_something_are_refused(variant, window, switch, refused):
    config = {**GOOD, "model_type": variant, "sliding_window": window, "use_sliding_window": switch}
    if refused:
        with pytest.raises(CheckpointError, match=f"'sliding_window' is {window}, shorter than the context of 512"):
            parse_llama(config, "f")
    else:
        assert isinstance(parse_llama(config, "f"), LlamaConfig)


def test_without_head_dim_the_hidden_size_must_divide():
    config = {**GOOD, "hidden_size": 66}
    del config["head_dim"]
    with pytest.raises(CheckpointError, match="'hidden_size' must be a multiple"):
        parse_llama(config, "f")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(key=st.sampled_from([*GOOD, "rope_scaling", "rope_theta", "sliding_window"]), value=json_values)
def test_any_json_value_parses_or_is_a_checkpoint_error(key, value):
    try:
        config = parse_llama({**GOOD, key: value}, "f")
    except CheckpointError:
        return
    assert config.heads % config.kv_heads == 0


@settings(max_examples=200, deadline=None)
@given(key=st.sampled_from(list(GOOD["rope_parameters"])), value=json_values)
def test_any_rope_value_parses_or_is_a_checkpoint_error(key, value):
    with contextlib.suppress(CheckpointError):
        parse_llama({**GOOD, "rope_parameters": {**GOOD["rope_parameters"], key: value}}, "f")


def test_families_by_architecture_and_by_model_type():
    for family in FAMILIES:
        for architecture, kind in family.architectures.items():
            assert family_of({"architectures": [architecture], "model_type": kind}, "f") is family
            assert family_of({"model_type": kind}, "f") is family


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
        {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"},
        {"architectures": [], "model_type": "llama"},
        {"architectures": [["LlamaForCausalLM"]], "model_type": "llama"},
        {"architectures": {"a": 1}},
    ],
)
def test_unknown_architectures_list_the_known(config):
    with pytest.raises(CheckpointError, match="known are LlamaForCausalLM, MistralForCausalLM") as caught:
        family_of(config, "config.json")
    assert caught.value.file == "config.json"


@pytest.mark.parametrize("kind", [None, "mamba", 3, []])
def test_unknown_model_types_list_the_known(kind):
    with pytest.raises(CheckpointError, match="known are llama, mistral, qwen2, qwen3"):
        family_of({"model_type": kind}, "f")


def test_architecture_and_model_type_must_agree():
    with pytest.raises(CheckpointError, match="goes with 'qwen2'"):
        family_of({"architectures": ["Qwen2ForCausalLM"], "model_type": "llama"}, "f")


def test_opening_and_describing_a_model_needs_no_pytorch():
    code = """
import sys
from headrace.models import gguf_checkpoint, hub, registry, safetensors_folder
from headrace.models.opening import open_checkpoint
registry.load_spec(open_checkpoint(sys.argv[1]), "m").parameters
assert "torch" not in sys.modules
"""
    fixture = Path(__file__).parent / "data" / "formats.gguf"
    subprocess.run([sys.executable, "-c", code, fixture], check=True, timeout=60)
