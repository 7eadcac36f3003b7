"""Drawing tokens from logits: plain NumPy, one position at a time, so that a row never depends on its neighbours.

The order of operations is documented at ``SamplingParams``. This is the reference; a compiled sampler is checked
against it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.runtime.batch import FloatArray, IntArray, SlotSampling, TokenLogprobs

# As in vLLM: below it a temperature is none, and dividing by it would only overflow.
GREEDY_BELOW = 1e-5

# Tokens looked at before a full sort is paid for: nearly always enough to reach top_p.
SHORTLIST = 1024


class TokenCounts:
    """What a slot has seen, for penalties.

    Attributes:
        output: int32 [vocab]: occurrences in the output.
        seen: bool [vocab]: in the prompt or the output.
    """

    __slots__ = ("output", "seen")

    def __init__(self, tokens: IntArray, prompt_length: int, vocab_size: int) -> None:
        self.output = np.bincount(tokens[prompt_length:], minlength=vocab_size).astype(np.int32)
        self.seen = np.zeros(vocab_size, np.bool_)
        self.seen[tokens] = True

    def add(self, token: int) -> None:
        """Count an output token."""
        self.output[token] += 1
        self.seen[token] = True


def needs_counts(sampling: SlotSampling) -> bool:
    """Whether these settings penalize tokens seen before."""
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def sample(
    logits: FloatArray, sampling: SlotSampling, counts: TokenCounts | None, *, position: int, output_length: int
) -> int:
    """Draw the token that follows a position.

    Args:
        logits: float32 [vocab], not modified.
        sampling: The slot's settings.
        counts: What the slot has seen; None if nothing is penalized.
        position: Index of the drawn token in its sequence, for the random number.
        output_length: Output tokens so far, for ``min_tokens``.

    Raises:
        ValueError: The logits allow no token (all are NaN or minus infinity).
    """
    adjusted = _adjust(logits, sampling, counts, output_length)
    peak = adjusted.max()
    if not np.isfinite(peak):
        raise ValueError("the model's logits are not finite")
    if sampling.temperature < GREEDY_BELOW:
        return int(adjusted.argmax())
    candidates, weights = _candidates((adjusted - peak) / np.float32(sampling.temperature), sampling)
    cumulative = np.cumsum(weights.astype(np.float64))
    target = uniform(sampling.seed, sampling.sample_index, position) * cumulative[-1]
    return int(candidates[min(np.searchsorted(cumulative, target, side="right"), len(candidates) - 1)])


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1) that depends on its arguments alone (Philox, doi:10.1145/2063384.2063405)."""
    key = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF, sample_index], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())


def token_logprobs(logits: FloatArray, token: int, top: int) -> TokenLogprobs:
    """Raw log probabilities of a position.

    Args:
        logits: float32 [vocab], as the model gave them.
        token: The token to report.
        top: How many of the likeliest to report beside it.
    """
    exact = logits.astype(np.float64)
    peak = exact.max()
    log_total = peak + np.log(np.exp(exact - peak).sum())
    best = _largest(exact, top) if top else np.empty(0, np.int64)
    return TokenLogprobs(
        token=token,
        logprob=float(exact[token] - log_total),
        rank=int(np.count_nonzero(exact > exact[token])) + 1,
        top_tokens=best.astype(np.int32),
        top_logprobs=(exact[best] - log_total).astype(np.float32),
    )


def _adjust(logits: FloatArray, sampling: SlotSampling, counts: TokenCounts | None, output_length: int) -> FloatArray:
    too_short = output_length < sampling.min_tokens
    if counts is None and not too_short and not len(sampling.bias_tokens):
        return logits
    adjusted = logits.copy()
    if too_short:
        adjusted[sampling.suppress] = -np.inf
    adjusted[sampling.bias_tokens] += sampling.bias_values
    if counts is not None:
        seen = counts.seen
        penalty = np.float32(sampling.repetition_penalty)
        adjusted[seen] = np.where(adjusted[seen] > 0, adjusted[seen] / penalty, adjusted[seen] * penalty)
        adjusted -= np.float32(sampling.presence_penalty) * (counts.output > 0)
        adjusted -= np.float32(sampling.frequency_penalty) * counts.output
    return adjusted


def _candidates(shifted: FloatArray, sampling: SlotSampling) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Tokens that survive top_k, top_p and min_p, with unnormalized probabilities of which the largest is 1.

    Args:
        shifted: float32 [vocab], logits over temperature, less their maximum.
        sampling: The cuts.
    """
    vocab = len(shifted)
    weights = np.exp(shifted)
    if 0 < sampling.top_k < vocab:
        tokens = _largest(shifted, sampling.top_k)
        total = weights[tokens].sum(dtype=np.float64)
        tokens = tokens[: _nucleus(weights[tokens], sampling.top_p * total)]
    elif sampling.top_p < 1.0:
        enough = sampling.top_p * weights.sum(dtype=np.float64)
        size = min(SHORTLIST, vocab)
        tokens = _largest(shifted, size)
        while size < vocab and weights[tokens].sum(dtype=np.float64) < enough:
            size = min(size * 8, vocab)
            tokens = _largest(shifted, size)
        tokens = tokens[: _nucleus(weights[tokens], enough)]
    else:
        tokens = np.arange(vocab)
    kept = weights[tokens]
    if sampling.min_p > 0.0:
        likely = kept >= sampling.min_p
        tokens, kept = tokens[likely], kept[likely]
    return tokens, kept


def _nucleus(weights: FloatArray, enough: float) -> int:
    """How many of the descending weights it takes to reach ``enough``."""
    return int(np.searchsorted(np.cumsum(weights.astype(np.float64)), enough, side="left")) + 1


def _largest(values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """Indices of the largest values, descending; the smaller index first on a tie."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        indices = np.flatnonzero(values >= threshold)
    else:
        indices = np.arange(len(values))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order][:count]
