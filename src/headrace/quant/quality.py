"""How much of a model a recipe loses: its logits beside a reference's, on a text.

Figures are defined as by ``llama-perplexity --kl-divergence`` (the llama.cpp project), so that they compare, but for
two details there: the reference's log probabilities are rounded to 16 bits, and those below -16 are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidInput

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean and its standard error, taking positions as independent."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class Quality:
    """A candidate beside a reference.

    Attributes:
        positions: How many were compared.
        kl: Kullback-Leibler divergence of the candidate from the reference, nats a position.
        kl_p99: 99 % of the positions diverge no more.
        agreement: Share of the positions whose best token is the same.
        perplexity: Of the text, by the candidate.
        reference_perplexity: Of the text, by the reference.
        perplexity_change: The candidate's over the reference's, less 1.
        logit_difference: The largest difference of two logits.
    """

    positions: int
    kl: Figure
    kl_p99: float
    agreement: Figure
    perplexity: float
    reference_perplexity: float
    perplexity_change: Figure
    logit_difference: float


def scored_positions(context: int) -> slice:
    """The positions of a piece of ``context`` tokens that count: those of its second half that have a next token."""
    return slice(context // 2, context - 1)


class Comparison:
    """Collects logits chunk by chunk; holds a few numbers a position."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Float64, Float64, Float64, npt.NDArray[np.bool_]]] = []
        self._difference = 0.0

    def add(self, reference: Array, candidate: Array, following: Array) -> None:
        """Compare some positions.

        Args:
            reference: Logits ``[positions, vocab]``.
            candidate: The same by the other.
            following: int ``[positions]``, the tokens that do follow.

        Raises:
            InvalidInput: The shapes do not fit together, or a token is not in the vocabulary.
        """
        if reference.ndim != 2 or reference.shape != candidate.shape or following.shape != reference.shape[:1]:
            shapes = f"{reference.shape}, {candidate.shape} and {following.shape}"
            raise InvalidInput(f"logits [positions, vocab] twice and tokens [positions] are needed, not {shapes}")
        if not len(following):
            return
        if following.min() < 0 or following.max() >= reference.shape[1]:
            raise InvalidInput(f"tokens must be from 0 to {reference.shape[1] - 1}")
        ours, theirs = log_softmax(candidate), log_softmax(reference)
        at = np.arange(len(following)), following
        same = np.argmax(reference, 1) == np.argmax(candidate, 1)
        self._chunks.append((divergence(theirs, ours), -theirs[at], -ours[at], same))
        difference = _difference(reference, candidate)
        # A NaN must not be lost in a later comparison.
        self._difference = difference if not difference <= self._difference else self._difference

    def result(self) -> Quality:
        """The figures.

        Raises:
            InvalidInput: Nothing was added.
        """
        if not self._chunks:
            raise InvalidInput("there are no positions to compare")
        kl, theirs, ours, same = (np.concatenate(each) for each in zip(*self._chunks, strict=True))
        share = float(same.mean())
        with np.errstate(invalid="ignore", over="ignore"):  # a broken candidate has figures too
            change = float(np.exp(ours.mean() - theirs.mean()))
            return Quality(
                positions=len(kl),
                kl=_figure(kl),
                kl_p99=float(np.percentile(kl, 99)),
                agreement=Figure(share, math.sqrt(share * (1 - share) / max(len(kl) - 1, 1))),
                perplexity=float(np.exp(ours.mean())),
                reference_perplexity=float(np.exp(theirs.mean())),
                perplexity_change=Figure(change - 1, change * _figure(ours - theirs).error),
                logit_difference=self._difference,
            )


def _difference(reference: Array, candidate: Array) -> float:
    """The largest difference; tokens that both rule out do not differ."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(candidate.astype(np.float64) - reference)
    apart[candidate == reference] = 0
    return float(apart.max())


def _figure(values: Float64) -> Figure:
    return Figure(float(values.mean()), float(values.std() / math.sqrt(max(len(values) - 1, 1))))


def log_softmax(logits: Array) -> Float64:
    """Log probabilities, float64 ``[positions, vocab]``."""
    shifted = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted -= shifted.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def divergence(reference: Float64, candidate: Float64) -> Float64:
    """Sum over tokens of p (log p - log q), float64 ``[positions]``; a token of probability 0 adds nothing.

    Args:
        reference: log p, ``[positions, vocab]``.
        candidate: log q.
    """
    probability = np.exp(reference)
    with np.errstate(invalid="ignore"):
        terms = probability * (reference - candidate)
    terms[probability == 0] = 0
    total: Float64 = terms.sum(-1)
    return total


@dataclass(frozen=True, slots=True)
class Gate:
    """What a recipe may lose.

    Attributes:
        kl: Most of the mean divergence, nats.
        agreement: Least share of positions with the same best token.
        perplexity_change: Most that perplexity may change, either way, as a share.
        logit_difference: Most that a logit may differ.
    """

    kl: float = math.inf
    agreement: float = 0.0
    perplexity_change: float = math.inf
    logit_difference: float = math.inf

    def failures(self, quality: Quality) -> list[str]:
        """What was lost too much, in words; nothing if the gate is passed. A figure that is no number fails."""
        change = quality.perplexity_change.mean
        checks: list[tuple[bool, Callable[[], str]]] = [
            (quality.kl.mean <= self.kl, lambda: f"KL divergence {quality.kl.mean:.2e} > {self.kl:.2e}"),
            (
                quality.agreement.mean >= self.agreement,
                lambda: f"best token agrees at {quality.agreement.mean:.2%} < {self.agreement:.2%} of positions",
            ),
            (
                abs(change) <= self.perplexity_change,
                lambda: f"perplexity changes by {change:+.2%}, more than {self.perplexity_change:.2%}",
            ),
            (
                quality.logit_difference <= self.logit_difference,
                lambda: f"a logit differs by {quality.logit_difference:.2e} > {self.logit_difference:.2e}",
            ),
        ]
        return [words() for passed, words in checks if not passed]


GATES = {
    "float32": Gate(logit_difference=1e-3),
    "bf16": Gate(kl=3e-4, agreement=0.985),
    "int8": Gate(kl=2.65e-3, agreement=1 - 0.037, perplexity_change=0.0044),
}
"""By what a recipe rounds activations to. ``int8``: what llama.cpp loses with SmolLM2's Q4_1 file."""
AIM = Gate(kl=2.65e-3 / 2, agreement=1 - 0.037 / 2, perplexity_change=0.0044 / 2)
"""What ``int8`` recipes aim at: half of that."""
