"""Transfers with real threads and a real folder; disks that hang; the end of a process."""

import threading
import time

import numpy as np
import pytest
from tier_doubles import Crew

from headrace.memory.page_form import PageForm
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.keys import Identity
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.store import TierGroup, TierLimits, TierStore, Wanted
from headrace.memory.tiers.worker import MOST_JOBS, Worker

FORM = PageForm.of(8, [(6, 512)])
PAGE = 16
IDENTITY = Identity("weights", "layout", "numerics")
TOKENS = np.arange(100 * PAGE, dtype=np.int32)
WAIT = 20.0


class Gate(Files):
    """A folder whose reads, or writes, hang until they are let go."""

    def __init__(self, folder):
        super().__init__(folder)
        self.reads, self.writes = threading.Event(), threading.Event()
        self.reads.set()
        self.writes.set()

    def open(self, name):
        self.reads.wait(WAIT)
        return super().open(name)

    def write(self, name, parts):
        self.writes.wait(WAIT)
        super().write(name, parts)


class Setup:
    def __init__(self, folder, host_bytes=8 << 20, disk_bytes=64 << 20, slabs=26):
        rng = np.random.default_rng(1)
        self.arena = rng.integers(0, 256, slabs * FORM.slab_bytes, np.uint8)
        self.woken = threading.Event()
        self.gates = []

        def files(folder):
            self.gates.append(Gate(folder))
            return self.gates[-1]

        self.store = TierStore(
            [TierGroup("full", FORM.page_bytes)],
            PAGE,
            ArenaBytes(self.arena, [FORM]),
            IDENTITY,
            TierLimits(host_bytes, folder, disk_bytes),
            files=files,
            wake=self.woken.set,
        )
        self.digests = self.store.chain("key", TOKENS)

    def offset(self, page):
        return page // 8 * FORM.slab_bytes + page % 8 * FORM.page_bytes

    def page(self, number):
        return np.concatenate([x.reshape(-1) for x in FORM.pieces(self.arena, self.offset(number))])

    def keep(self, first, end):
        started = self.store.store(self.digests, {Wanted(0, n): self.offset(n) for n in range(first, end)}, 0)
        self.store.transfers.launch(0)
        return started

    def load(self, first, end, at):
        found = self.store.lookup(self.digests[:end], first)
        assert found.pages == end
        offsets = {wanted: self.offset(at + wanted.page - first) for wanted in found.sources}
        transfer = self.store.load(found, offsets, 0)
        self.store.transfers.launch(0)
        return transfer

    def ended(self, count=1):
        """Wait for so many transfers."""
        found, until = [], time.monotonic() + WAIT
        while len(found) < count and time.monotonic() < until:
            self.woken.wait(0.05)
            self.woken.clear()
            found += self.store.finished()
        self.store.check()
        assert len(found) == count
        return found

    def until(self, condition):
        end = time.monotonic() + WAIT
        while not condition() and time.monotonic() < end:
            time.sleep(0.005)
        assert condition()


@pytest.fixture
def setup(tmp_path):
    made = []

    def make(**options):
        made.append(Setup(tmp_path, **options))
        made[-1].until(lambda: made[-1].store.transfers.idle)
        return made[-1]

    yield make
    for each in made:
        for gate in each.gates:
            gate.reads.set()
            gate.writes.set()
        each.store.transfers.close(WAIT)


def test_there_and_back_by_host_memory_and_by_disk(setup):
    first = setup()
    first.keep(0, 90)  # two runs
    assert all(transfer.ok for transfer in first.ended(2))
    expected = [first.page(n) for n in range(90)]
    assert first.load(0, 90, at=100).legs[0].tier == "host"
    assert first.ended()[0].ok
    assert all((first.page(100 + n) == expected[n]).all() for n in range(90))
    assert first.store.transfers.close(WAIT), "what is in host memory goes to the disk at the end"

    second = setup()
    second.arena[:] = 0
    transfer = second.load(0, 80, at=3)  # the second run in part
    assert {leg.tier for leg in transfer.legs} == {"disk"}
    assert second.ended()[0].ok
    assert all((second.page(3 + n) == expected[n]).all() for n in range(80))
    assert second.store.transfers.load_seconds(transfer.legs) < WAIT


def test_a_transfer_waits_for_its_batch(setup):
    s = setup()
    s.store.store(s.digests, {Wanted(0, 0): 0}, 3)
    s.store.transfers.launch(2)
    time.sleep(0.02)
    assert not s.store.finished()
    assert s.store.missing(s.digests, [Wanted(0, 0), Wanted(0, 1)]) == [Wanted(0, 1)]
    s.arena[:] = 9
    s.store.transfers.launch(3)
    assert s.ended()[0].ok
    s.arena[:] = 0
    s.load(0, 1, at=0)
    s.ended()
    assert (s.page(0) == 9).all()


def test_a_hanging_disk_stops_only_itself(setup):
    first = setup()
    first.keep(0, 60)
    first.ended()
    first.store.transfers.close(WAIT)
    s = setup()
    gate = s.gates[0]
    gate.reads.clear()
    stuck = s.load(0, 60, at=120)
    time.sleep(0.02)
    assert s.store.transfers.disk_usable
    s.store.transfers.give_up(stuck)
    assert not s.store.transfers.disk_usable
    assert s.store.lookup(s.digests, 0) is None, "nothing more is asked of it"
    s.arena[s.offset(120) :] = 7  # its pages are another's now
    s.digests = s.store.chain("other key", TOKENS)
    s.keep(0, 20)
    assert s.ended()[0].ok
    s.load(0, 20, at=30)
    assert s.ended()[0].ok
    gate.reads.set()
    assert s.ended() == [stuck]
    assert (s.arena[s.offset(120) :] == 7).all(), "a load that was given up wrote into the arena"
    assert s.store.transfers.disk_usable, "it is back"


def test_a_disk_that_does_not_write_delays_nothing(setup):
    s = setup(host_bytes=16 << 12)
    s.gates[0].writes.clear()
    for n in range(40):
        s.keep(n, n + 1)
        assert s.ended()[0].ok
    assert s.store.host.unsaved_lost >= 40 - 17
    begin = time.monotonic()
    assert not s.store.transfers.close(0.2)
    assert time.monotonic() - begin < 5
    s.gates[0].writes.set()


def test_too_much_is_refused(setup):
    s = setup(slabs=60)
    some = [s.store.store(s.digests, {Wanted(0, n): s.offset(n)}, 5) for n in range(100)]
    refused = sum(not started for started in some)
    assert 0 < refused < 100
    s.store.transfers.launch(5)
    s.ended(100 - refused)
    assert s.store.store(s.digests, {Wanted(0, 99): s.offset(99)}, 0)


def test_an_asked_transfer_can_be_given_up(setup):
    s = setup()
    s.keep(0, 2)
    s.ended()
    s.until(lambda: s.store.host.unsaved() is None and s.store.transfers.idle)
    found = s.store.lookup(s.digests, 0)
    transfer = s.store.load(found, {wanted: s.offset(5 + wanted.page) for wanted in found.sources}, 9)
    s.store.transfers.give_up(transfer)
    assert s.ended() == [transfer]
    assert not transfer.ok
    s.store.host.evict(1 << 30)
    assert s.store.host.usage().runs == 0, "it is still kept for somebody"


def test_no_tier_is_used_before_it_was_measured():
    crew = Crew()
    pages = ArenaBytes(np.zeros(FORM.slab_bytes, np.uint8), [FORM])
    store = TierStore([TierGroup("full", 8)], PAGE, pages, IDENTITY, TierLimits(1 << 20), hands=crew)
    store.store(store.chain("", TOKENS[:16]), {Wanted(0, 0): 0}, 0)
    assert store.transfers.load_seconds([t.legs[0] for t in store.transfers._asked]) == float("inf")
    crew.finish()
    assert store.transfers.load_seconds([t.legs[0] for t in store.transfers._asked]) < WAIT


def test_a_worker_outlives_what_it_does(caplog):
    worker, done = Worker("test"), []
    gate = threading.Event()
    worker.submit(lambda: gate.wait(WAIT))
    worker.submit(lambda: 1 / 0)
    worker.submit(lambda: done.append("late"))
    worker.submit(lambda: done.append("urgent"), urgent=True)
    while worker.submit(lambda: done.append("more")):
        pass
    assert not worker.drain(0.01)
    gate.set()
    assert worker.close(WAIT)
    assert done[:2] == ["urgent", "late"]
    assert len(done) <= MOST_JOBS + 2
    assert "a transfer failed" in caplog.text
    assert not worker.submit(lambda: None)
