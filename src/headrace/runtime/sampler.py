"""Drawing tokens from logits: plain NumPy, one position at a time, so that a row never depends on its neighbours.

The order of operations is documented at ``SamplingParams``. This is the reference; a compiled sampler is checked
against it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.runtime.batch import FloatArray, IntArray, SlotSampling, TokenLogprobs

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
    if not np.isfinite(adjusted.max()):
        raise ValueError("the model's logits are not finite")
    if sampling.temperature == 0.0:
        return int(adjusted.argmax())
    candidates, weights = _candidates(adjusted.astype(np.float64) / sampling.temperature, sampling)
    cumulative = np.cumsum(weights)
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
    suppress = sampling.suppress if output_length < sampling.min_tokens else ()
    if not (suppress or sampling.logit_bias or counts):
        return logits
    adjusted = logits.copy()
    adjusted[list(suppress)] = -np.inf
    for token, bias in sampling.logit_bias:
        adjusted[token] += np.float32(bias)
    if counts is not None:
        seen = counts.seen
        penalty = np.float32(sampling.repetition_penalty)
        adjusted[seen] = np.where(adjusted[seen] > 0, adjusted[seen] / penalty, adjusted[seen] * penalty)
        adjusted -= np.float32(sampling.presence_penalty) * (counts.output > 0)
        adjusted -= np.float32(sampling.frequency_penalty) * counts.output
    return adjusted


def _candidates(
    scaled: npt.NDArray[np.float64], sampling: SlotSampling
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Tokens that survive top_k, top_p and min_p, likeliest first where cut, with unnormalized probabilities."""
    k, vocab = sampling.top_k, len(scaled)
    cut_k = 0 < k < vocab
    if not cut_k and sampling.top_p >= 1.0:
        tokens = np.arange(vocab)
        weights = np.exp(scaled - scaled.max())
    else:
        tokens = _largest(scaled, k if cut_k else min(SHORTLIST, vocab))
        weights = np.exp(scaled[tokens] - scaled[tokens[0]])
        total = weights.sum() if cut_k else np.exp(scaled - scaled[tokens[0]]).sum()
        if sampling.top_p < 1.0:
            if not cut_k and weights.sum() < sampling.top_p * total:
                tokens = _largest(scaled, vocab)
                weights = np.exp(scaled[tokens] - scaled[tokens[0]])
            keep = np.searchsorted(np.cumsum(weights), sampling.top_p * total, side="left") + 1
            tokens, weights = tokens[:keep], weights[:keep]
    if sampling.min_p > 0.0:
        kept = weights >= sampling.min_p  # the largest weight is 1
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Indices of the largest values, descending; the smaller index first on a tie."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        indices = np.flatnonzero(values >= threshold)
    else:
        indices = np.arange(len(values))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order][:count]
