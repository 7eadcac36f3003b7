"""Whole models: captured, interpreted, against Transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captured import PagedRun
from tiny import CONFIGS, make

from headrace.compiler.capture import capture_model
from headrace.models.llama import load_model
from headrace.models.opening import open_checkpoint

RNG = np.random.default_rng(7)
TOKENS = [RNG.integers(3, 256, n).tolist() for n in (5, 19, 37)]


def ours(name, folder):
    make(name).save_pretrained(folder)
    return load_model(open_checkpoint(folder))


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def ragged(run):
    """Prefill of 5; one token after 18; 3 tokens after a prefix of 34; logits of all 9."""
    first, second, third = TOKENS
    pages = [[3], [7, 1], [2, 9, 4]]
    run.step([(second[:18], 0, pages[1]), (third[:34], 0, pages[2])], [0])
    return run.step([(first, 0, pages[0]), (second[18:], 18, pages[1]), (third[34:], 34, pages[2])], list(range(9)))


@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_batch_against_transformers(name, tmp_path):
    model = ours(name, tmp_path)
    captured = capture_model(model)
    assert [p.name for p in captured.program.parts] == ["embed", "layers", "head"]
    assert captured.program.parts[1].repeats == ("0", "1", "2")
    got = ragged(PagedRun(captured, model))
    reference = make(name)
    expected = np.concatenate([theirs(reference, t)[-n:] for t, n in zip(TOKENS, (5, 1, 3), strict=True)])
    assert expected.std() > 0.3
    assert np.abs(got - expected).max() < 1e-4
