"""Constraints without text: walks over random automata whose letters are tokens."""

from random import Random

import numpy as np
from sampling import mask_of

from headrace.errors import ConstraintError
from headrace.runtime.sampler import allowed_tokens


class Anything:
    """A constraint that allows all."""

    ready = True
    slow = False
    complete = False

    def allowed(self):
        return None

    def accept(self, token):
        return None

    def close(self):
        pass


class Automaton:
    """Deterministic, of runs of states: some force a token each, some allow few, some all, and some are the end.

    Args:
        seed: Of its random numbers.
        vocab: Size of the vocabulary.
        literal: Most forced tokens in a run.
        ends: Whether there are ends.
    """

    def __init__(self, seed, vocab, literal=6, ends=True):
        rng = Random(seed)
        self.seed, self.vocab = seed, vocab
        self.masks = []  # None: any token; nothing allowed: the end
        kinds = ["forced", "forced", "few", "few", "all", "any", *(["end"] if ends else [])]
        while len(self.masks) < 12:
            kind = rng.choice(kinds)
            for _ in range(rng.randint(1, literal) if kind == "forced" else 1):
                count = {"forced": 1, "few": rng.randint(2, 9), "all": vocab, "any": vocab, "end": 0}[kind]
                mask = mask_of(rng.sample(range(vocab), min(count, vocab)), vocab)
                self.masks.append(None if kind == "any" else mask)

    def next(self, state, token):
        """The state behind a token: the next one of a literal, or any."""
        mask = self.masks[state]
        if mask is not None and allowed_tokens(mask, self.vocab).sum() == 1:
            return (state + 1) % len(self.masks)
        return Random(f"{self.seed} {state} {token}").randrange(len(self.masks))


class Walk:
    """Follows an automaton, and says so if it is not followed.

    Args:
        automaton: The automaton.
        asked: How often it is to be asked before it is ready.
        lag: How often behind a token that it prepares; 0: it is never slow, else now and then.
    """

    def __init__(self, automaton, asked=0, lag=0):
        self._automaton, self._state, self._asked, self._lag = automaton, 0, asked, lag
        self._prepared, self._turns = None, 0
        self._buffer = mask_of([], automaton.vocab)

    @property
    def ready(self):
        self._asked -= 1
        return self._asked < 0

    @property
    def slow(self):
        self._turns += 1  # others that share its grammar may make it slow, or quick, at any time
        return self._lag > 0 and self._turns % 7 > 2

    @property
    def complete(self):
        mask = self._automaton.masks[self._state]
        return mask is not None and not mask.any()

    def allowed(self):
        """In the same memory each time, as the protocol allows."""
        mask = self._automaton.masks[self._state]
        if mask is None:
            return None
        self._buffer[:] = mask
        return self._buffer

    def prepare(self, token):
        self._take(token)
        self._prepared, self._asked = token, self._lag

    def accept(self, token):
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            self._take(token)
        else:
            assert self._asked < 0, "it was not ready"
            assert token == prepared, "it has prepared another token"

    def close(self):
        """Nothing is asked of it any more."""
        self._automaton = None

    def _take(self, token):
        mask = self._automaton.masks[self._state]
        if mask is not None and not allowed_tokens(mask, self._automaton.vocab)[token]:
            raise ConstraintError(f"token {token} is not allowed")
        self._state = self._automaton.next(self._state, token)
        self._buffer[:] = 0xAAAAAAAA  # whoever still reads the last mask shall notice


def walks(vocab, **how):
    """A constraint factory: a grammar is the seed of an automaton, how often it is to be asked first, and its lag."""
    known = {}

    def make(params):
        if params.grammar is None:
            return None
        seed, asked, lag = (*map(int, params.grammar.split()), 0, 0)[:3]
        automaton = known.setdefault(seed, Automaton(seed, vocab, **how))
        return Walk(automaton, asked, lag)

    return make


def followed(walk, tokens):
    """Whether tokens follow a walk up to their last, and no further than its end."""
    for token in tokens:
        if walk.complete:
            return False
        walk.accept(token)
    return True


def forced(automaton, tokens):
    """How many of the tokens of a walk behind the first were the only ones allowed."""
    state, count = automaton.next(0, tokens[0]) if tokens else 0, 0
    for token in tokens[1:]:
        mask = automaton.masks[state]
        count += mask is not None and int(np.bitwise_count(mask).sum()) == 1
        state = automaton.next(state, token)
    return count
