"""The small parts of the tiers: keys, rates, extents, rests, reach."""

import hashlib
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tier_doubles import Clock

from headrace.memory.prefix_tree import PrefixKey
from headrace.memory.tiers.extents import ALIGNMENT, Extents
from headrace.memory.tiers.keys import Identity, group_of, object_key, page_digests, root_digest
from headrace.memory.tiers.rates import TransferRate, patience, worth_loading
from headrace.memory.tiers.rest import FAILURES, MOST_SECONDS, Rest
from headrace.memory.tiers.store import TierGroup, reach

MODEL = Identity("weights", "layout", "numerics")
KEY = PrefixKey("salt", "adapter", "id")


def test_a_digest_depends_on_everything_before_it():
    tokens = np.arange(64, dtype=np.int32)
    root = root_digest(MODEL, ("tenant", None))
    found = page_digests(root, tokens, 16)
    assert len(found) == 4
    assert page_digests(root, tokens[:63], 16) == found[:3]
    for at in range(64):
        other = tokens.copy()
        other[at] += 1
        same = [a == b for a, b in zip(found, page_digests(root, other, 16), strict=True)]
        assert same == [page < at // 16 for page in range(4)]


def test_a_digest_is_the_hash_that_is_documented():
    tokens = np.array([1, 2], np.int32)
    root = root_digest(MODEL, "")
    expected = hashlib.blake2b(root + b"\1\0\0\0\2\0\0\0", digest_size=16).digest()
    assert page_digests(root, tokens, 2) == [expected]


def test_roots_differ_by_model_and_key():
    """By each field alone, and wherever one ends."""
    models = [MODEL, *(replace(MODEL, **{field.name: "other"}) for field in fields(MODEL))]
    models.append(Identity("weights", "layoutn", "umerics"))
    keys = [KEY, *(replace(KEY, **{field.name: "other"}) for field in fields(KEY)), PrefixKey("salta", "dapter", "id")]
    keys += ["", "a", ("a",), ("a", "b"), b"a", None]
    assert len(models) == 5
    assert len({root_digest(model, key) for model in models for key in keys}) == len(models) * len(keys)


def test_a_key_names_its_group():
    assert group_of(object_key(bytes(16), 515)) == 515


@given(st.floats(0, 0.1), st.floats(1e-5, 1e-2), st.lists(st.integers(1, 100), min_size=2, max_size=20, unique=True))
def test_rates_find_the_line(each, per_megabyte, sizes):
    rate = TransferRate()
    for megabytes in sizes:
        rate.add(megabytes * 1_000_000, each + per_megabyte * megabytes)
    expected = 3 * each + per_megabyte * 50
    assert rate.load_seconds(50_000_000, 3) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@given(st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(0, 100)), max_size=30), st.integers(0, 1 << 33))
def test_an_estimate_is_never_negative(samples, nbytes):
    rate = TransferRate()
    assert rate.load_seconds(nbytes) == math.inf
    for size, seconds in samples:
        rate.add(size, seconds)
    assert rate.load_seconds(nbytes) >= 0


def test_what_is_slow_now_counts_more_than_what_was_fast():
    rate = TransferRate()
    for _ in range(50):
        rate.add(1_000_000, 0.001)
    for _ in range(20):
        rate.add(1_000_000, 0.1)
    assert rate.load_seconds(1_000_000) > 0.08


def test_loading_must_win_and_is_given_up_in_time():
    assert worth_loading(1.0, 2.0)
    assert not worth_loading(2.0, 2.0)
    assert not worth_loading(math.inf, math.inf)
    assert patience(1.0, 5.0) == 5.0


@given(st.lists(st.one_of(st.integers(1, 6 * ALIGNMENT), st.integers(-8, -1)), max_size=60))
def test_extents_cover_the_block(steps):
    """Positive: take so many bytes; negative: give one back."""
    extents, lent = Extents(10 * ALIGNMENT + 5), {}
    for step in steps:
        if step > 0:
            begin = extents.take(step)
            if begin is None:
                free = np.ones(10, np.bool_)
                for at, size in lent.items():
                    free[at // ALIGNMENT : -(-(at + size) // ALIGNMENT)] = False
                blocks = "".join(map(str, free.astype(int)))
                assert "1" * -(-step // ALIGNMENT) not in blocks, "there was room"
            else:
                assert begin not in lent
                lent[begin] = step
        elif lent:
            extents.give(begin := sorted(lent)[step % len(lent)])
            del lent[begin]
        extents.check()
        assert extents.used == sum(-(-size // ALIGNMENT) * ALIGNMENT for size in lent.values())
        assert extents.lent == frozenset(lent)


def test_a_tier_that_fails_rests_longer_and_longer_and_comes_back():
    clock = Clock()
    rest = Rest(clock)
    for _ in range(FAILURES - 1):
        rest.failed()
    assert not rest.resting
    lengths = []
    for _ in range(12):
        rest.failed()
        begin = clock.now
        while rest.resting:
            clock.now += 0.5
        lengths.append(clock.now - begin)
    assert lengths == sorted(lengths)
    assert lengths[0] <= 1
    assert lengths[-1] == MOST_SECONDS
    rest.worked()
    rest.failed()
    assert not rest.resting


FLAGS = st.lists(st.booleans(), min_size=8, max_size=8).map(lambda row: np.array(row, np.bool_))
GROUPS = {"full": TierGroup("full", 8), "window": TierGroup("window", 8, 7), "state": TierGroup("state", 8)}


@given(st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), FLAGS), min_size=1, max_size=3), st.integers(0, 4))
def test_reach_is_the_farthest_where_all_can_go_on(rows, from_page):
    groups, have = [GROUPS[kind] for kind, _ in rows], [row for _, row in rows]

    def serves(pages):
        for group, row in zip(groups, have, strict=True):
            end = from_page + pages
            seen = range((end * 4 - 6) // 4 if group.kind == "window" else 0, end)
            needed = [end - 1] if group.kind == "state" else seen
            if not all(row[page - from_page] for page in needed if page >= from_page):
                return False
        return True

    assert reach(have, groups, from_page, 4) == max((n for n in range(1, 9) if serves(n)), default=0)
