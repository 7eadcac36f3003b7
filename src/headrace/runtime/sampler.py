"""Drawing tokens from logits: plain NumPy, one position at a time, so that a row never depends on its neighbours.

The order of operations is documented at ``SamplingParams``. This is the reference: ``native_sampler.py`` draws the same
tokens, bit for bit. For that, probabilities are whole numbers here, whose sums depend on no order, made of logits by
operations that every processor does alike.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError
from headrace.runtime.batch import FloatArray, IntArray, Mask, SlotSampling, TokenLogprobs

# As in vLLM: below it a temperature is none, and dividing by it would only overflow.
GREEDY_BELOW = 1e-5

# Tokens looked at before a full sort is paid for: nearly always enough to reach top_p.
SHORTLIST = 1024

# The weight of the likeliest token. Sums fit 63 bits for vocabularies up to 2**22.
ONE = 1 << 40

LOG2_E = 1.4426950408889634
# 2**r for r from -1/2 to 1/2 is 1 + r * (POWERS[0] + r * (POWERS[1] + ...)): minimax, relative error below 2.4e-10.
POWERS = (
    0.6931471838168765,
    0.24022650920782232,
    0.05550400375288354,
    0.009618056919446203,
    0.0013341951024261744,
    0.00015461367624448498,
    1.3359826850639156e-05,
)

WeightArray = npt.NDArray[np.int64]


class NotFinite(HeadraceError, ValueError):
    """No token can be drawn: the logits have a NaN or plus infinity, or nothing above minus infinity is allowed."""

    def __init__(self) -> None:
        super().__init__("no token can be drawn: the model's logits are not finite, or all of them are masked")


class TokenCounts:
    """What a slot has seen, for penalties.

    Attributes:
        output: int32 [vocab]: occurrences in the output.
        seen: bool [vocab]: in the prompt or the output.
        length: Tokens counted, prompt and output.
    """

    __slots__ = ("length", "output", "seen")

    def __init__(self, tokens: IntArray, prompt_length: int, vocab_size: int) -> None:
        self.output = np.bincount(tokens[prompt_length:], minlength=vocab_size).astype(np.int32)
        self.seen = np.zeros(vocab_size, np.bool_)
        self.seen[tokens] = True
        self.length = len(tokens)

    def add(self, token: int) -> None:
        """Count an output token."""
        self.output[token] += 1
        self.seen[token] = True
        self.length += 1


def needs_counts(sampling: SlotSampling) -> bool:
    """Whether these settings penalize tokens seen before."""
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def sample(
    logits: FloatArray,
    sampling: SlotSampling,
    counts: TokenCounts | None,
    *,
    position: int,
    output_length: int,
    mask: Mask | None = None,
) -> int:
    """Draw the token that follows a position.

    Args:
        logits: float32 [vocab], not modified.
        sampling: The slot's settings.
        counts: What the slot has seen; None if nothing is penalized.
        position: Index of the drawn token in its sequence, for the random number.
        output_length: Output tokens so far, for ``min_tokens``.
        mask: Tokens that may be drawn; None: all.

    Raises:
        NotFinite: The logits, as they are or after mask and penalties, allow no token.
    """
    adjusted = _adjust(logits, sampling, counts, output_length, mask)
    if adjusted is not logits:
        _peak(logits)
    _peak(adjusted)
    if sampling.temperature < GREEDY_BELOW:
        return int(adjusted.argmax())
    tokens, weights = _candidates(adjusted, sampling)
    cumulative = np.cumsum(weights)
    number = int(uniform(sampling.seed, sampling.sample_index, position) * 2.0**53)
    return int(tokens[np.searchsorted(cumulative, number * int(cumulative[-1]) >> 53, side="right")])


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A multiple of 2**-53 in [0, 1) that depends on its arguments alone (Philox, doi:10.1145/2063384.2063405)."""
    key = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF, sample_index], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=position)).random())


def token_logprobs(logits: FloatArray, token: int, top: int) -> TokenLogprobs:
    """Raw log probabilities of a position.

    Args:
        logits: float32 [vocab], as the model gave them.
        token: The token to report.
        top: How many of the likeliest to report beside it.

    Raises:
        NotFinite: The logits are no distribution.
    """
    log_total = _peak(logits) + math.log(int(token_weights(logits, 1.0).sum()) / ONE)
    best = _largest(logits, top) if top else np.empty(0, np.int64)
    return TokenLogprobs(
        token=token,
        logprob=float(logits[token]) - log_total,
        rank=int(np.count_nonzero(logits > logits[token])) + 1,
        top_tokens=best.astype(np.int32),
        top_logprobs=(logits[best].astype(np.float64) - log_total).astype(np.float32),
    )


def token_weights(logits: FloatArray, temperature: float) -> WeightArray:
    """Unnormalized probabilities: ``exp((logit - largest logit) / temperature)`` in units of 2**-40, int64 [vocab].

    Float64 additions and multiplications only, none contracted, then rounded to the nearest: equal wherever IEEE 754
    is. What is less likely than the likeliest token by more than 2**41 weighs nothing.

    Args:
        logits: float32 [vocab], the largest of them finite, none NaN.
        temperature: Positive.
    """
    x = (logits.astype(np.float64) - float(logits.max())) * (LOG2_E / temperature)
    np.maximum(x, -64.0, out=x)
    whole = np.rint(x)
    x -= whole
    y = np.full_like(x, POWERS[-1])
    for coefficient in (*POWERS[-2::-1], 1.0):
        y *= x
        y += coefficient
    # By 2**(whole + 40), made of its exponent's field, which rounds nothing.
    y *= (whole.astype(np.int64) + (1023 + 40) << 52).view(np.float64)
    return np.rint(y, out=y).astype(np.int64)


def _peak(logits: FloatArray) -> float:
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise NotFinite
    return peak


def allowed_tokens(mask: Mask, vocab_size: int) -> npt.NDArray[np.bool_]:
    """bool [vocab]: a mask's bits."""
    return np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").view(np.bool_)


def _adjust(
    logits: FloatArray,
    sampling: SlotSampling,
    counts: TokenCounts | None,
    output_length: int,
    mask: Mask | None = None,
) -> FloatArray:
    too_short = output_length < sampling.min_tokens
    if mask is None and counts is None and not too_short and not len(sampling.bias_tokens):
        return logits
    adjusted = logits.copy()
    if mask is not None:
        adjusted[~allowed_tokens(mask, len(logits))] = -np.inf
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


def _candidates(logits: FloatArray, sampling: SlotSampling) -> tuple[npt.NDArray[np.int64], WeightArray]:
    """Tokens that survive top_k, top_p and min_p, in order of their ids, and their weights.

    Of tokens with equal logits, the cuts keep those with smaller ids.

    Args:
        logits: float32 [vocab], adjusted.
        sampling: Temperature, not greedy, and cuts.
    """
    vocab = len(logits)
    weights = token_weights(logits, sampling.temperature)
    tokens = np.arange(vocab)
    if 0 < sampling.top_k < vocab:
        tokens = _largest(logits, sampling.top_k)
    if sampling.top_p < 1.0:
        enough = _share(sampling.top_p, int(weights[tokens].sum()))
        if len(tokens) == vocab:
            tokens = _shortlist(logits, weights, enough)
        tokens = tokens[: _nucleus(weights[tokens], enough)]
    survives = np.zeros(vocab, np.bool_)
    survives[tokens] = True
    if sampling.min_p > 0.0:
        survives &= weights >= math.ceil(sampling.min_p * ONE)
    tokens = np.flatnonzero(survives)
    return tokens, weights[tokens]


def _shortlist(logits: FloatArray, weights: WeightArray, enough: int) -> npt.NDArray[np.int64]:
    """The likeliest tokens, so many that their weights reach ``enough``; descending."""
    size = min(SHORTLIST, len(logits))
    while True:
        tokens = _largest(logits, size)
        if size == len(logits) or weights[tokens].sum() >= enough:
            return tokens
        size = min(size * 8, len(logits))


def _share(top_p: float, total: int) -> int:
    """The weight that a nucleus has to reach."""
    return min(math.ceil(top_p * float(total)), total)


def _nucleus(weights: WeightArray, enough: int) -> int:
    """How many of the descending weights it takes to reach ``enough``."""
    return int(np.searchsorted(np.cumsum(weights), enough, side="left")) + 1


def _largest(values: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """Indices of the largest values, descending; the smaller index first on a tie."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        indices = np.flatnonzero(values >= threshold)
    else:
        indices = np.arange(len(values))
    order = np.argsort(-values[indices], kind="stable")
    return indices[order][:count]
