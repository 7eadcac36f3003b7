"""Pages that move before every step, although nobody needs the room."""

from random import Random

import numpy as np


def stir(engine, seed=0):
    """Have a random slab of each pool vacated before every plan; a list that counts the pages moved."""
    rng, scheduler = Random(seed), engine.scheduler
    plan, moved = scheduler.plan, []

    def stirred(step):
        moved.extend(vacate_any(pool, rng) for pool in scheduler.memory.pools)
        return plan(step)

    scheduler.plan = stirred
    return moved


def vacate_any(pool, rng):
    """Move the pages of a random slab, into a new slab if there is one; how many that were."""
    slabs = sorted(pool.slabs)
    extra = pool.allocate(1, None, 1) if pool.free and slabs else np.empty(0, np.int32)
    moved = 0
    if slabs and pool.room >= pool.form.slab_pages:
        slab = rng.choice(slabs)
        used = pool.page_table[pool.page_table >= 0]
        moved = int(np.count_nonzero((used >= slab) & (used < slab + pool.form.slab_bytes)))
        pool.vacate(slab)
    pool.release(extra)
    return moved
