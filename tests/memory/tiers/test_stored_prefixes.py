"""What becomes of a prefix between arena, host memory and disk, case by case."""

import random
import time

import pytest
from tier_replica import Replica, replica, whole
from token_pages import STEP, array


def test_a_prefix_comes_back():
    made = replica(("full", "window", "state"))
    tokens = [1] * 8 + [0] * 8
    whole(made, tokens)
    fetch = made.fetch([*tokens, 1])
    assert fetch.state == "loading"
    assert made.mem.cached("key", array([*tokens, 1])) == 0
    assert made.fetch([*tokens, 0]) is fetch, "two that wait for the same wait for one load"
    assert made.settle() == [fetch]
    assert fetch.state == "done"
    assert made.mem.cached("key", array([*tokens, 1])) == 16
    assert made.fetch([*tokens, 1]) is None, "it is here"
    made.stop()


def test_computing_that_is_faster_is_not_waited_for():
    made = replica()
    whole(made, [1] * 16)
    assert made.fetch([1] * 17, seconds=0.0) is None
    assert not made.tiered.waiting
    assert made.fetch([1] * 17, seconds=1e-9) is not None


def half_there():
    """A replica that has half of a prefix in the arena and all of it in the tiers, and the prefix."""
    made, tokens = replica(("full", "window", "state")), [1] * 8 + [0] * 8
    whole(made, tokens)
    made.plan(made.add(tokens[:8]), 8)
    made.collect()
    return made, tokens


def test_a_load_without_room_is_none():
    """It takes nothing, and can be had when there is room."""
    made, tokens = half_there()
    made.mem.room.plan = [True]
    assert made.fetch([*tokens, 1]) is None
    assert made.mem.room.refusals == 1
    assert not made.tiered.waiting
    made.check()
    assert made.fetch([*tokens, 1]) is not None
    made.stop()


def test_a_late_load_is_given_up_and_its_pages_are_free_at_once():
    made = replica()
    whole(made, [1] * 16)
    made.crew.hands["tiers-memory"].hangs = True
    fetch = made.fetch([1] * 17, seconds=3.0)
    made.tiered.collected(made.collected)
    made.clock.now += 2.9
    assert made.tiered.collected(made.collected) == []
    made.clock.now += 0.2
    assert made.tiered.collected(made.collected) == [fetch]
    assert fetch.state == "failed"
    assert made.mem.arena.free_slabs == made.mem.arena.slabs
    made.bytes.buffer[:] = 9
    made.stop()
    assert (made.bytes.buffer == 9).all()


def test_a_state_that_is_written_again_is_not_stored():
    """Of two equal prompts side by side the tree has one's state; the other goes on writing into its own."""
    made = replica(("full", "state"))
    first, second = made.add([1] * 8), made.add([1] * 8)
    made.plan(first, 8)
    made.collect()
    made.settle()
    made.store.host.evict(1 << 30)
    second.tokens = [1] * 12
    made.plan(second, 8)
    made.plan(second, 4)
    made.collect()
    made.collect()
    made.settle()
    for sequence in (first, second):
        made.end(sequence, offer=False)
    made.mem.tree.evict(1 << 30)
    made.fetch([1] * 9)
    made.settle()
    again = made.add([1] * 9)
    while made.plan(again, STEP):
        made.collect()
    made.stop()


@pytest.mark.parametrize("moment", ["asked", "running", "stored", "loading"])
def test_what_is_not_to_be_trusted_is_not_found(moment):
    made = replica()
    tokens = [1] * 16
    sequence = made.add(tokens)
    made.plan(sequence, 16)
    if moment != "asked":
        made.collect()
    if moment in ("stored", "loading"):
        made.settle()
    if moment == "loading":
        made.end(sequence)
        made.mem.tree.evict(1 << 30)
        assert made.fetch([*tokens, 1]) is not None
    made.forget(tokens)
    made.settle()
    assert made.fetch([*tokens, 1]) is None
    assert made.mem.cached("key", array([*tokens, 1])) == 0
    made.stop()


def test_the_shares_of_the_arena_are_kept():
    made = replica()
    sequence = made.add([1] * 100)
    while made.plan(sequence, STEP):
        made.collect()
        assert made.tiered._pinned_bytes("store") <= made.mem.arena.nbytes / 8
    assert made.tiered.waiting
    made.stop()


def test_a_prefix_longer_than_that_share_is_stored_bit_by_bit():
    made = replica()
    tokens = list(range(160))
    sequence = made.add(tokens)
    while made.plan(sequence, STEP):
        made.collect()
    made.end(sequence)
    digests = made.store.chain("key", array(tokens))
    assert len(digests) * made.store.groups[0].page_bytes > made.mem.arena.nbytes / 8
    made.settle()
    assert made.store.lookup(digests, 0).pages == len(digests)
    made.stop()


def test_a_load_goes_on_behind_what_the_arena_has():
    made, tokens = half_there()
    fetch = made.fetch([*tokens, 1])
    assert len(fetch.digests) == 2
    made.settle()
    again = made.add([*tokens, 1])
    assert again.computed == 16
    while made.plan(again, STEP):
        made.collect()
    made.stop()


def test_with_real_threads_on_a_real_disk(tmp_path):
    """Nothing waits for transfers, but for now and then one."""
    rng = random.Random(7)
    prefixes = [[rng.randrange(2) for _ in range(60)] for _ in range(6)]
    done = 0
    for life in range(2):
        made = Replica(("full", "window", "state"), 30 * 96, 24 << 12, tmp_path, 40 << 13, None)
        for turn in range(150):
            prefix = rng.choice(prefixes)
            tokens = [*prefix[: rng.randrange(1, 60)], rng.randrange(2)]
            fetch = made.fetch(tokens) if life or turn > 20 else None
            if made.tiered.needs_batch and rng.randrange(2):
                made.plan_nothing()
            while made.batches:
                made.collect()
            until = time.monotonic() + rng.choice([0, 0.02])
            while fetch is not None and fetch.state == "loading" and time.monotonic() < until:
                made.tiered.collected(made.collected)
            done += fetch is not None and fetch.state == "done"
            sequence = made.add(tokens)
            while made.plan(sequence, STEP):
                if len(made.batches) == 2 or rng.randrange(2):
                    made.collect()
            made.end(sequence)
            if rng.randrange(3) == 0:
                made.mem.tree.evict(200)
            made.check()
        made.stop()
        made.tiered.close(20.0)
        made.store.check()
    assert done, "nothing was ever loaded"
    assert made.store.disk.usage().errors == 0


def test_rows_that_a_batch_carries_are_not_trimmed_behind_its_back():
    """A row exchanged for the tree's goes with the next batch, after whose planning the window moves on."""
    made = replica(("full", "window"))
    first, second = made.add([1] * 14), made.add([1] * 14)
    for count in (9, 4, 1):
        for sequence in (first, second):
            made.plan(sequence, count)
    while made.batches:
        made.collect()
    made.stop()
