"""What binds a sample: the same whether its tokens are followed at once or aside."""

from __future__ import annotations

import random
import threading
from concurrent.futures import wait

import numpy as np
import pytest

from headrace.engine.sampling_params import SamplingParams
from headrace.errors import ConstraintError
from headrace.text import Tokenizer
from headrace.text.constraint import ConstraintMaker, OutputConstraint
from headrace.text.formats.catalog import formats
from headrace.text.grammar.sources import grammar_source

AMBIGUOUS = grammar_source("start: s\ns: s s | /[a-zA-Z ]/", field="grammar")
PLAIN = grammar_source('start: "(" (start | /[a-z]/)* ")"', field="grammar")


@pytest.fixture
def make(smollm2_tokenizer: Tokenizer) -> ConstraintMaker:
    return ConstraintMaker(smollm2_tokenizer, smollm2_tokenizer.vocab_size, formats()["generic"])


def constraint(make: ConstraintMaker, grammar: str | None, *stop: str) -> OutputConstraint:
    """One that is ready."""
    made = make(SamplingParams(grammar=grammar, stop=stop))
    assert made is not None
    settle(made)
    return made


def settle(made: OutputConstraint) -> None:
    """Wait until it is ready."""
    wait([future for future in (made._begun, made._prepared) if future is not None], timeout=60)
    assert made.ready


def drawn(made: OutputConstraint, tokenizer: Tokenizer, chance: random.Random) -> int:
    """A random one of the tokens allowed that end nothing."""
    mask = made.allowed()
    assert mask is not None
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return chance.choice([int(token) for token in allowed if token not in tokenizer.eos_token_ids])


@pytest.mark.parametrize("grammar", [AMBIGUOUS, PLAIN])
def test_what_is_prepared_is_what_is_found_at_once(
    make: ConstraintMaker, smollm2_tokenizer: Tokenizer, grammar: str
) -> None:
    """Masks, ends and stop strings; some tokens are prepared, some not."""
    for seed in range(6):
        chance = random.Random(seed)
        ahead, plain = constraint(make, grammar, "zz", "q"), constraint(make, grammar, "zz", "q")
        for _ in range(10):
            token = drawn(plain, smollm2_tokenizer, chance)
            assert ahead.complete is plain.complete is False
            if chance.random() < 0.7:
                ahead.prepare(token)
                settle(ahead)
            stop = plain.accept(token)
            assert ahead.accept(token) == stop
            if stop is not None or plain.complete:
                assert ahead.complete == plain.complete
                break
            assert np.array_equal(ahead.allowed(), plain.allowed())


def test_a_grammar_is_slow_while_its_masks_take_long(make: ConstraintMaker, smollm2_tokenizer: Tokenizer) -> None:
    """For all samples that follow it, those that begin too, until they are quick again."""
    one, other = constraint(make, AMBIGUOUS), constraint(make, AMBIGUOUS)
    matcher = one._matcher()
    assert matcher is not None
    grammar = matcher.grammar
    grammar.note_mask(0.1)
    assert (one.slow, other.slow) == (True, True)
    assert constraint(make, AMBIGUOUS).slow
    for _ in range(60):
        grammar.note_mask(1e-5)
    assert (one.slow, other.slow) == (False, False)
    assert not constraint(make, PLAIN).slow
    assert not constraint(make, None, "stop").slow


def test_what_a_sample_that_is_over_had_asked_for_is_not_done(make: ConstraintMaker) -> None:
    """Also its beginning; what may come first is found out once for all."""
    one = constraint(make, AMBIGUOUS)
    matcher = one._matcher()
    assert matcher is not None
    matcher.grammar.note_mask(0.1)
    held = threading.Event()
    make._aside.submit(held.wait)
    others = [make(SamplingParams(grammar=AMBIGUOUS)) for _ in range(3)]
    one.prepare(300)
    for each in (one, others[0], others[2]):
        assert each is not None
        assert not each.ready
        each.close()
    held.set()
    assert others[1] is not None
    settle(others[1])
    assert others[1].allowed() is one.allowed()
    assert one._prepared is not None
    assert one._prepared.cancelled()


def test_an_error_aside_is_told_when_the_token_is_accepted(make: ConstraintMaker, smollm2_tokenizer: Tokenizer) -> None:
    made = constraint(make, PLAIN)
    made.prepare(smollm2_tokenizer.encode("z", add_special_tokens=False)[0])
    settle(made)
    with pytest.raises(ConstraintError, match="followed further"):
        made.accept(smollm2_tokenizer.encode("z", add_special_tokens=False)[0])


def test_a_grammar_that_does_not_compile_says_so_to_its_own_sample(make: ConstraintMaker) -> None:
    made = constraint(make, 'start: "a" no_such_rule')
    with pytest.raises(ConstraintError, match="does not compile"):
        made.allowed()
    assert constraint(make, PLAIN).allowed() is not None
