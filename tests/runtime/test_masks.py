"""Executors draw each row under its own mask, whatever else is in the batch."""

import dataclasses

import numpy as np
import pytest
from automata import Anything
from engines import engine_for, record_logits, request, run
from sampling import mask_of
from tiny import make

from headrace.engine.outcome import slot_sampling
from headrace.engine.sampling_params import SamplingParams
from headrace.runtime.sampler import sample

VOCAB, COUNT = 256, 12


class Chance(Anything):
    """Allows some tokens at random, now and then all; remembers which."""

    def __init__(self, seed):
        self._rng, self.masks = np.random.default_rng(seed), []

    def allowed(self):
        share = self._rng.choice([0.01, 0.1, 0.9, 1.0])
        mask = None if share == 1 else mask_of([int(self._rng.integers(VOCAB)), *self.some(share)], VOCAB)
        self.masks.append(mask)
        return mask

    def some(self, share):
        return np.flatnonzero(self._rng.random(VOCAB) < share)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make("llama3").save_pretrained(path)
    return path


def turn_round(engine):
    """Have the rows of batches in the opposite order, so that those that draw nothing come first."""
    own = engine.scheduler.plan

    def plan(step):
        planned = own(step)
        if planned is None or planned.batch.decode or not planned.rows:
            return planned
        batch = planned.batch
        pieces = np.split(batch.tokens, batch.offsets[1:-1])[::-1]
        turned = dataclasses.replace(
            batch,
            slots=batch.slots[::-1],
            starts=batch.starts[::-1],
            offsets=np.cumsum([0, *map(len, pieces)], dtype=np.int32),
            tokens=np.concatenate(pieces),
            sample=batch.sample[::-1],
        )
        return planned._replace(batch=turned, rows=planned.rows[::-1])

    engine.scheduler.plan = plan


@pytest.mark.parametrize("executor", ["eager", "compiled"])
def test_each_row_is_drawn_under_its_mask(folder, executor):
    """Beside rows without masks, pieces of prompts that draw nothing, and prompts whose log probabilities are asked."""
    made = {}

    def chance(params):
        return made.setdefault(params.seed, Chance(params.seed)) if params.grammar else None

    engine = engine_for(
        folder, executor=executor, recipe="float32", max_batch_tokens=24, constraint_for=chance, jump_forward=False
    )
    turn_round(engine)
    logits, rng = record_logits(engine), np.random.default_rng(0)
    params = [
        SamplingParams(
            temperature=i % 2,
            top_p=0.95,
            max_tokens=COUNT,
            seed=i,
            logprobs=(None, 2)[i % 2],
            prompt_logprobs=(None, None, 1)[i % 3],
            grammar=(None, "x", "x")[i % 3],
        )
        for i in range(9)
    ]
    prompts = [rng.integers(3, VOCAB, int(rng.integers(1, 60))).tolist() for _ in params]
    results = run(engine, *[request(i, prompt, params[i]) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        result, sampling = results[i, 0], slot_sampling(params[i], i, 0, frozenset())
        assert len(result.tokens) == COUNT or result.tokens[-1] == 2
        for k, token in enumerate(result.tokens):
            position, mask = len(prompt) + k, made[i].masks[k] if i in made else None
            drawn = sample(logits[i, 0, position], sampling, None, position=position, output_length=k, mask=mask)
            assert token == drawn
        assert result.prompt_logprobs is None or len(result.prompt_logprobs) == len(prompt) - 1
    assert engine.stats().masked_tokens > 30
