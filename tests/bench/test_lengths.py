import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.workload.lengths import MOST, parse_lengths
from headrace.errors import InvalidInput

N = 20_000


def drawn(text, n=N, seed=0):
    return parse_lengths(text, "prompt_tokens").draw(np.random.default_rng(seed), n)


def test_a_number_is_itself():
    assert (drawn("512", 3) == [512, 512, 512]).all()


def test_uniform_takes_both_ends_and_all_between_equally_often():
    counts = np.bincount(drawn("uniform:5:8"), minlength=10)
    assert counts[[0, 1, 2, 3, 4, 9]].sum() == 0
    # Each count is binomial: 5 standard deviations.
    assert np.abs(counts[5:9] - N / 4).max() < 5 * np.sqrt(N * 3 / 16)


def test_normal_has_its_mean_and_deviation():
    lengths = drawn("normal:512:64")
    assert abs(lengths.mean() - 512) < 5 * 64 / np.sqrt(N)
    assert abs(lengths.std() / 64 - 1) < 5 / np.sqrt(2 * N)


def test_lognormal_has_its_median_and_sigma():
    lengths = drawn("lognormal:2000:0.8")
    logs = np.log(lengths)
    assert abs(np.median(logs) - np.log(2000)) < 5 * 0.8 * np.sqrt(np.pi / 2 / N)
    assert abs(logs.std() / 0.8 - 1) < 5 / np.sqrt(2 * N)


def test_choice_takes_each_equally_often():
    values, counts = np.unique(drawn("choice:128,512,2048"), return_counts=True)
    assert values.tolist() == [128, 512, 2048]
    assert np.abs(counts - N / 3).max() < 5 * np.sqrt(N * 2 / 9)


def test_lengths_are_clipped():
    assert drawn("normal:2:50").min() == 1
    assert drawn("normal:100:50:120").max() == 120
    assert drawn("lognormal:1:5").min() == 1
    assert drawn("lognormal:10000000:5").max() == MOST
    assert drawn("lognormal:512:2:1000").max() == 1000


def test_the_same_seed_draws_the_same():
    assert (drawn("lognormal:512:0.8", 50, 7) == drawn("lognormal:512:0.8", 50, 7)).all()
    assert (drawn("lognormal:512:0.8", 50, 7) != drawn("lognormal:512:0.8", 50, 8)).any()


BAD = """
0 -1 +1 1.5 1e3 0x10 1_000 nan inf 10000001 99999999999999999999999 ¹ ٣ abc uniform uniform: uniform:1 uniform:1:2:3
uniform:2:1 uniform:0:5 uniform:1:-5 uniform:1:20000000 uniform:a:b uniform:1.5:2 normal:512 normal:0:5 normal:5:0
normal:-5:1 normal:nan:1 normal:5:inf normal:5:1:0 normal:5:1:4 normal:5:1:9:9 normal:5:1: normal:5:1e2 lognormal:512
lognormal:512:0 lognormal:512:5.1 lognormal:0:1 lognormal:512:.8 lognormal:512:0.8:511 choice choice: choice:, choice:1,
choice:1,,2 choice:0 choice:1:2 choice:1,x exponential:5 Uniform:1:2 512: :512 512:512
""".split()


@pytest.mark.parametrize("text", ["", " ", "512 ", " 512", "uniform: 1:2", "512\n", "uniform:1:2\n", *BAD])
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(InvalidInput) as caught:
        parse_lengths(text, "prompt_tokens")
    assert caught.value.field == "prompt_tokens"
    assert len(str(caught.value)) < 400


def test_too_many_choices_are_refused():
    with pytest.raises(InvalidInput, match="10001"):
        parse_lengths("choice:" + ",".join(["1"] * 10_001), "user")


NUMBER = st.one_of(
    st.integers(-2, 2 * MOST).map(str),
    st.floats(0, 20).map("{:.4f}".format),
    st.sampled_from(["nan", "inf", "-inf", "1e5", "", " ", "0", "00", "007", "1.0", "٣", "1" * 5000]),
)
KIND = st.sampled_from(["uniform", "normal", "lognormal", "choice", "constant", ""])
NEARLY = st.builds(
    lambda kind, parts, separator: separator.join([kind, *parts]),
    KIND,
    st.lists(NUMBER, max_size=4),
    st.sampled_from([":", ","]),
)
CHOICES = st.lists(NUMBER, max_size=4).map(lambda parts: "choice:" + ",".join(parts))


@given(st.one_of(st.text(max_size=40), NUMBER, NEARLY, CHOICES), st.integers(0, 2**32))
def test_any_text_is_a_law_or_refused(text, seed):
    try:
        law = parse_lengths(text, "f")
    except InvalidInput as error:
        refusal = error
    else:
        refusal = None
    if refusal:
        assert refusal.field == "f"
        return
    lengths = law.draw(np.random.default_rng(seed), 50)
    assert lengths.dtype == np.int64
    assert lengths.shape == (50,)
    assert lengths.min() >= 1
    assert lengths.max() <= law.most <= MOST
    again = parse_lengths(str(law), "f")
    assert again == law
    assert str(again) == str(law)
