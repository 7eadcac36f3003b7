"""Mamba-2 against Transformers, and its mixer against the recurrence's definition, cut into steps in every way."""

from __future__ import annotations

import copy
import json
import math
import time

import numpy as np
import oracles
import pytest
import torch
import transformers
from dense_state import DenseState
from serving import TOKENS, assert_mixed_batches_follow, assert_same_logits, in_pieces, loaded
from tiny import build

from headrace.errors import CheckpointError
from headrace.models.configs.mamba2 import parse_mamba2
from headrace.models.configs.ssm import SSMConfig
from headrace.models.families.ssm import Mixer, silu, softplus
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec

COMMON = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 12,
    "num_hidden_layers": 3,
    "n_groups": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHANGES = {
    "plain": {},
    "grouped": {"n_groups": 4},
    "tied": {"n_groups": 2, "tie_word_embeddings": True},
    "biased": {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "residual_in_fp32": False},
    "limited": {"time_step_limit": (0.5, 0.8), "expand": 3, "num_heads": 12, "chunk_size": 32},
}


def reference(name):
    return build(transformers.Mamba2Config(**{**COMMON, **CHANGES[name]}), attention="eager")


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    theirs = reference("grouped")
    return loaded(theirs, tmp_path_factory.mktemp("grouped")), theirs


@pytest.mark.parametrize("name", CHANGES)
def test_logits(name, tmp_path):
    theirs = reference(name)
    ours = loaded(theirs, tmp_path)
    assert_same_logits(oracles.our_logits(ours, TOKENS), oracles.their_logits(theirs, TOKENS))


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunks_and_decoding_follow(grouped, size):
    ours, theirs = grouped
    assert_same_logits(in_pieces(ours, TOKENS, size), oracles.their_logits(theirs, TOKENS))


def test_mixed_batches_follow(grouped):
    assert_mixed_batches_follow(*grouped)


@pytest.mark.parametrize("wide_residual", [True, False])
def test_bfloat16_is_near(wide_residual, tmp_path):
    config = {**COMMON, "n_groups": 2, "residual_in_fp32": wide_residual}
    theirs = build(transformers.Mamba2Config(**config), attention="eager")
    exact = oracles.their_logits(theirs, TOKENS)
    ours = loaded(theirs.to(torch.bfloat16), tmp_path, torch.bfloat16)
    rounded = oracles.their_logits(theirs, TOKENS)
    bar = 1.5 * np.abs(rounded - exact).max()
    assert_same_logits(oracles.our_logits(ours, TOKENS), exact, bar)
    assert_same_logits(in_pieces(ours, TOKENS, 16), exact, bar)
    assert ours.hidden(torch.tensor([3]), torch.tensor([0]), DenseState(ours.config.state_groups(), torch.bfloat16))\
        .dtype == torch.bfloat16  # fmt: skip


def test_recurrences_own_numbers_stay_float32(tmp_path):
    theirs = reference("plain")
    ours = loaded(theirs, tmp_path, torch.bfloat16)
    wide = {name: p for name, p in ours.named_parameters() if p.dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in wide} == {"A_log", "D", "dt_bias"}
    assert len(wide) == 3 * 3
    stored = theirs.state_dict()
    assert all(torch.equal(parameter, stored[name]) for name, parameter in wide.items())


def test_spec(tmp_path):
    reference("grouped").save_pretrained(tmp_path)
    spec = load_spec(open_checkpoint(tmp_path), "m")
    assert (spec.family, spec.context_length, spec.eos_token_ids) == ("mamba2", 1 << 20, (2,))
    (group,) = spec.state_groups
    assert (group.kind, group.layers) == ("recurrent", (0, 1, 2))
    conv, ssm = group.parts
    assert (conv.name, conv.shape, conv.wide) == ("conv", (3, 128 + 2 * 4 * 12), False)
    assert (ssm.name, ssm.shape, ssm.wide) == ("ssm", (8, 16, 12), True)


@pytest.mark.parametrize("differs", [False, True])
def test_a_repeated_output_layer_must_equal_the_embedding(differs, tmp_path):
    theirs = reference("plain")
    if not differs:
        theirs.lm_head.weight.data.copy_(theirs.backbone.embeddings.weight)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    if differs:
        with pytest.raises(CheckpointError, match="the two differ"):
            load_model(open_checkpoint(tmp_path))
    else:
        assert load_model(open_checkpoint(tmp_path)).lm_head is None


# The mixer alone.

SSM = SSMConfig(
    hidden_size=24, heads=6, head_dim=5, state_size=7, groups=3, kernel=4, conv_bias=True, proj_bias=False,
    norm_eps=1e-5, time_step_limit=(0.01, 2.0),
)  # fmt: skip


def mixer(dtype=torch.float32):
    torch.manual_seed(3)
    made = Mixer(SSM, 0).requires_grad_(requires_grad=False)
    for parameter in made.parameters():
        parameter.normal_(0, 0.5)
    return made.to(dtype)


def projected(count, dtype=torch.float32, seed=5):
    torch.manual_seed(seed)
    return torch.randn(count, SSM.inner + SSM.conv_channels + SSM.heads).to(dtype) * 2


def mix(made, *steps):
    """What a state keeps, and what the mixer makes of some steps, each of (sequence, rows) pairs."""
    state = DenseState([SSM.state_group([0])], made.in_proj.weight.dtype)
    found = {}
    for pieces in steps:
        state.rows, at = [], 0
        for name, rows in pieces:
            state.rows.append((name, at, at + len(rows)))
            at += len(rows)
        out = made.mix(torch.cat([rows for _, rows in pieces]), state)
        for name, begin, end in state.rows:
            found.setdefault(name, []).append(out[begin:end])
    return {name: torch.cat(some) for name, some in found.items()}, state.kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 63])
def test_chunks_give_the_same_bits(dtype, size):
    made, rows = mixer(dtype), projected(100, dtype)
    whole, kept = mix(made, [("a", rows)])
    pieces, kept_of_pieces = mix(made, *([("a", some)] for some in rows.split(size)))
    assert torch.equal(whole["a"], pieces["a"])
    for part in ("conv", "ssm"):
        assert torch.equal(kept["a", 0][part], kept_of_pieces["a", 0][part])
    assert kept["a", 0]["ssm"].dtype == torch.float32
    first = SSM.inner
    assert torch.equal(kept["a", 0]["conv"], rows[-3:, first : first + SSM.conv_channels])


def test_other_sequences_of_a_batch_change_no_bit():
    made, rows, other = mixer(), projected(50), projected(41, seed=6)
    alone, _ = mix(made, [("a", rows)])
    steps = [[("b", other[:19]), ("a", rows[:30])], [("a", rows[30:31]), ("b", other[19:])], [("a", rows[31:])]]
    assert torch.equal(mix(made, *steps)[0]["a"], alone["a"])


def test_mixer_follows_the_definition():
    """Token by token and head by head, in float64."""
    made, rows = mixer(), projected(20)
    weights = {name: p.double().numpy() for name, p in made.named_parameters()}
    gate, inputs, steps = np.split(rows.double().numpy(), [SSM.inner, SSM.inner + SSM.conv_channels], axis=1)
    state, expected = np.zeros((6, 5, 7)), []
    padded = np.concatenate([np.zeros((3, SSM.conv_channels)), inputs])
    for t in range(20):
        conv = (padded[t : t + 4] * weights["conv1d.weight"][:, 0].T).sum(0) + weights["conv1d.bias"]
        conv = conv / (1 + np.exp(-conv))
        x, b, c = conv[:30].reshape(6, 5), conv[30:51].reshape(3, 7), conv[51:].reshape(3, 7)
        y = np.empty((6, 5))
        for head in range(6):
            step = np.clip(np.log1p(np.exp(steps[t, head] + weights["dt_bias"][head])), 0.01, 2.0)
            decay = np.exp(-np.exp(weights["A_log"][head]) * step)
            state[head] = decay * state[head] + step * np.outer(x[head], b[head // 2])
            y[head] = state[head] @ c[head // 2] + weights["D"][head] * x[head]
        gated = (y.ravel() * gate[t] / (1 + np.exp(-gate[t]))).reshape(3, 10)
        normalized = gated / np.sqrt((gated**2).mean(1, keepdims=True) + 1e-5)
        expected.append(normalized.ravel() * weights["norm.weight"])
    ours = mix(made, [("a", rows)])[0]["a"].numpy()
    assert np.abs(ours - np.array(expected)).max() < 1e-5


def test_functions_of_one_number_do_not_depend_on_its_place():
    x = torch.cat((torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 20, torch.tensor([-200.0, 200.0])))
    for ours, theirs in ((silu, torch.nn.functional.silu), (softplus, torch.nn.functional.softplus)):
        whole = ours(x)
        assert torch.allclose(whole, theirs(x), rtol=1e-6, atol=1e-7)
        assert torch.equal(whole, torch.cat([ours(x[n : n + 1]) for n in range(len(x))]))
        assert torch.equal(whole, torch.cat([ours(some) for some in x.split(13)]))


def test_a_prompt_takes_milliseconds(grouped):
    ours, _ = grouped
    best = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        oracles.our_logits(ours, TOKENS)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.25


# The config.

GOOD = json.loads(transformers.Mamba2Config(**COMMON).to_json_string(use_diff=False))
BAD = {
    "vocab_size": [None, 0, "256"],
    "hidden_size": [None, 65],
    "num_heads": [None, 7, 0],
    "head_dim": [None, 15],
    "state_size": [0, 1.5],
    "n_groups": [0, 3],
    "conv_kernel": [1, "4"],
    "num_hidden_layers": [None, 0, 10**6],
    "layer_norm_epsilon": [0, "x"],
    "use_bias": [1],
    "use_conv_bias": ["yes"],
    "residual_in_fp32": [0],
    "tie_word_embeddings": ["false"],
    "time_step_limit": [[0.0], [-1.0, 1.0], [1.0, 0.5], "x", [None, 1.0], [True, 2], [0.0, math.nan], [0, {"a": 1}]],
    "hidden_act": ["gelu", 3],
    "rms_norm": [False],
    "quantization_config": [{"quant_method": "gptq"}],
    "max_position_embeddings": [0],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_bad_values_are_named(key, value):
    named = {"hidden_size": "num_heads", "head_dim": "num_heads"}.get(key, key) if value else key
    with pytest.raises(CheckpointError, match=f"some/config.json: config key '{named}'"):
        parse_mamba2({**GOOD, key: value}, "some/config.json")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, (0.0, math.inf)),
        ([0.0, math.inf], (0.0, math.inf)),
        ([0, {"__float__": "Infinity"}], (0.0, math.inf)),
        ([0.001, 0.1], (0.001, 0.1)),
    ],
)
def test_time_step_limits(limit, expected):
    assert parse_mamba2({**GOOD, "time_step_limit": limit}, "f").mixer.time_step_limit == expected


def test_configs_as_published_are_read():
    """Keys of older Transformers: the gate stays before the norm."""
    old = copy.deepcopy(GOOD)
    for key in ("time_step_limit", "dtype"):
        old.pop(key, None)
    text = json.dumps({**old, "norm_before_gate": True, "rms_norm": True, "time_step_limit": [0.0, math.inf]})
    assert parse_mamba2(json.loads(text), "f") == parse_mamba2(GOOD, "f")
