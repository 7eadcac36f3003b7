"""Engines for tests, and how to run requests on them."""

from dataclasses import dataclass, field

import numpy as np
import torch

from headrace.engine.messages import Generate
from headrace.engine.report import pack, unpack
from headrace.engine.sampling_params import SamplingParams
from headrace.fleet.assembly import build_engine
from headrace.fleet.options import EngineOptions
from headrace.runtime.batch import NO_MASKS

DEFAULTS: dict = {}  # options of every engine, for tests that run on several executors
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def engine_for(path, *, pages=None, constraint_for=lambda params: None, **options):
    """An engine in debug mode; ``pages`` sizes its KV memory."""
    if pages is not None:
        from headrace.models.opening import open_checkpoint
        from headrace.models.registry import load_spec
        from headrace.runtime.state_layout import state_layouts

        (layout,) = state_layouts(load_spec(open_checkpoint(path), "m"), 4)
        options["kv_memory"] = pages * layout.page_bytes
    # Steps that hang on time would cut prompts elsewhere on a busy machine, and PyTorch rounds by the cut.
    usual = {"threads": torch.get_num_threads(), "debug": True, "kv_memory": 64 << 20, "max_step_ms": 0}
    options = {**usual, **DEFAULTS, **options}
    if options.get("executor") == "eager":
        options = {name: value for name, value in options.items() if name not in ("recipe", "numerics")}
    return build_engine(EngineOptions(path=str(path), name="test", **options), constraint_for)[0]


def request(number, prompt, params=GREEDY, **kwargs):
    return Generate(request=number, prompt=np.array(prompt, "<i4").tobytes(), params=params, **kwargs)


@dataclass
class Result:
    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list | None = None
    cached_tokens: int | None = None
    finish: object = None
    embedding: np.ndarray | None = None


def collect(engine, results, deltas):
    """Add deltas, as they come out of the report that a replica sends of them."""
    for delta in unpack(pack(deltas, engine.stats())):
        result = results.setdefault((delta.request, delta.index), Result())
        assert result.finish is None, "a delta after the end"
        result.tokens += delta.tokens
        result.logprobs += delta.logprobs or []
        if delta.prompt_logprobs is not None:
            assert result.prompt_logprobs is None
            result.prompt_logprobs = delta.prompt_logprobs
        if delta.cached_tokens is not None:
            assert result.cached_tokens is None
            result.cached_tokens = delta.cached_tokens
        if delta.embedding is not None:
            assert (delta.tokens, delta.finish.reason) == ([], "stop")
            result.embedding = np.frombuffer(delta.embedding, "<f4")
        result.finish = delta.finish


def run(engine, *messages, check=True, most_steps=100_000):
    """Add requests, step until all are done, check the invariants after every step; results by (request, index)."""
    results = {}
    for message in messages:
        collect(engine, results, engine.add(message))
    for _ in range(most_steps):
        if not engine.has_work:
            break
        collect(engine, results, engine.step())
        if check:
            engine.check()
    assert not engine.has_work, "the engine did not finish"
    return results


def record_logits(engine):
    """Record the logits behind every drawn token: a dictionary from (request, index, position)."""
    seen = {}
    own = engine.executor.collect

    def note(slot, logits, position):
        sequence = slots[slot]
        seen[sequence.request, sequence.index, position] = logits.copy()

    def collect(ticket, masks=NO_MASKS):
        # Steps are planned ahead: whose slot it is when the batch runs is what counted when it was planned.
        rows, batch = following[ticket.step]
        slots.update(zip(batch.slots.tolist(), (sequence for sequence, _ in rows), strict=True))
        return own(ticket, masks)

    def plan(step):
        planned = own_plan(step)
        if planned is not None:
            following[step] = planned.rows, planned.batch
        return planned

    slots, following, own_plan = {}, {}, engine.scheduler.plan
    engine.executor.collect, engine.scheduler.plan = collect, plan

    def spy(slot, logits, position, *mask):
        note(slot, logits, position)
        return draw(slot, logits, position, *mask)

    def spy_on_rows(slots, logits, positions, *masks):
        for row in zip(slots, logits, positions.tolist(), strict=True):
            note(*row)
        return draw(slots, logits, positions, *masks)

    native = hasattr(engine.executor, "sampler")
    owner = engine.executor.sampler if native else engine.executor.slots
    draw = owner.draw
    owner.draw = spy_on_rows if native else spy
    return seen


@torch.no_grad()
def reference_logits(model, tokens):
    """float32 [len(tokens), vocab]: Transformers' logits after each token."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


@torch.no_grad()
def reference_embedding(model, tokens, pooling):
    """float32 [hidden]: the mean, or the last, of Transformers' normalized hidden vectors."""
    trunk = getattr(model, model.base_model_prefix)
    hidden = trunk(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0].double()
    return (hidden.mean(0) if pooling == "mean" else hidden[-1]).float().numpy()


def assert_matches_reference(model, prompts, results, logits, *, atol=1e-3, near=1e-3):
    """Greedy tokens and the logits behind them equal the reference's; a token may differ only at a near-tie.

    Every token is compared given the tokens before it, so one pass over prompt and output covers the sample.

    Returns:
        Near-ties at which the token differed.
    """
    ties = 0
    for number, prompt in enumerate(prompts):
        output = results[number, 0].tokens
        reference = reference_logits(model, list(prompt) + output[:-1])
        for i, token in enumerate(output):
            position = len(prompt) + i
            expected = reference[position - 1]
            np.testing.assert_allclose(logits[number, 0, position], expected, atol=atol, rtol=0)
            if token != expected.argmax():
                best = np.sort(expected)[-2:]
                assert best[1] - best[0] <= near, f"prompt {number}, output {i}: {token}, not {expected.argmax()}"
                ties += 1
    return ties
