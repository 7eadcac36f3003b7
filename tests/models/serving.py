"""A family's model in the shapes in which a scheduler runs it, against Transformers on whole sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import torch
from dense_state import DenseState

from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint

TOKENS = np.random.default_rng(1).integers(3, 256, 150).tolist()


def loaded(theirs: Any, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Our model of what Transformers saves."""
    theirs.save_pretrained(folder)
    return load_model(open_checkpoint(folder), dtype)


def assert_same_logits(ours: np.ndarray, theirs: np.ndarray, bar: float = 1e-4) -> None:
    """Equal to rounding, and not for being flat."""
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.3, "the reference's logits are too flat to tell models apart"
    assert np.abs(ours - theirs).max() < bar


def in_pieces(model: Any, tokens: list[int], size: int) -> np.ndarray:
    """``[T, vocab]``: a prompt in chunks of a size; 1 is decoding."""
    state = DenseState(model.config.state_groups(), next(model.parameters()).dtype)
    chunks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return torch.cat([state.step(model, ("only", chunk))[0] for chunk in chunks]).numpy()


def assert_mixed_batches_follow(model: Any, theirs: Any) -> None:
    """Sequences of one batch at different points: a whole prompt, chunks, single tokens."""
    prompts = {"a": TOKENS[:40], "b": TOKENS[40:63], "c": TOKENS[63:90]}
    state = DenseState(model.config.state_groups())
    found: dict[str, list[torch.Tensor]] = {name: [] for name in prompts}
    for counts in ({"a": 17}, {"b": 22, "a": 1, "c": 9}, {"c": 1, "a": 21, "b": 1}, {"a": 1, "c": 17}):
        pieces = []
        for name, count in counts.items():
            start = sum(len(some) for some in found[name])
            pieces.append((name, prompts[name][start : start + count]))
        for name, logits in zip(counts, state.step(model, *pieces), strict=True):
            found[name].append(logits)
    for name, prompt in prompts.items():
        assert_same_logits(torch.cat(found[name]).numpy(), oracles.their_logits(theirs, prompt))


def assert_bfloat16_near(theirs: Any, folder: Path) -> Any:
    """Ours in bfloat16 is no further from Transformers' than that is from float32, with a margin for the order.

    Returns:
        Our model.
    """
    exact = oracles.their_logits(theirs, TOKENS)
    rounded = theirs.to(torch.bfloat16)
    ours = loaded(rounded, folder, torch.bfloat16)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    reference = oracles.their_logits(rounded, TOKENS)
    assert_same_logits(oracles.our_logits(ours, TOKENS), reference, bar=1.5 * np.abs(reference - exact).max())
    return ours
