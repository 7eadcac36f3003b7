"""What goes first: the arithmetic beside plain loops, the sample beside a list, the tree beside LRU."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.arena import Arena
from headrace.memory.eviction import (
    MOST_SEEN,
    Candidates,
    EvictionQueue,
    RecomputeCost,
    least_value_first,
    oldest_first,
)
from headrace.memory.page_form import PageForm
from headrace.memory.pool import NO_PAGE, Pool
from headrace.memory.prefix_tree import CachedGroup, PrefixKey, PrefixTree
from headrace.memory.reuse import EDGES, KINDS, ReuseLog, buckets, reuse_density

KEY = PrefixKey("a")
COUNTS = st.lists(st.integers(0, 40), min_size=len(EDGES), max_size=len(EDGES))


def plain_density(chances, widths):
    """Uses over time, for every length of the wait."""
    best = []
    for first in range(len(chances)):
        left, uses, waited, rates = 1.0, 0.0, 0.0, []
        for chance, width in zip(chances[first:], widths[first:], strict=True):
            uses += left * chance
            waited += left * width * (1 - chance / 2)
            left *= 1 - chance
            rates.append(uses / waited)
        best.append(max(rates))
    return best


@given(COUNTS, COUNTS)
def test_density_is_the_best_rate_of_uses(ends, used):
    ends, used = np.array(ends, float), np.minimum(used, ends)
    reached = np.cumsum(ends[::-1])[::-1]
    found = reuse_density(np.tile(used, (KINDS, 1)), np.tile(reached, (KINDS, 1)))
    widths = np.diff(EDGES, append=2 * EDGES[-1])
    prior = 1 - np.exp(-0.3 * widths / (EDGES + widths / 2 + 10))
    pooled = (KINDS * used + 5 * prior) / (KINDS * reached + 5)
    chances = np.minimum((used + 5 * pooled) / (reached + 5), 0.999)
    np.testing.assert_allclose(found, np.tile(plain_density(chances, widths), (KINDS, 1)), rtol=1e-6)


def test_before_anything_is_known_only_age_counts():
    density = ReuseLog().density(0.0)
    assert (density == density[0]).all()
    assert (np.diff(density[0]) < 0).all()


def test_what_is_used_in_a_minute_is_worth_most_shortly_before():
    log, now = ReuseLog(), 0.0
    for _ in range(500):
        number = log.see(1, now)
        log.use(number, now + 60)
        now += 1
    ages = np.array([1.0, 40.0, 400.0])
    young, ripe, late = log.density(now)[1, buckets(ages)]
    assert ripe > 2 * young
    assert ripe > 10 * late


@given(
    events=st.lists(st.tuples(st.sampled_from(["see", "use", "renew"]), st.integers(0, 30)), max_size=120),
    size=st.sampled_from([4, 16, 1000]),
    horizon=st.sampled_from([0.0, 50.0, 1e9]),
)
def test_the_sample_is_what_a_list_would_hold(events, size, horizon):
    """Everything while there is room; after that some of it, and nothing twice or mixed up."""
    log, plain, now = ReuseLog(size, horizon), {}, 0.0
    for event, choice in events:
        now += 1 + choice
        numbers = [number for number in plain if number >= 0]
        if event == "see":
            number = log.see(choice % KINDS, now)
            if number >= 0:
                plain[number] = [now, None, choice % KINDS]
        elif numbers:
            number = numbers[choice % len(numbers)]
            if event == "use" and plain[number][1] is None:
                plain[number][1] = now
            elif event == "renew" and plain[number][1] is None:
                plain[number][0] = now
            getattr(log, event)(number, now) if plain[number][1] in (None, now) else None
    kept = {number: entry for number, entry in plain.items() if log._place(number) >= 0}
    assert len(kept) == log._count <= size
    assert size < 1000 or kept == plain
    used, reached = np.zeros((KINDS, len(EDGES))), np.zeros((KINDS, len(EDGES)))
    for since, until, kind in kept.values():
        bucket = buckets(np.array([(now if until is None else until) - since]))[0]
        reached[kind, : bucket + 1] += 1
        used[kind, bucket] += until is not None
    for mine, theirs in zip(log.curves(now), (used, reached), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_oldest_goes_if_it_is_worth_next_to_nothing():
    ages, values = np.array([1.0, 9.0, 5.0]), np.array([0.5, 0.01, 1.0])
    assert oldest_first(Candidates(ages, values), 2).tolist() == [1, 2]
    assert least_value_first(Candidates(ages, values), 2).tolist() == [1]
    assert least_value_first(Candidates(ages, np.array([0.5, 1.01, 1.0])), 2).tolist() == [0, 2]
    assert least_value_first(Candidates(ages, np.ones(3)), 2).tolist() == [1, 2]


@given(st.lists(st.tuples(st.sampled_from(["put", "change", "remove", "next"]), st.integers(0, 50)), max_size=80))
def test_the_queue_gives_what_a_list_would(events):
    queue, plain = EvictionQueue(oldest_first), {}
    for now, (event, choice) in enumerate(events, 1):
        if event == "put":
            plain[queue.put(now, now - choice, 0, 1.0)] = (now - choice, now)
        elif event == "next":
            found = queue.next(now, lambda kinds, ages: ages)
            oldest = min((time for time, _ in plain.values()), default=None)
            assert found is None if oldest is None else (oldest, found) in plain.values()
        elif plain:
            place = list(plain)[choice % len(plain)]
            if event == "remove":
                queue.remove(place)
                del plain[place]
            else:
                plain[place] = (now, plain[place][1])
                queue.change(place, now, 0, 1.0)
        assert sorted(queue.items()) == sorted(item for _, item in plain.values())
        assert len(queue) == len(plain)


def test_of_many_pieces_all_go_in_the_end():
    queue, many = EvictionQueue(least_value_first), 3 * MOST_SEEN
    places = {n: queue.put(n, float(n), 0, 1.0) for n in range(many)}
    order = []
    while (item := queue.next(1e6, lambda kinds, ages: 1 / ages)) is not None:
        order.append(item)
        queue.remove(places[item])
    assert sorted(order) == list(range(many))
    assert np.mean(np.abs(np.array(order) - np.arange(many))) < many / 20


def tree_of(pages, **options):
    form = PageForm.of(1, [(1, 1)])
    pool = Pool(Arena(pages, 1), form)
    return PrefixTree([CachedGroup("full", pool)], 1, **options), pool


def ask(tree, pool, tokens, limit):
    """A request: how many of its tokens were there."""
    tokens = np.array(tokens, np.int32)
    found = tree.match(KEY, tokens)
    rows = np.concatenate([found.rows[0], pool.allocate(len(tokens) - found.pages)])
    pool.release(tree.insert(KEY, tokens, [rows])[0])
    if pool.used > limit:
        tree.evict(pool.used - limit)
    tree.check()
    pool.check()
    return found.pages


def loop(rng, n):
    return [n % 30] * 4


def scan(rng, n):
    return [n % 5] * 3 if n % 4 == 0 else [1000 + n] * 6


def skewed(rng, n):
    return [min(int(rng.paretovariate(0.7)), 500)] * 3


def talk(rng, n):
    """Many ask once, some go on."""
    who = rng.randrange(8) if rng.random() < 0.4 else 100 + n
    return [who, *range(2 * (n // 40 + 1))]


@pytest.mark.parametrize("workload", [loop, scan, skewed, talk])
def test_value_finds_no_less_than_lru(workload):
    hits = []
    for policy in (oldest_first, least_value_first):
        clock, rng = itertools.count().__next__, random.Random(1)
        tree, pool = tree_of(200, policy=policy, clock=lambda clock=clock: float(clock()))
        hits.append(sum(ask(tree, pool, workload(rng, n), 60) for n in range(600)))
    assert hits[1] >= hits[0]


def test_where_attention_costs_most_is_kept():
    """Of two prefixes used alike the end of the shorter one is computed again sooner."""
    tree, pool = tree_of(100, clock=lambda: 0.0)
    tree.set_cost(RecomputeCost(per_token=1.0, per_pair=1.0))
    ask(tree, pool, [1] * 40, 100)
    ask(tree, pool, [2] * 10, 100)
    tree.evict(10)
    assert [tree.cached(KEY, np.full(40, n, np.int32)) for n in (1, 2)] == [40, 0]


def test_of_states_the_one_near_another_goes_first():
    form = PageForm.of(1, [(1, 1)])
    arena = Arena(100, 1)
    pools = [Pool(arena, form, group=n) for n in range(2)]
    tree = PrefixTree([CachedGroup("full", pools[0]), CachedGroup("state", pools[1])], 1, clock=lambda: 0.0)
    held = [pools[0].allocate(20), np.empty(0, np.int32)]
    for end in (10, 12, 20):
        state = pools[1].allocate(1)
        tree.insert(KEY, np.arange(end, dtype=np.int32), [held[0][:end], state])
        pools[1].release(state)
    pools[0].release(held[0])
    while (tree.evict(1)) and pools[1].used == 3:
        tree.check()
    assert tree.cached(KEY, np.arange(12, dtype=np.int32)) == 10


def stateful_tree(page_bytes, state_bytes):
    pools = []
    arena = Arena(100, 64)
    for n, size in enumerate((page_bytes, state_bytes)):
        pools.append(Pool(arena, PageForm.of(1, [(1, size)]).in_slabs(64), group=n))
    return PrefixTree([CachedGroup("full", pools[0]), CachedGroup("state", pools[1])], 1, clock=lambda: 0.0), pools


def insert(tree, pools, tokens, *, state):
    rows = [pools[0].allocate(len(tokens)), pools[1].allocate(int(state))]
    for pool, row in zip(pools, tree.insert(KEY, np.array(tokens, np.int32), rows), strict=True):
        pool.release(row)


@pytest.mark.parametrize(("page_bytes", "state_bytes"), [(2, 8), (8, 2)])
def test_of_what_costs_the_same_the_larger_goes_first(page_bytes, state_bytes):
    """A state after one token, and a leaf of one token: what counts is the cost of a byte."""
    tree, pools = stateful_tree(page_bytes, state_bytes)
    insert(tree, pools, [1], state=True)
    insert(tree, pools, [1, 2], state=False)
    assert tree.evict(1) == max(page_bytes, state_bytes)
    assert [pool.used for pool in pools] == ([2, 0] if state_bytes > page_bytes else [1, 1])


def test_a_leaf_is_worth_the_less_the_larger_its_states_are():
    """What it costs to go on behind it is shared by the bytes of its last page and its states."""
    tree, pools = stateful_tree(9, 8)
    insert(tree, pools, [1], state=True)
    insert(tree, pools, [2], state=False)
    assert tree.evict(1) == 8, "the other leaf, of 9 bytes, went first"
    tree.check()


def test_what_comes_back_after_it_was_evicted_counts_as_a_use():
    tree, pool = tree_of(100, clock=itertools.count().__next__)
    ask(tree, pool, [1, 2, 3], 100)
    tree.evict(3)
    assert tree.describe() == {"roots": 0, "nodes": 0, "pages": 0}
    ask(tree, pool, [1, 2, 3], 100)
    used, _ = tree._uses.log.curves(100.0)
    assert used.sum() == 1
    assert next(tree._nodes()).uses == 1


def test_keys_are_apart():
    tree, pool = tree_of(100)
    ask(tree, pool, [1, 2], 100)
    for key in (PrefixKey("b"), PrefixKey("a", adapter="x"), PrefixKey("a", numerics="1")):
        assert tree.cached(key, np.array([1, 2], np.int32)) == 0
    assert tree.cached(PrefixKey("a"), np.array([1, 2], np.int32)) == 2
    assert NO_PAGE not in tree.match(KEY, np.array([1, 2], np.int32)).rows[0]


def test_held_leaves_are_looked_at_once():
    tree, pool = tree_of(100)
    held = []
    for n in range(20):
        tokens = np.array([n, n], np.int32)
        held.append(tree.insert(KEY, tokens, [pool.allocate(2)])[0])
    assert tree.evict(1) == 0
    assert len(tree._eviction.queue) == 0
    tree.check()
    pool.release(held[0])
    pool.retain(held[0])  # and held again before anybody looks
    tree.check()
    assert tree.evict(1) == 0
    pool.release(held[0][1:])
    pool.release(held[1])
    tree.check()
    assert tree.evict(100) == 3
    tree.check()
    pool.release(np.concatenate([held[0][:1], *held[2:]]))
    assert tree.evict(100) == 37
    assert tree.describe()["nodes"] == 0


def test_states_that_are_held_wait_outside_of_the_queue():
    form = PageForm.of(1, [(1, 1)])
    arena = Arena(100, 1)
    pools = [Pool(arena, form, group=n) for n in range(2)]
    tree = PrefixTree([CachedGroup("full", pools[0]), CachedGroup("state", pools[1])], 1)
    pages, state = pools[0].allocate(4), pools[1].allocate(1)
    tree.insert(KEY, np.arange(4, dtype=np.int32), [pages, state])
    assert tree.evict(1) == 0
    assert len(tree._eviction.queue) == 0
    tree.check()
    pools[1].release(state)
    assert tree.evict(1) == 1
    tree.check()
    pools[0].release(pages)
    assert tree.evict(10) == 4
