"""Pages are moved together where that makes room, no more of them than need be, and nobody notices."""

from random import Random

import numpy as np
import pytest
from byte_executor import ByteExecutor, expected
from engines import collect, engine_for, record_logits, request, run
from families import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from stirring import stir

from headrace.engine.engine import Engine
from headrace.engine.sampling_params import SamplingParams
from headrace.engine.scheduler import SchedulerLimits
from headrace.memory.commands import PageCopy
from headrace.memory.page_form import PageForm
from headrace.memory.state_memory import Holding, MemoryGroup, StateMemory
from headrace.models.spec import ModelSpec

PAGE, SLAB = 4, 240
WIDE, NARROW = PageForm.of(1, [(1, 40)]), PageForm.of(1, [(1, 16)])
STATE = PageForm.of(1, [(1, 112)])  # 16 bytes of a slab are left over
KINDS = {"full": (True, WIDE, 0), "window": (True, NARROW, 7), "state": (False, STATE, 0)}
# Steps that do not depend on how long steps take: eager execution is the same to the last bit for equal batches alone.
STEPS = {"max_batch_tokens": 40, "max_step_ms": 0}
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def memory(slabs, kinds=("full", "window", "state")):
    groups = [MemoryGroup(by_token, form.in_slabs(SLAB), window) for by_token, form, window in map(KINDS.get, kinds)]
    return StateMemory(groups, nbytes=slabs * SLAB, page_tokens=PAGE, prefix_cache=False)


def gross_bytes(pool, pages):
    """Bytes of pages, with their part of what is left over in a slab."""
    return pages * pool.form.slab_bytes / pool.form.slab_pages


def free_bytes(mem):
    return mem.arena.nbytes - sum(gross_bytes(pool, pool.held) for pool in mem.pools)


def drop(mem, held, group, keep):
    """Give back the pages of a row for which ``keep`` is false, as a window would."""
    row = held.rows[group]
    mem.pools[group].release(row[~keep])
    held.rows[group] = row[keep]


def assert_grows(mem, tokens, holdings):
    """Whatever is free, beyond a slab a pool that may be partly used, can be had; few bytes move for it."""
    pages = -(-tokens // PAGE)
    counts = [pages if group.by_token else 1 for group in mem.groups]
    wanted = sum(gross_bytes(pool, count) for pool, count in zip(mem.pools, counts, strict=True))
    enough = free_bytes(mem) >= wanted + len(mem.pools) * SLAB
    opened = sum(pool.slabs_for(count) for pool, count in zip(mem.pools, counts, strict=True))
    mem.commands()
    held = Holding()
    got = mem.grow(held, tokens)
    copies = [command for command in mem.commands() if isinstance(command, PageCopy)]
    assert sum(mem.pools[copy.group].form.page_bytes for copy in copies) <= opened * SLAB
    mem.check([*holdings, held])
    assert got is not None or not enough, "there is no room although there should be"
    return held if got is not None else None


@settings(max_examples=150, deadline=None)
@given(st.integers(6, 40), st.data())
def test_what_is_free_can_be_had(slabs, data):
    mem = memory(slabs)
    holdings = []
    for _ in range(data.draw(st.integers(1, 40))):
        if holdings and data.draw(st.booleans()):
            held = data.draw(st.sampled_from(holdings))
            group = data.draw(st.sampled_from([0, 1]))
            keep = data.draw(st.lists(st.booleans(), min_size=len(held.rows[group]), max_size=len(held.rows[group])))
            drop(mem, held, group, np.array(keep, np.bool_))
            mem.check(holdings)
        elif (held := assert_grows(mem, data.draw(st.integers(1, 60)), holdings)) is not None:
            holdings.append(held)


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_an_adversary_leaves_a_page_in_each_slab(group, seed):
    """The arena full of one kind, then a random page of each slab alone: the most slabs that so few pages can hold."""
    rng = Random(seed)
    mem = memory(60)
    pool = mem.pools[group]
    held = Holding([np.empty(0, np.int32) for _ in mem.groups])
    held.rows[group] = pool.allocate(60 * pool.form.slab_pages)
    places = pool.page_table[held.rows[group]]
    kept = [rng.choice(np.flatnonzero(places // SLAB == slab).tolist()) for slab in range(60)]
    drop(mem, held, group, np.isin(np.arange(len(places)), kept))
    assert mem.arena.free_slabs == 0
    holdings = [held]
    while (more := assert_grows(mem, rng.randint(1, 40), holdings)) is not None:
        holdings.append(more)
    assert mem.moves > 0
    assert free_bytes(mem) < 5 * SLAB + gross_bytes(pool, 10)


def test_nothing_moves_where_that_makes_no_room():
    """A lone kind can use each free page; and a pool's own need is not met by its own pages."""
    mem = memory(6, ("full",))
    holdings = [Holding() for _ in range(6)]
    for held in holdings:
        assert mem.grow(held, 6 * PAGE) is not None
        drop(mem, held, 0, np.arange(6) % 2 == 0)
    more = Holding()
    assert mem.grow(more, 18 * PAGE) is not None
    assert mem.grow(Holding(), 1) is None
    assert mem.moves == 0


# -- outputs


def byte_tokens(kinds, stirred):
    """What an executor of bytes draws for eight requests in a small arena."""
    mem = StateMemory(
        [MemoryGroup(by_token, form.in_slabs(SLAB), window) for by_token, form, window in map(KINDS.get, kinds)],
        nbytes=24 * SLAB,
        page_tokens=PAGE,
        poison=True,
    )
    context = mem.longest(70, 16)
    spec = ModelSpec("m", "none", 200, 1, context, (), (), 0)
    limits = SchedulerLimits(4, 16, None)
    engine = Engine(
        spec, ByteExecutor(mem, 4, context), mem, limits, context_length=context, constraint_for=lambda params: None
    )
    moved = stir(engine) if stirred else []
    rng, prompts, results = Random(1), [], {}
    for number in range(8):
        prompts.append([rng.randrange(200) for _ in range(rng.randint(1, context - 20))])
        collect(engine, results, engine.add(request(number, prompts[-1], GREEDY)))
    while engine.has_work:
        collect(engine, results, engine.step())
        engine.check()
    for number, prompt in enumerate(prompts):
        assert results[number, 0].tokens == expected(mem.groups, prompt, len(results[number, 0].tokens))
    return sum(moved)


@pytest.mark.parametrize("kinds", [("full",), ("full", "window"), ("full", "state"), ("full", "window", "state")])
def test_bytes_arrive_where_they_are_read(kinds):
    assert byte_tokens(kinds, stirred=True) > 50


def drawn(engine, prompts, stirred):
    moved = stir(engine) if stirred else []
    logits = record_logits(engine)
    results = run(engine, *[request(i, prompt, GREEDY) for i, prompt in enumerate(prompts)], check=False)
    engine.check()
    return [results[i, 0].tokens for i in range(len(prompts))], logits, sum(moved)


def assert_same(build, prompts, least):
    plain, stirred = drawn(build(), prompts, False), drawn(build(), prompts, True)
    assert stirred[2] >= least, "hardly a page moved"
    assert plain[0] == stirred[0]
    assert plain[1].keys() == stirred[1].keys()
    assert all(np.array_equal(row, stirred[1][at]) for at, row in plain[1].items())


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_the_same_to_the_last_bit(family, tmp_path):
    """Eager execution of every family, with and without pages that move before each step."""
    FAMILIES[family]().save_pretrained(tmp_path)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 256, n).tolist() for n in (70, 5, 33, 90)]
    assert_same(lambda: engine_for(tmp_path, executor="eager", kv_memory=256 << 20, **STEPS), prompts, 20)


@pytest.mark.model
def test_compiled_outputs_are_the_same_to_the_last_bit(smollm2):
    rng = np.random.default_rng(2)
    prompts = [rng.integers(20, 49_000, n).tolist() for n in (150, 3, 47, 280, 16)]

    def build():
        return engine_for(smollm2, executor="compiled", recipe="int8", kv_memory=256 << 20, threads=1, **STEPS)

    assert_same(build, prompts, 100)
