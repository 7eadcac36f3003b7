"""Figures of quality against PyTorch's, and what gates let pass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidInput
from headrace.quant.quality import AIM, GATES, Comparison, Figure, Gate, Quality, scored_positions
from headrace.quant.recipes import RECIPES

RNG = np.random.default_rng(3)


def logits(positions=200, vocab=50, noise=0.3):
    reference = RNG.normal(0, 3, (positions, vocab)).astype(np.float32)
    candidate = reference + RNG.normal(0, noise, reference.shape).astype(np.float32)
    return reference, candidate, RNG.integers(0, vocab, positions)


def compare(reference, candidate, following, cuts=()):
    comparison = Comparison()
    for part in np.split(np.arange(len(following)), list(cuts)):
        comparison.add(reference[part], candidate[part], following[part])
    return comparison.result()


def test_figures_are_pytorchs():
    reference, candidate, following = logits()
    quality = compare(reference, candidate, following)
    p, q = (torch.from_numpy(x).double().log_softmax(-1) for x in (reference, candidate))
    kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    token = torch.from_numpy(following)
    loss = [torch.nn.functional.nll_loss(x, token, reduction="none") for x in (p, q)]
    same = (p.argmax(-1) == q.argmax(-1)).double()
    root = math.sqrt(len(following))
    assert quality.positions == 200
    assert quality.kl.mean == pytest.approx(kl.mean().item(), rel=1e-9)
    assert quality.kl.error == pytest.approx(kl.std().item() / root, rel=1e-9)
    assert quality.kl_p99 == pytest.approx(kl.quantile(0.99).item(), rel=1e-9)
    assert quality.agreement.mean == pytest.approx(same.mean().item())
    assert quality.agreement.error == pytest.approx(same.std().item() / root, rel=1e-9)
    assert quality.reference_perplexity == pytest.approx(loss[0].mean().exp().item(), rel=1e-9)
    assert quality.perplexity == pytest.approx(loss[1].mean().exp().item(), rel=1e-9)
    ratio = (loss[1].mean() - loss[0].mean()).exp().item()
    assert quality.perplexity_change.mean == pytest.approx(ratio - 1, rel=1e-9)
    assert quality.perplexity_change.error == pytest.approx(ratio * (loss[1] - loss[0]).std().item() / root, rel=1e-9)
    assert quality.logit_difference == np.abs(candidate.astype(np.float64) - reference).max()


@given(st.lists(st.integers(0, 200), max_size=4).map(sorted))
def test_chunks_do_not_matter(cuts):
    given_logits = SAMPLE
    assert compare(*given_logits, cuts) == compare(*given_logits)


SAMPLE = logits()


def test_equal_logits_lose_nothing():
    reference, _, following = logits()
    quality = compare(reference, reference, following)
    assert quality.kl == Figure(0, 0)
    assert quality.agreement == Figure(1, 0)
    assert quality.perplexity_change == Figure(0, 0)
    shifted = compare(reference, reference + np.float32(4), following)
    assert abs(shifted.kl.mean) < 1e-6
    for gate in (*GATES.values(), AIM):
        assert gate.failures(quality) == []


def test_impossible_tokens():
    """A masked token of the reference adds nothing; one of the candidate alone costs without end."""
    reference, candidate, following = logits(vocab=10)
    following = following % 9
    reference[:, 9] = candidate[:, 9] = -np.inf
    masked = compare(reference, candidate, following)
    bare = compare(reference[:, :9], candidate[:, :9], following)
    assert masked.kl.mean == pytest.approx(bare.kl.mean, rel=1e-9)
    assert masked.logit_difference == bare.logit_difference
    reference[:, 9] = 0
    assert compare(reference, candidate, following).kl.mean == math.inf


def test_a_nan_never_passes():
    reference, candidate, following = logits()
    candidate[3, 4] = np.nan
    quality = compare(reference, candidate, following, cuts=[100])
    for gate in (*GATES.values(), AIM):
        assert gate.failures(quality)


def test_a_gate_says_what_is_lost():
    quality = Quality(100, Figure(2e-3, 1e-4), 0.01, Figure(0.97, 0.001), 10.03, 10.0, Figure(0.003, 0.001), 0.5)
    assert GATES["int8"].failures(quality) == []
    assert AIM.failures(quality) == [
        "KL divergence 2.00e-03 > 1.33e-03",
        "best token agrees at 97.00% < 98.15% of positions",
        "perplexity changes by +0.30%, more than 0.22%",
    ]
    assert GATES["float32"].failures(quality) == ["a logit differs by 5.00e-01 > 1.00e-03"]
    assert AIM.failures(replace(quality, perplexity_change=Figure(-0.003, 0.001)))[-1].startswith("perplexity")
    assert Gate().failures(quality) == []


def test_each_recipe_has_a_gate():
    assert {recipe.activations for recipe in RECIPES.values()} == set(GATES)


def test_wrong_shapes_are_named():
    comparison = Comparison()
    with pytest.raises(InvalidInput, match=r"not \(2, 3\), \(2, 4\) and \(2,\)"):
        comparison.add(np.zeros((2, 3)), np.zeros((2, 4)), np.zeros(2, int))
    for token in (-1, 3):
        with pytest.raises(InvalidInput, match="from 0 to 2"):
            comparison.add(np.zeros((1, 3)), np.zeros((1, 3)), np.array([token]))
    with pytest.raises(InvalidInput, match="no positions"):
        comparison.result()


def test_second_halves_count():
    assert np.arange(512)[scored_positions(512)].tolist() == list(range(256, 511))
