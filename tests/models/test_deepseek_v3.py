"""DeepSeek-V3 against Transformers: tiny random models, whole, in pieces and beside other sequences."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

import numpy as np
import oracles
import pytest
import torch
import transformers
from dense_state import DenseState
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from headrace.errors import CheckpointError
from headrace.models.configs.deepseek_v3 import parse_deepseek_v3
from headrace.models.families.moe import mix_experts
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec

TOKENS = np.random.default_rng(2).integers(3, 256, 150).tolist()
COMMON: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 2,
    "n_routed_experts": 16,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 8.0,
    "beta_slow": 2.0,
    "original_max_position_embeddings": 64,
}
CHANGES: dict[str, dict[str, Any]] = {
    "v3": {},
    "yarn": {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "yarn_uneven": {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "yarn_plain": {"rope_parameters": dict(YARN), "rope_interleave": False},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0, "mscale_all_dim": 1.0}},
    "whole_queries": {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "num_nextn_predict_layers": 0},
    "halves": {"rope_interleave": False, "attention_bias": True, "norm_topk_prob": False, "rms_norm_eps": 1e-3},
    "sparse": {"first_k_dense_replace": 0, "num_experts_per_tok": 1, "n_shared_experts": 1},
    "dense": {"first_k_dense_replace": 3, "tie_word_embeddings": True},
}


def make(name: str) -> Any:
    """A Transformers model whose routing and logits would show a mistake."""
    config = transformers.DeepseekV3Config(**{**COMMON, **CHANGES[name]})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for path, buffer in model.named_buffers():
            if path.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Both sides of a model: Transformers' and ours."""

    @functools.cache
    def both(name):
        model = make(name)
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return model, load_model(open_checkpoint(folder)), oracles.their_logits(model, TOKENS)

    return both


def pieces(size):
    return [TOKENS[at : at + size] for at in range(0, len(TOKENS), size)]


@pytest.mark.parametrize("name", CHANGES)
def test_logits(name, pair):
    _, ours, theirs = pair(name)
    assert theirs.std() > 0.3
    assert np.abs(oracles.our_logits(ours, TOKENS) - theirs).max() < 1e-4


@pytest.mark.parametrize("name", ["v3", "yarn_uneven", "whole_queries"])
@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_pieces_of_any_size(name, size, pair):
    _, ours, theirs = pair(name)
    state = DenseState(ours.config.state_groups())
    found = torch.cat([state.step(ours, ("only", piece))[0] for piece in pieces(size)]).numpy()
    assert np.abs(found - theirs).max() < 1e-4


@pytest.mark.parametrize("name", ["yarn", "whole_queries", "halves"])
def test_decode_equals_transformers_with_its_cache(name, pair):
    model, ours, _ = pair(name)
    state, cache = DenseState(ours.config.state_groups()), transformers.DynamicCache(config=model.config)
    for step in (TOKENS[:30], *([token] for token in TOKENS[30:60])):
        with torch.inference_mode():
            theirs = model(input_ids=torch.tensor([step]), cache=cache).logits[0].numpy()
        assert np.abs(state.step(ours, ("only", step))[0].numpy() - theirs).max() < 1e-4


def test_whole_prompt_chunk_and_single_token_side_by_side(pair):
    _, ours, theirs = pair("v3")
    state = DenseState(ours.config.state_groups())
    state.step(ours, ("chunked", TOKENS[:20]), ("decoded", TOKENS[:50]))
    chunk, whole, single = state.step(
        ours, ("chunked", TOKENS[20:47]), ("whole", TOKENS[:33]), ("decoded", TOKENS[50:51])
    )
    for found, expected in ((chunk, theirs[20:47]), (whole, theirs[:33]), (single, theirs[50:51])):
        assert np.abs(found.numpy() - expected).max() < 1e-4


def test_a_latent_is_all_that_a_token_keeps(tmp_path):
    make("v3").save_pretrained(tmp_path)
    spec = load_spec(open_checkpoint(tmp_path), "m")
    assert (spec.family, spec.context_length) == ("deepseek_v3", 512)
    (group,) = spec.state_groups
    assert (group.kind, group.layers, [part.shape for part in group.parts]) == ("latent", (0, 1, 2), [(40,)])
    assert group.item_bytes(2) == 3 * 40 * 2


def test_bfloat16_keeps_the_router_in_float32(tmp_path, pair):
    _, _, exact = pair("v3")
    make("v3").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    ours = load_model(open_checkpoint(tmp_path), torch.bfloat16)
    wide = {name.rpartition("mlp.")[2] for name, p in ours.named_parameters() if p.dtype == torch.float32}
    assert wide == {"gate.weight", "gate.e_score_correction_bias"}
    theirs = oracles.their_logits(model, TOKENS)
    # A token whose experts change by rounding is off by more than a rounding: so the middle and the mean, not the most.
    error, bar = (np.abs(side - exact) for side in (oracles.our_logits(ours, TOKENS), theirs))
    assert np.median(error) < 1.3 * np.median(bar)
    assert error.mean() < 1.3 * bar.mean()


def test_experts_do_not_depend_on_the_other_tokens():
    random = torch.Generator().manual_seed(0)
    # A 1 that is added to 1e8 is lost: the sums show in which order they were made.
    values = (1.0, 1e8, -1e8)

    def mixed(rows):
        return mix_experts(x[rows], chosen[rows], weights[rows], 3, lambda n, some: torch.full_like(some, values[n]))

    chosen = torch.tensor([[1, 2, 0], [0, 1, 2], [2, 1, 0], [0, 2, 1]])
    x, weights = torch.randn(4, 5, generator=random), torch.ones(4, 3)
    together = mixed(slice(0, 4))
    alone = [mixed(slice(n, n + 1)) for n in range(4)]
    assert torch.equal(together, torch.cat(alone))
    assert together[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]


def test_layers_that_predict_further_tokens_are_left_out(tmp_path, pair):
    _, ours, _ = pair("v3")
    make("v3").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    extra = {
        "model.layers.3.eh_proj.weight": torch.ones(64, 128),
        "model.layers.3.embed_tokens.weight": torch.ones(256, 64),
        "model.layers.3.mlp.experts.0.up_proj.weight": torch.ones(32, 64),
    }
    save_file({**load_file(file), **extra}, file)
    again = load_model(open_checkpoint(tmp_path))
    assert set(again.state_dict()) == set(ours.state_dict())
    assert all(torch.equal(weight, ours.state_dict()[name]) for name, weight in again.state_dict().items())
    for changes in ({"num_nextn_predict_layers": 0}, {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}):
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(CheckpointError, match=r"layers\.\d.*no place"):
            load_model(open_checkpoint(tmp_path))


GOOD: dict[str, Any] = json.loads(transformers.DeepseekV3Config(**COMMON).to_json_string(use_diff=False))
PUBLISHED = {
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "moe_layer_freq": 1,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_method": "noaux_tc",
    "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}


def test_published_spelling_is_read():
    old = {key: value for key, value in GOOD.items() if key not in ("rope_parameters", "rope_interleave", "head_dim")}
    config = parse_deepseek_v3({**old, **PUBLISHED, "max_position_embeddings": 163840}, "f")
    assert (config.rope.type, config.rope.factor, config.rope.attention_factor) == ("yarn", 40.0, 1.0)
    assert config.scale == pytest.approx(24**-0.5 * (0.1 * np.log(40) + 1) ** 2)
    assert config.interleaved
    assert config.extra_layers == 1


BAD: dict[str, list[Any]] = {
    "hidden_size": [None, 0],
    "kv_lora_rank": [None, 0, 1.5],
    "q_lora_rank": [0, "x"],
    "qk_nope_head_dim": [None, 0],
    "qk_rope_head_dim": [None, 7],
    "v_head_dim": [None, -1],
    "head_dim": [24],
    "num_key_value_heads": [2],
    "n_routed_experts": [None, 0],
    "n_shared_experts": [None, 0],
    "n_group": [None, 3, 16, 0],
    "topk_group": [None, 5],
    "num_experts_per_tok": [None, 9],
    "norm_topk_prob": [None, 1],
    "rope_interleave": [None, "true"],
    "routed_scaling_factor": [None, 0, float("inf")],
    "first_k_dense_replace": [None, -1],
    "num_nextn_predict_layers": [-1, 1.0],
    "moe_layer_freq": [2],
    "scoring_func": ["softmax"],
    "topk_method": ["greedy", "group_limited_greedy"],
    "hidden_act": ["gelu"],
    "attention_bias": ["yes"],
    "quantization_config": [{"quant_method": "fp8"}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{key}'"):
        parse_deepseek_v3({**GOOD, key: value}, "some/config.json")


@pytest.mark.parametrize("value", ["1", -1.0, float("nan")])
def test_bad_mscale_all_dim_is_named(value):
    rope = {**YARN, "mscale_all_dim": value}
    with pytest.raises(CheckpointError, match=r"'rope_parameters\.mscale_all_dim'"):
        parse_deepseek_v3({**GOOD, "rope_parameters": rope}, "f")


def test_a_missing_query_rank_is_not_guessed():
    config = dict(GOOD)
    del config["q_lora_rank"]
    with pytest.raises(CheckpointError, match="'q_lora_rank' is missing"):
        parse_deepseek_v3(config, "f")


@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from([*GOOD, *PUBLISHED, "quantization_config"]),
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({}),
)
def test_any_value_parses_or_is_a_checkpoint_error(key, value):
    with contextlib.suppress(CheckpointError):
        config = parse_deepseek_v3({**GOOD, key: value}, "f")
        assert np.isfinite(config.scale)
