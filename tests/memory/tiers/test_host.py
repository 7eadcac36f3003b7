"""The host tier under random operations, beside a plain dictionary."""

import random

from headrace.memory.tiers.host import HostTier
from headrace.memory.tiers.keys import object_key
from headrace.memory.tiers.records import StoredRun


def run_of(number, sizes=(3000,)):
    return StoredRun(tuple(object_key(bytes([number, page]) * 8, 1) for page in range(len(sizes))), tuple(sizes))


def put(tier, run, *, saved=True):
    room = tier.reserve(run, saved=saved)
    if room is None:
        return False
    room[:] = int(run.name[:2], 16)
    tier.put(run)
    tier.check()
    return True


def test_what_was_not_used_for_longest_goes_but_not_what_somebody_uses():
    tier = HostTier(3 * 4096)
    runs = [run_of(n) for n in range(6)]
    assert all(put(tier, run) for run in runs[:3])
    data = tier.get(runs[0])
    kept = data.copy()
    tier.get(runs[1])
    tier.free(runs[1])
    assert put(tier, runs[3])  # run 2 goes
    assert put(tier, runs[4])  # run 1 goes
    assert put(tier, runs[5])
    assert [tier.exists(run.keys[0]) for run in runs] == [True, False, False, False, True, True]
    assert (data == kept).all()
    tier.get(runs[4])
    tier.get(runs[5])
    assert not put(tier, runs[1]), "all is in use"
    assert not put(tier, run_of(9, (5 * 4096,)))
    tier.free(runs[0])
    assert put(tier, runs[1])
    assert tier.get(runs[0]) is None


def test_what_the_disk_has_goes_first():
    tier = HostTier(3 * 4096)
    for n, saved in enumerate((False, True, False)):
        put(tier, run_of(n), saved=saved)
    assert tier.unsaved() == run_of(0)
    put(tier, run_of(3))
    assert [tier.exists(run_of(n).keys[0]) for n in range(4)] == [True, False, True, True]
    tier.note_saved(run_of(0))
    assert tier.unsaved() == run_of(2)
    put(tier, run_of(4), saved=False)
    put(tier, run_of(5), saved=False)
    assert tier.unsaved_lost == 0
    put(tier, run_of(6), saved=False)
    assert tier.unsaved_lost == 1


def test_a_run_that_is_not_filled_is_not_found():
    tier = HostTier(4 * 4096)
    assert tier.reserve(run_of(0), saved=True) is not None
    assert tier.reserve(run_of(0), saved=True) is None
    assert not tier.exists(run_of(0).keys[0])
    assert tier.get(run_of(0)) is None
    tier.drop(run_of(0))
    assert put(tier, run_of(0))
    assert tier.usage().errors == 1


def test_what_is_forgotten_goes_when_nobody_uses_it():
    tier = HostTier(4 * 4096)
    for n in range(3):
        put(tier, run_of(n), saved=False)
    data, kept = tier.get(run_of(0)), tier.reserve(run_of(3), saved=True)
    assert kept is not None
    tier.forget([run_of(n).keys[0] for n in (0, 1, 3)])
    tier.check()
    assert tier.find([run_of(n).keys[0] for n in range(4)]) == [None, None, (run_of(2), 0), None]
    assert tier.get(run_of(0)) is None
    assert not tier.note_saved(run_of(0)), "the next tier must forget it, too"
    assert (data == int(run_of(0).name[:2], 16)).all()
    assert tier.usage().runs == 3
    tier.free(run_of(0))
    tier.put(run_of(3))
    tier.check()
    assert tier.usage().runs == 1
    assert put(tier, run_of(3))


def test_pages_that_two_runs_have():
    """Whichever goes, what is found is there."""
    tier = HostTier(8 * 4096)
    short, long = run_of(0, (100,)), run_of(0, (100, 100))
    put(tier, short)
    put(tier, long)
    assert tier.find(long.keys) == [(short, 0), (long, 1)]
    tier.get(long)
    tier.evict(1)
    tier.check()
    assert tier.find(long.keys)[1] == (long, 1)


def test_random_runs():
    rng = random.Random(3)
    tier, busy = HostTier(20 * 4096), []
    for _ in range(3000):
        run = run_of(rng.randrange(40), (rng.choice([100, 5000]),) * rng.randint(1, 3))
        match rng.randrange(4):
            case 0 | 1:
                put(tier, run, saved=rng.random() < 0.5)
            case 2 if (data := tier.get(run)) is not None:
                busy.append((run, data))
            case 3 if busy:
                run, data = busy.pop(rng.randrange(len(busy)))
                assert (data == int(run.name[:2], 16)).all(), "bytes in use were given away"
                tier.free(run)
        tier.check()
        assert tier.usage().nbytes <= 20 * 4096
    for run, _ in busy:
        tier.free(run)
    tier.evict(1 << 30)
    assert tier.usage().nbytes == 0
    assert tier.find([run_of(n).keys[0] for n in range(40)]) == [None] * 40
