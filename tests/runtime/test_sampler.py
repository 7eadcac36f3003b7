"""The sampler against Transformers' logits processors, and its random numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling import mask_of
from transformers.generation import logits_process as hf

from headrace.runtime.batch import SlotSampling
from headrace.runtime.sampler import TokenCounts, _adjust, _candidates, sample, token_logprobs, uniform

VOCAB = 300

logit_rows = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)
)


def kept_by_ours(logits, **settings_):
    """Token to probability, after cutting."""
    sampling = SlotSampling(**settings_)
    tokens, weights = _candidates(logits, sampling)
    return dict(zip(tokens.tolist(), weights / weights.sum(), strict=True))


def kept_by_transformers(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    scores = torch.from_numpy(logits)[None].double() / temperature
    if top_k:
        scores = hf.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = hf.TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = hf.MinPLogitsWarper(min_p)(None, scores)
    probabilities = scores.softmax(-1)[0].numpy()
    return {i: p for i, p in enumerate(probabilities.tolist()) if p > 0}


@given(
    logit_rows,
    st.floats(0.3, 3),
    st.sampled_from([0, 1, 5, 40, 299, 300, 5000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_cuts_equal_transformers(logits, temperature, top_k, top_p, min_p):
    arguments = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    ours, theirs = kept_by_ours(logits, **arguments), kept_by_transformers(logits, **arguments)
    assert ours.keys() == theirs.keys()
    for token, probability in ours.items():
        assert probability == pytest.approx(theirs[token], rel=1e-9, abs=2**-40)


def test_top_p_beyond_the_shortlist_equals_a_full_sort():
    logits = np.random.default_rng(0).normal(0, 0.01, 5000).astype(np.float32)
    ours = kept_by_ours(logits, top_p=0.9)
    theirs = kept_by_transformers(logits, top_p=0.9)
    assert ours.keys() == theirs.keys()
    assert len(ours) > 1024


@given(
    logit_rows,
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    st.integers(0, 40),
    st.sampled_from([1.0, 1.3, 0.7]),
)
def test_repetition_penalty_equals_transformers(logits, tokens, prompt_length, penalty):
    prompt_length = min(prompt_length, len(tokens))
    counts = TokenCounts(np.array(tokens, np.int32), prompt_length, VOCAB)
    ours = _adjust(logits, SlotSampling(repetition_penalty=penalty), counts, len(tokens) - prompt_length)
    processor = hf.RepetitionPenaltyLogitsProcessor(penalty)
    theirs = processor(torch.tensor([tokens]), torch.from_numpy(logits.copy())[None])[0]
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_presence_and_frequency_count_output_only():
    """OpenAI's formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence, over sampled tokens."""
    logits = np.zeros(VOCAB, np.float32)
    counts = TokenCounts(np.array([7, 7, 8, 9, 9, 9], np.int32), 3, VOCAB)
    adjusted = _adjust(logits, SlotSampling(presence_penalty=0.5, frequency_penalty=0.25), counts, 3)
    assert adjusted[[7, 8, 9, 10]].tolist() == [0, 0, -1.25, 0]
    counts.add(7)
    adjusted = _adjust(logits, SlotSampling(presence_penalty=0.5, frequency_penalty=0.25), counts, 4)
    assert adjusted[[7, 9]].tolist() == [-0.75, -1.25]


def test_bias_and_minimum_length():
    logits = np.zeros(VOCAB, np.float32)
    logits[5] = 10
    bias = {"bias_tokens": np.array([3, 5], np.int32), "bias_values": np.array([4, 100], np.float32)}
    sampling = SlotSampling(temperature=0, suppress=np.array([5], np.int32), min_tokens=2, **bias)
    assert sample(logits, sampling, None, position=9, output_length=1) == 3
    assert sample(logits, sampling, None, position=9, output_length=2) == 5


@given(logit_rows, st.integers(0, 2**63 - 1), st.integers(0, 100_000))
def test_draws_follow_the_distribution_by_inverse_transform(logits, seed, position):
    token = sample(logits, SlotSampling(seed=seed), None, position=position, output_length=0)
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    cumulative = np.cumsum(probabilities) / probabilities.sum()
    draw = uniform(seed, 0, position)
    assert (cumulative[token - 1] if token else 0) <= draw + 1e-5
    assert draw <= cumulative[token] + 1e-5


def test_frequencies_fit_a_chi_square_test():
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    draws = [sample(logits, SlotSampling(seed=3), None, position=i, output_length=0) for i in range(4000)]
    expected = np.array([0.5, 0.25, 0.15, 0.1]) * len(draws)
    chi = ((np.bincount(draws, minlength=4) - expected) ** 2 / expected).sum()
    assert chi < 16.27  # 3 degrees of freedom, 0.1 %


def test_random_numbers_depend_on_seed_sample_and_position_alone():
    numbers = {(s, i, p): uniform(s, i, p) for s in (0, 1, -1) for i in (0, 1) for p in (0, 1, 2)}
    assert len(set(numbers.values())) == len(numbers)
    assert numbers == {key: uniform(*key) for key in reversed(numbers)}
    assert all(0 <= x < 1 for x in numbers.values())


@given(logit_rows, st.integers(0, VOCAB - 1), st.integers(0, 20))
def test_logprobs_equal_log_softmax(logits, token, top):
    entry = token_logprobs(logits, token, top)
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    assert entry.logprob == pytest.approx(expected[token], abs=1e-9)
    assert entry.rank == (expected > expected[token]).sum() + 1
    best = np.argsort(-expected, kind="stable")[:top]
    assert entry.top_tokens.tolist() == best.tolist()
    np.testing.assert_allclose(entry.top_logprobs, expected[best], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_logits_without_a_token_are_an_error(value):
    with pytest.raises(ValueError, match="not finite"):
        sample(np.full(VOCAB, value, np.float32), SlotSampling(), None, position=0, output_length=0)


@given(logit_rows, st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=40), st.sampled_from([0.0, 1.0]))
def test_a_mask_leaves_the_distribution_of_what_is_allowed(logits, tokens, temperature):
    """The same draw as from the allowed tokens' own logits: those are in the order of their ids."""
    mask, allowed = mask_of(tokens, VOCAB), sorted(tokens)
    sampling = SlotSampling(temperature=temperature, top_k=20, top_p=0.9, min_p=0.01, seed=4)
    for position in range(10):
        drawn = sample(logits, sampling, None, position=position, output_length=0, mask=mask)
        assert drawn == allowed[sample(logits[allowed], sampling, None, position=position, output_length=0)]


def test_a_mask_comes_before_bias_and_beside_the_minimum_length():
    bias = {"bias_tokens": np.array([5], np.int32), "bias_values": np.array([100], np.float32)}
    sampling = SlotSampling(temperature=0, suppress=np.array([7], np.int32), min_tokens=2, **bias)
    where = {"position": 9, "mask": mask_of([3, 7], VOCAB)}
    logits = np.arange(VOCAB, dtype=np.float32)
    assert sample(logits, sampling, None, output_length=1, **where) == 3
    assert sample(logits, sampling, None, output_length=2, **where) == 7
    for tokens in ([], [7]):
        with pytest.raises(ValueError, match="masked"):
            sample(logits, sampling, None, position=9, output_length=1, mask=mask_of(tokens, VOCAB))


def test_ties_go_to_the_smallest_id():
    logits = np.array([1, 2, 2, 2], np.float32)
    assert sample(logits, SlotSampling(temperature=0), None, position=0, output_length=0) == 1
    assert set(kept_by_ours(logits, top_k=2)) == {1, 2}
