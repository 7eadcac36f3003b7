import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.workload.arrivals import ArrivalLaw, start_times
from headrace.errors import InvalidInput

N = 20_000
erf = np.vectorize(math.erf)


def gaps(n=N, seed=0, **law):
    return np.diff(start_times(ArrivalLaw(**law), n, seed), prepend=0)


def distance(sample, cdf):
    """Kolmogorov's: the largest gap between the sample's distribution and a law's."""
    at = cdf(np.sort(sample))
    steps = np.arange(len(sample) + 1) / len(sample)
    return max((steps[1:] - at).max(), (at - steps[:-1]).max())


LIMIT = 1.63 / math.sqrt(N)  # exceeded by one sample of the law in a hundred; seeds are fixed


def test_constant_arrivals_are_one_gap_apart_from_the_first():
    assert (start_times(ArrivalLaw(kind="constant", rate=4), 5, 9) == [0.25, 0.5, 0.75, 1, 1.25]).all()


def test_poisson_gaps_are_exponential():
    assert distance(gaps(kind="poisson", rate=5), lambda x: 1 - np.exp(-5 * x)) < LIMIT


@pytest.mark.parametrize(
    ("shape", "cdf"),
    [
        (0.5, lambda x: erf(np.sqrt(0.5 * x))),
        (1, lambda x: 1 - np.exp(-x)),
        (2, lambda x: 1 - np.exp(-2 * x) * (1 + 2 * x)),
    ],
)
def test_gamma_gaps_follow_the_law_with_mean_one_over_the_rate(shape, cdf):
    assert distance(gaps(kind="gamma", rate=3, burstiness=shape) * 3, cdf) < LIMIT


@pytest.mark.parametrize("shape", [0.1, 0.25, 1, 4, 100])
def test_burstiness_keeps_the_mean_and_sets_the_variation(shape):
    found = gaps(200_000, kind="gamma", rate=10, burstiness=shape)
    spread = 1 / math.sqrt(shape)
    assert abs(found.mean() * 10 - 1) < 5 * spread / math.sqrt(len(found))
    # The variance of a sample variance: (kurtosis - 1) / n, with kurtosis 3 + 6/shape.
    assert abs((found.std() * 10 / spread) ** 2 - 1) < 5 * math.sqrt((2 + 6 / shape) / len(found))


def test_gaps_are_independent():
    found = gaps(kind="gamma", rate=1, burstiness=0.5)
    centred = found - found.mean()
    for lag in (1, 2, 10):
        assert abs((centred[lag:] * centred[:-lag]).mean() / found.var()) < 5 / math.sqrt(N)


LAWS = st.one_of(
    st.builds(dict, kind=st.sampled_from(["constant", "poisson"])),
    st.builds(dict, kind=st.just("gamma"), burstiness=st.floats(0.01, 1e4)),
)
RATES = st.floats(1e-3, 1e3)


@given(LAWS, RATES, st.integers(0, 2**64), st.integers(0, 300))
def test_every_rate_replays_one_pattern(law, rate, seed, n):
    unit = start_times(ArrivalLaw(rate=1, **law), n, seed)
    assert (start_times(ArrivalLaw(rate=rate, **law), n, seed) == unit / rate).all()
    assert (start_times(ArrivalLaw(rate=1, **law), n + 7, seed)[:n] == unit).all()


@given(LAWS, RATES, RATES, st.integers(0, 2**64), st.integers(0, 300))
def test_a_ramp_inverts_the_integral_of_the_rate(law, rate, end_rate, seed, n):
    unit = start_times(ArrivalLaw(rate=1, **law), n, seed)
    times = start_times(ArrivalLaw(rate=rate, end_rate=end_rate, **law), n, seed)
    assert times.shape == (n,)
    assert np.isfinite(times).all()
    assert (np.diff(times, prepend=0) >= 0).all()
    duration = 2 * n / (rate + end_rate)
    inside = np.minimum(times, duration)
    slope = (end_rate - rate) / duration if n else 0
    expected = rate * inside + slope * inside**2 / 2 + np.maximum(times - duration, 0) * end_rate
    np.testing.assert_allclose(expected, unit, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("rate", "end_rate"), [(2, 20), (20, 2)])
def test_the_windows_of_a_ramp_hold_what_the_rate_says(rate, end_rate):
    duration = 2 * N / (rate + end_rate)
    times = start_times(ArrivalLaw(kind="poisson", rate=rate, end_rate=end_rate), N, 3)
    counts, edges = np.histogram(times, 20, (0, duration))
    middles = (edges[1:] + edges[:-1]) / 2
    expected = (rate + (end_rate - rate) * middles / duration) * duration / 20
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    assert abs(times[-1] - duration) < 5 * math.sqrt(N) / min(rate, end_rate)


def test_a_constant_ramp_ends_when_it_should():
    times = start_times(ArrivalLaw(kind="constant", rate=1, end_rate=9), 50, 0)
    assert times[-1] == pytest.approx(10)
    # The rate grows by 0.8 a second: t + 0.4 t^2 = 1 has this root.
    assert times[0] == pytest.approx((math.sqrt(2.6) - 1) / 0.8)


def test_kinds_and_seeds_differ():
    poisson, other = gaps(50, kind="poisson", rate=1), gaps(50, seed=1, kind="poisson", rate=1)
    assert (poisson != other).any()
    assert start_times(ArrivalLaw(kind="poisson", rate=1), 0, 0).shape == (0,)


@pytest.mark.parametrize(
    ("law", "field"),
    [
        ({"kind": "uniform", "rate": 1}, "kind"),
        ({"kind": "poisson", "rate": 0}, "rate"),
        ({"kind": "poisson", "rate": math.nan}, "rate"),
        ({"kind": "poisson", "rate": math.inf}, "rate"),
        ({"kind": "poisson", "rate": 1, "end_rate": -1.0}, "end_rate"),
        ({"kind": "gamma", "rate": 1, "burstiness": 0.0}, "burstiness"),
        ({"kind": "gamma", "rate": 1, "burstiness": math.nan}, "burstiness"),
        ({"kind": "poisson", "rate": 1, "burstiness": 0.5}, "burstiness"),
    ],
)
def test_laws_out_of_range_are_refused(law, field):
    with pytest.raises(InvalidInput) as caught:
        ArrivalLaw(**law)
    assert caught.value.field == field


def test_negative_numbers_are_refused():
    law = ArrivalLaw(kind="poisson", rate=1)
    with pytest.raises(InvalidInput, match="sessions"):
        start_times(law, -1, 0)
    with pytest.raises(InvalidInput, match="seed"):
        start_times(law, 1, -1)
