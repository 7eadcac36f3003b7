"""Engines without a model, and what a test may tell them: what steps cost, and what lies behind the arena."""

import time

from byte_executor import VOCAB, ByteExecutor
from tier_doubles import Clock, Crew

from headrace.engine.engine import Engine
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.memory.state_memory import StateMemory
from headrace.memory.tiered_memory import TieredMemory, tier_groups
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.store import TierLimits, TierStore
from headrace.models.spec import ModelSpec


def greedy(count):
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def byte_engine(groups, *, slabs, context, page=4, slots=4, step=32, ahead=1, clock=time.monotonic, **how):
    memory = StateMemory(groups, nbytes=slabs * groups[0].form.slab_bytes, page_tokens=page, poison=True, clock=clock)
    return Engine(
        ModelSpec("m", "none", VOCAB, 1, context, (), (), 0),
        ByteExecutor(memory, slots, context, ahead),
        memory,
        SchedulerLimits(slots, step, None),
        context_length=context,
        constraint_for=lambda params: None,
        **how,
    )


def teach_cost(engine, *, step=0.0, token=0.0, pair=0.0):
    """Have an engine learn the seconds of a step, a token and a pair of attention, and nothing else from now on."""
    cost = engine.scheduler.cost
    for tokens in range(1, 101):
        for pairs in (10 * tokens, 1_000 * tokens):
            cost.learn(tokens, pairs, step + token * tokens + pair * pairs)
    assert cost.coefficients
    cost.learn = lambda tokens, pairs, seconds: None


class Ticking(Clock):
    """Goes on by as much whenever somebody looks."""

    def __init__(self, tick):
        super().__init__()
        self.tick = tick

    def __call__(self):
        self.now += self.tick
        return self.now


def give_host_tier(engine, transfer_seconds):
    """Put host memory behind an engine's arena; the crew that does its transfers, each of which takes so long."""
    crew, executor = Crew(), engine.executor
    store = TierStore(
        tier_groups(engine.memory.groups),
        engine.memory.page_tokens,
        ArenaBytes(executor.buffer, executor.forms),
        Identity("weights", "layout", "numerics"),
        TierLimits(100_000),
        hands=crew,
        clock=Ticking(transfer_seconds),
    )
    engine.scheduler.roster.tiers = TieredMemory(engine.memory, store, clock=Clock())
    crew.finish()  # it measures itself
    return crew
