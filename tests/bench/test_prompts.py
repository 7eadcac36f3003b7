import random
import re
import time
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.workload.prompts import Lexicon, build_lexicon, common_words, draw, draw_prompt, ids, text
from headrace.bench.workload.records import Segment
from headrace.errors import InvalidInput
from headrace.models.opening import open_checkpoint
from headrace.text.tokenizer import load_tokenizer

WORDS = common_words()
LEXICON = Lexicon(np.arange(500, dtype=np.int64) * 7 + 3, tuple(f" {word}" for word in WORDS[:500]))


class Spelling:
    """A tokenizer that knows some words with the space before them, and spells all others; counts its calls."""

    def __init__(self, known):
        self.known = {f" {word}": 1000 + i for i, word in enumerate(known)}
        self.calls = 0

    def __call__(self, string):
        self.calls += 1
        parts = re.findall(r" ?[^ ]+| ", string)
        return [token for part in parts for token in ([self.known[part]] if part in self.known else part.encode())]


def check_exact(lexicon, tokenize, rng, n=300):
    for _ in range(5):
        chosen = rng.integers(0, len(lexicon), n)
        assert list(tokenize(text(lexicon, chosen))) == ids(lexicon, chosen).tolist()


def test_there_are_common_words_in_plain_lower_case():
    assert len(WORDS) == len(set(WORDS)) > 1000
    assert all(re.fullmatch("[a-z]+", word) for word in WORDS)


@pytest.mark.parametrize("unknown", [0, 1, 7, 400])
def test_a_lexicon_holds_the_words_that_are_one_token(unknown):
    missing = set(random.Random(1).sample(WORDS, unknown))
    tokenize = Spelling([word for word in WORDS if word not in missing])
    lexicon = build_lexicon(tokenize)
    assert set(lexicon.texts) == set(tokenize.known)
    assert lexicon.ids.tolist() == [tokenize.known[word] for word in lexicon.texts]
    assert not lexicon.bare_start
    assert tokenize.calls <= 20 + 16 * unknown
    check_exact(lexicon, tokenize, np.random.default_rng(0))


def test_an_anchor_that_is_several_tokens_itself_does_no_harm():
    tokenize = Spelling([word for word in WORDS if word != "the"])
    assert len(build_lexicon(tokenize)) == len(WORDS) - 1


def word_level(pre_tokenizer, known, prefix=""):
    vocabulary = {prefix + word: i + 1 for i, word in enumerate(known)} | {"<unk>": 0}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    backend.pre_tokenizer = pre_tokenizer
    return lambda string: backend.encode(string, add_special_tokens=False).ids


def test_words_that_a_tokenizer_does_not_know_are_not_taken_for_tokens():
    tokenize = word_level(tokenizers.pre_tokenizers.Whitespace(), WORDS[:300])
    lexicon = build_lexicon(tokenize)
    assert len(lexicon) == 300
    assert 0 not in lexicon.ids
    check_exact(lexicon, tokenize, np.random.default_rng(0))


def test_a_tokenizer_that_puts_a_space_before_a_text_is_given_none():
    metaspace = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
    plain = word_level(metaspace, WORDS, "▁")

    def tokenize(string):  # like SentencePiece, which keeps the second space of a beginning
        return plain(string) if not string.startswith(" ") else [0, *plain(string[1:])]

    lexicon = build_lexicon(tokenize)
    assert lexicon.bare_start
    assert len(lexicon) == len(WORDS)
    check_exact(lexicon, tokenize, np.random.default_rng(0))
    assert text(lexicon, np.array([0, 1])) == f"{WORDS[0]} {WORDS[1]}"
    assert text(lexicon, np.array([0, 1]), begins=False) == f" {WORDS[0]} {WORDS[1]}"


def test_a_byte_pair_tokenizer_works():
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=900, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([" ".join(WORDS[:200])] * 3, trainer)

    def tokenize(string):
        return backend.encode(string, add_special_tokens=False).ids

    lexicon = build_lexicon(tokenize)
    assert set(lexicon.texts) == {f" {word}" for word in WORDS if len(tokenize(f" {word}")) == 1}
    check_exact(lexicon, tokenize, np.random.default_rng(0))


def test_too_few_words_are_refused():
    with pytest.raises(InvalidInput, match=r"only 63 of .* words") as caught:
        build_lexicon(Spelling(WORDS[:63]))
    assert caught.value.field == "tokenizer"
    assert len(build_lexicon(Spelling(WORDS[:64]))) == 64
    with pytest.raises(InvalidInput):
        build_lexicon(lambda string: [])


def test_a_tokenizer_that_joins_words_is_refused():
    plain = Spelling(WORDS)
    pairs = {f" {a} {b}" for a, b in zip(WORDS[1::2], WORDS[::2], strict=False)}

    def tokenize(string):
        parts = [f" {part}" for part in string.split(" ")[1:]]
        joined = any(a + b in pairs for a, b in pairwise(parts))
        return plain(string)[: -1 if joined else None]

    with pytest.raises(InvalidInput, match="order"):
        build_lexicon(tokenize)


def test_a_beginning_token_is_noticed():
    plain = Spelling(WORDS)
    with pytest.raises(InvalidInput, match="special tokens"):
        build_lexicon(lambda string: [1, *plain(string)])


@given(st.text(max_size=20), st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**70), st.text(max_size=5))
def test_fewer_tokens_of_a_key_are_the_first_of_more(key, n, m, seed, salt):
    n, m = sorted((n, m))
    long = draw(LEXICON, seed, salt, Segment(key, m))
    assert long.dtype == np.int64
    assert long.shape == (m,)
    assert long.min() >= 0
    assert long.max() < len(LEXICON)
    assert (draw(LEXICON, seed, salt, Segment(key, n)) == long[:n]).all()
    for other in ((seed + 1, salt, key), (seed, salt + "x", key), (seed, salt, key + "x")):
        again = draw(LEXICON, other[0], other[1], Segment(other[2], m + 40))
        assert (again[: m + 20] != draw(LEXICON, seed, salt, Segment(key, m + 40))[: m + 20]).any()


def test_what_is_drawn_is_pinned():
    """A result of today can be repeated tomorrow."""
    assert draw(LEXICON, 1, "a", Segment("k", 5)).tolist() == [139, 60, 221, 298, 489]


def test_salt_and_key_do_not_run_into_each_other():
    one, other = draw(LEXICON, 1, "a b", Segment("c", 40)), draw(LEXICON, 1, "a", Segment("b c", 40))
    assert (one != other).any()


def test_all_words_are_drawn_equally_often():
    counts = np.bincount(draw(LEXICON, 0, "", Segment("k", 500_000)), minlength=500)
    statistic = ((counts - 1000) ** 2 / 1000).sum()
    assert abs(statistic - 499) < 5 * np.sqrt(2 * 499)


def test_keys_differ_from_the_first_word_on():
    firsts = [int(draw(LEXICON, 0, "", Segment(f"block {i}", 1))[0]) for i in range(20_000)]
    counts = np.bincount(firsts, minlength=500)
    assert abs(((counts - 40) ** 2 / 40).sum() - 499) < 5 * np.sqrt(2 * 499)


def test_a_prompt_is_its_segments_in_order():
    segments = (Segment("a", 3), Segment("b", 2))
    prompt = draw_prompt(LEXICON, 0, "", segments)
    assert prompt.tolist() == [i for segment in segments for i in draw(LEXICON, 0, "", segment).tolist()]
    assert draw_prompt(LEXICON, 0, "", ()).shape == (0,)


def test_long_prompts_are_drawn_quickly():
    begin = time.process_time()
    for i in range(100):
        chosen = draw(LEXICON, 0, "", Segment(f"k{i}", 12_000))
        ids(LEXICON, chosen)
        text(LEXICON, chosen)
    assert time.process_time() - begin < 2  # 0.1 s on the machine it was written on


@pytest.mark.model
def test_the_models_tokenizer_reads_exactly_the_ids(smollm2):
    tokenizer = load_tokenizer(open_checkpoint(smollm2).tokenizer)

    def tokenize(string):
        return tokenizer.encode(string, add_special_tokens=False)

    lexicon = build_lexicon(tokenize)
    assert len(lexicon) > 1500
    check_exact(lexicon, tokenize, np.random.default_rng(0), 5000)
    prompt = draw_prompt(lexicon, 3, "round 1", [Segment(f"block {i}", 1 + i % 5) for i in range(200)])
    assert tokenize(text(lexicon, prompt)) == ids(lexicon, prompt).tolist()
    assert tokenize("Words:" + text(lexicon, prompt, begins=False)) == [
        *tokenize("Words:"),
        *ids(lexicon, prompt).tolist(),
    ]
