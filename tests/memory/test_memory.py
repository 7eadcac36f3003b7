"""Arena, pools and prefix tree under random operations, beside plain lists of what every sequence should hold.

An executor of bytes stands for the real one: it carries out the commands, writes each token into the pages as keys and
values would be, and reads back all that a token sees before it goes on.
"""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from token_pages import FULL, PAGE, STEP, FaultyMemory, Running, TokenPages, array, memory

from headrace.engine.policy import Places, chunk
from headrace.memory.commands import POISON, carry_out
from headrace.memory.page_form import PageForm
from headrace.memory.slabs import common_slab
from headrace.memory.state_memory import WRITE, Holding

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


class Memory(RuleBasedStateMachine):
    """Sequences come, share, grow and go; nothing is lost, shared by mistake, or read where it is not."""

    @initialize(
        kinds=st.sampled_from(
            [("full",), ("full", "window"), ("window",), ("state",), ("full", "state"), ("full", "window", "state")]
        ),
        nbytes=st.integers(4, 24).map(lambda slabs: slabs * 96),
    )
    def start(self, kinds, nbytes):
        self.mem = memory(nbytes, kinds, make=FaultyMemory, poison=True)
        self.bytes = TokenPages(self.mem)
        self.running = []
        self.seen = []

    @rule(data=st.data(), tokens=TOKENS)
    def add(self, data, tokens):
        """A new sequence, mostly with a prefix that was seen."""
        if self.seen and data.draw(st.booleans()):
            before = data.draw(st.sampled_from(self.seen))
            tokens = before[: data.draw(st.integers(0, len(before)))] + tokens
        self.seen = [*self.seen[-7:], tokens]
        found = self.mem.cached("key", array(tokens))
        held, computed = self.mem.match("key", array(tokens))
        assert computed == found
        assert computed % PAGE == 0
        assert computed < len(tokens)
        self.begin(tokens, held, computed)

    def begin(self, tokens, held, computed):
        sequence = Running(tokens, held, computed, [np.full(40, -1, np.int32) for _ in self.mem.groups])
        for group, row in enumerate(held.rows):
            sequence.rows[group][: len(row)] = row
        self.running.append(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=TOKENS)
    def fork(self, data, tokens):
        """Another sequence goes on behind what one has computed."""
        source = data.draw(st.sampled_from(self.running))
        same = source.tokens[: source.computed]
        held, computed = self.mem.match("key", array([*same, *tokens]))
        before, refusals = [row.copy() for row in held.rows], self.mem.room.refusals
        if forked := self.mem.fork(source.held, held, source.computed):
            assert self.mem.room.refusals == refusals
        else:
            assert all(map(np.array_equal, before, held.rows)), "it was refused, and took something"
        self.begin([*same, *tokens], held, source.computed if forked else computed)

    @rule(plan=st.lists(st.booleans(), min_size=1, max_size=4))
    def refuse(self, plan):
        """Some of the next allocations fail, whatever room there is."""
        self.mem.room.plan = plan

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), max_size=3))
    def step(self, data, more):
        """Compute some tokens, if there is room for them; there must be if the memory said so."""
        sequence = data.draw(st.sampled_from(self.running))
        if sequence.computed == len(sequence.tokens) and len(sequence.tokens) < 100:
            sequence.tokens = [*sequence.tokens, *more]
        pending = len(sequence.tokens) - sequence.computed
        if not pending:
            return
        places = Places(PAGE, 2 * PAGE, sequence.held.branch) if self.mem.has_states else None
        count = chunk(sequence.computed, pending, data.draw(st.integers(1, STEP)), places)
        reach = sequence.computed + count
        fits = self.mem.fits(sequence.held, reach, step_tokens=STEP)
        if sequence.computed < sequence.held.reach and reach <= sequence.held.reach:
            writes = []
        else:
            before = [row.copy() for row in sequence.held.rows]
            writes = self.mem.grow(sequence.held, reach)
            if writes is None:
                assert not fits or self.mem.room.refused, "there is no room although there should be"
                assert all(map(np.array_equal, before, sequence.held.rows)), "it was refused, and took something"
        if writes is None:
            return
        sequence.write(writes)
        carry_out(self.mem.commands(), self.bytes.forms, self.bytes.tables, self.bytes.buffer)
        self.bytes.compute(sequence.rows, sequence.tokens, sequence.computed, count)
        sequence.computed += count
        sequence.write(self.mem.settle(sequence.held))
        if data.draw(st.booleans()):
            keep = data.draw(st.booleans())
            tokens = array(sequence.tokens[: sequence.computed])
            sequence.write(self.mem.share("key", tokens, sequence.held, keep_state=keep))
        self.mem.trim(sequence.held, sequence.computed)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data, keep):
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if keep and sequence.computed:
            self.mem.share("key", array(sequence.tokens[: sequence.computed]), sequence.held)
        self.mem.release(sequence.held)

    @rule(nbytes=st.integers(1, 400))
    def evict(self, nbytes):
        self.mem.tree.evict(nbytes)

    @invariant()
    def sound(self):
        if hasattr(self, "mem"):
            self.mem.check([sequence.held for sequence in self.running])

    def teardown(self):
        if hasattr(self, "mem"):
            for sequence in self.running:
                self.mem.release(sequence.held)
            self.mem.tree.evict(1 << 30)
            assert self.mem.arena.free_slabs == self.mem.arena.slabs, "something is never given back"


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@pytest.mark.bars
def test_memory_at_length():
    """200,000 operations."""
    run_state_machine_as_test(Memory, settings=settings(max_examples=2_000, stateful_step_count=100, deadline=None))


def filled(mem, key, tokens):
    """A finished sequence in the tree."""
    held, computed = mem.match(key, array([*tokens, 0]))
    assert mem.grow(held, len(tokens)) is not None
    mem.share(key, array(tokens), held)
    mem.release(held)
    return computed


def hit(mem, key, tokens):
    """Tokens of the longest cached prefix; asking changes nothing, a match may split a node."""
    found = mem.cached(key, array(tokens))
    shape = mem.tree.describe()
    assert found == mem.cached(key, array(tokens))
    assert shape == mem.tree.describe()
    return found


def test_nothing_is_handed_out_beyond_the_capacity():
    mem = memory(4 * 96, most_pages=[5])
    held = Holding()
    assert mem.grow(held, 5 * PAGE) is not None
    assert mem.grow(Holding(), 1) is None
    assert not mem.fits(Holding(), 1, step_tokens=1)
    mem.release(held)
    assert mem.longest(1000, STEP) == 5 * PAGE


@pytest.mark.parametrize("step", [1, STEP, 30])
def test_a_window_that_fits_has_room_for_a_whole_step(step):
    """A step's tokens need pages while those that the window is about to leave behind are still held."""
    most = 1
    while not (mem := memory(40 * 96, ("window",), most_pages=[most])).fits(Holding(), 60, step_tokens=step):
        most += 1
    held = Holding()
    for computed in range(0, 60, step):
        assert mem.fits(held, computed + step, step_tokens=step)
        assert mem.grow(held, computed + step) is not None
        mem.trim(held, computed + step)


@pytest.mark.parametrize("count", [1, 5])
def test_freed_pages_are_poisoned(count):
    """All of their bytes, and no others."""
    mem = memory(4 * 96, poison=True)
    executor = TokenPages(mem)
    held, other = Holding(), Holding()
    mem.grow(held, count * PAGE)
    mem.grow(other, PAGE)
    carry_out(mem.commands(), executor.forms, executor.tables, executor.buffer)
    executor.buffer[:] = 0
    freed = [piece for handle in held.rows[0] for piece in executor.pieces(0, handle)]
    mem.release(held)
    assert not executor.buffer.any(), "the executor's bytes are its own until it is told"
    carry_out(mem.commands(), executor.forms, executor.tables, executor.buffer)
    assert all((piece == POISON).all() and np.isnan(piece.copy().view(np.float32)).all() for piece in freed)
    assert np.count_nonzero(executor.buffer) == count * FULL.page_bytes


def test_eviction_takes_what_was_not_used_for_longest():
    """Of what is used equally often, if time tells nothing."""
    mem = memory(96, most_pages=[4], clock=lambda: 0.0)
    for n in range(4):
        filled(mem, "key", [n] * PAGE)
    assert mem.match("key", array([0] * 5))[1] == PAGE  # used again, and held
    filled(mem, "key", [7] * PAGE)
    assert [mem.match("key", array([n] * 5))[1] for n in (1, 2)] == [0, PAGE]


def test_roots_are_apart():
    mem = memory(10 * 96)
    filled(mem, "a", [1] * 8)
    assert mem.match("a", array([1] * 9))[1] == 8
    assert mem.match("b", array([1] * 9))[1] == 0


def test_no_prefix_cache():
    mem = memory(96, prefix_cache=False)
    filled(mem, "a", [1] * 8)
    assert mem.match("a", array([1] * 9))[1] == 0
    assert mem.arena.free_slabs == 1


def test_a_hit_needs_all_that_a_window_sees():
    """Behind a prefix whose window is gone nothing can go on, however much of the rest is there."""
    mem = memory(40 * 96, ("full", "window"))
    tokens = list(range(40))
    held = Holding()
    for computed in range(0, 40, 8):
        mem.grow(held, computed + 8)
        if computed == 16:
            mem.share("key", array(tokens[:24]), held)
        mem.trim(held, computed + 8)
    mem.share("key", array(tokens), held)
    # Pages of the window: those of 0..23 when it was shared, those that 32.. and 40 see at the end.
    assert hit(mem, "key", [*tokens, 1]) == 40
    assert [hit(mem, "key", [*tokens[:n], 1]) for n in (20, 28)] == [20, 24]
    mem.tree.evict(12 * 2)  # what windows have left behind goes first
    assert hit(mem, "key", [*tokens, 1]) == 40
    assert [hit(mem, "key", [*tokens[:n], 1]) for n in (20, 28)] == [0, 24]


def test_a_hit_needs_a_state_at_its_end():
    mem = memory(40 * 96, ("full", "state"))
    held = Holding()
    for end in (8, 11, 12, 20):
        mem.grow(held, end)
        mem.settle(held)
        if end in (12, 20):
            mem.share("key", array(range(end)), held)
    assert hit(mem, "key", [*range(20), 1]) == 20
    assert hit(mem, "key", [*range(19), 1]) == 12
    assert hit(mem, "key", [*range(11), 1]) == 0


def test_a_state_that_is_kept_is_not_written():
    mem = memory(40 * 96, ("state",))
    held = Holding()
    mem.grow(held, 8)
    mem.share("key", array(range(8)), held)
    kept = held.rows[0][WRITE]
    assert held.reach == 0
    mem.grow(held, 9)
    assert list(held.rows[0]) == [kept, held.rows[0][WRITE]]
    assert held.rows[0][WRITE] != kept
    mem.settle(held)
    assert kept not in held.rows[0]


def test_a_slab_is_emptied_for_another_kind():
    """Free pages of one kind in many slabs are moved together when another kind needs a slab."""
    mem = memory(6 * 96, ("full", "state"))
    executor = TokenPages(mem)
    sequences = []
    for n in range(6):
        held, _ = mem.match("key", array([n] * 17))
        if mem.grow(held, 4 * PAGE) is None:
            break
        sequences.append((held, n))
        carry_out(mem.commands(), executor.forms, executor.tables, executor.buffer)
        for handle in held.rows[0]:
            for pieces in executor.pieces(0, handle):
                pieces[:] = n
    for held, _ in sequences:  # a page of each stays
        mem.pools[0].release(held.rows[0][1:])
        held.rows[0] = held.rows[0][:1]
    more = []
    while True:
        other = Holding()
        if mem.grow(other, 1) is None:
            break
        more.append(other)
    assert mem.moves > 0
    carry_out(mem.commands(), executor.forms, executor.tables, executor.buffer)
    for held, n in sequences:
        assert all((pieces == n).all() for pieces in executor.pieces(0, held.rows[0][0]))
    mem.check([held for held, _ in sequences] + more)
    slabs = [-(-(pool.held + 1) // pool.form.slab_pages) for pool in mem.pools]
    assert sum(slabs) > 6, "it gave up before the memory was full"


def test_nothing_cached_is_given_up_where_moving_pages_is_enough():
    mem = memory(4 * 96, ("full", "state"))
    filled(mem, "key", range(4))  # a page and a state
    held = Holding()
    mem.grow(held, 17 * PAGE)
    mem.pools[0].release(held.rows[0][1::2])  # about every other place is free in three slabs
    held.rows[0] = held.rows[0][::2]
    cached = [pool.evictable for pool in mem.pools]
    assert not mem.arena.free_slabs
    assert mem.room.make([0, mem.pools[1].room + 1])
    assert mem.moves > 0
    assert [pool.evictable for pool in mem.pools] == cached
    mem.check([held])


@pytest.mark.parametrize("damage", ["reference", "offset", "lost", "cached"])
def test_check_notices_damage(damage):
    mem = memory(4 * 96)
    filled(mem, "key", range(8))
    held = Holding()
    mem.grow(held, 8)
    mem.check([held])
    match damage:
        case "reference":
            mem.pools[0].references[held.rows[0][0]] += 1
        case "offset":
            table = mem.pools[0].page_table
            table[held.rows[0][0]] = table[held.rows[0][1]]
        case "lost":
            held.rows = []
        case "cached":
            mem.pools[0].cached[:] = False
    with pytest.raises(AssertionError):
        mem.check([held])


@given(
    slab_pages=st.integers(1, 5),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4),
    slabs=st.integers(1, 3),
    rest=st.integers(0, 7),
)
def test_the_pieces_of_all_pages_cover_the_slabs_once(slab_pages, runs, slabs, rest):
    form = PageForm.of(slab_pages, runs)
    form = form.in_slabs(form.slab_bytes + rest % form.page_bytes)
    assert form.slab_pages == slab_pages
    assert form.page_bytes == sum(count * size for count, size in runs)
    buffer = np.zeros(slabs * form.slab_bytes, np.uint8)
    for page in range(slabs * slab_pages):
        for pieces in form.pieces(buffer, page // slab_pages * form.slab_bytes + page % slab_pages * form.page_bytes):
            pieces += 1
    used = buffer.reshape(slabs, -1)
    assert (used[:, : slab_pages * form.page_bytes] == 1).all()
    assert not used[:, slab_pages * form.page_bytes :].any()


def test_a_sequence_grows_in_its_own_slab():
    """While there are slabs left: neighbours in a sequence are neighbours in memory."""
    mem = memory(4 * 64, slab=64)
    pool = mem.pools[0]
    holdings = [Holding() for _ in range(3)]
    for pages in (2, 3, 4):
        for held in holdings:
            mem.grow(held, pages * PAGE)
    for held in holdings:
        assert (np.diff(pool.page_table[held.rows[0]]) == pool.form.page_bytes).all()
    mem.grow(holdings[0], 6 * PAGE)  # the last slab, whose pages are neighbours of each other
    assert np.diff(pool.page_table[holdings[0].rows[0]])[-1] == pool.form.page_bytes
    assert mem.grow(Holding(), 2 * PAGE) is not None
    assert mem.grow(Holding(), 1) is None


@given(st.lists(st.integers(64, 5_000_000), min_size=1, max_size=4), st.integers(20, 36))
def test_a_slab_is_filled_by_pages_of_all_sizes(sizes, power):
    slab = common_slab(sizes, 1 << power)
    assert slab % 64 == 0
    assert slab >= max(sizes)
    if 1 << power >= 256 * 64 * max(sizes):  # enough room to choose from
        assert max(slab % size / slab for size in sizes) < 0.05


def test_random_runs_are_alike_whatever_moves():
    """A long run without hypothesis, in which memory is always nearly full."""
    rng = random.Random(5)
    machine = Memory()
    machine.start(("full", "window", "state"), 10 * 96)
    for _ in range(400):
        held = Holding()
        tokens = [rng.randrange(3) for _ in range(rng.randint(1, 40))]
        if machine.mem.grow(held, len(tokens)) is not None:
            machine.mem.share("key", array(tokens), held)
        machine.mem.check([held])
        machine.mem.release(held)
    machine.teardown()


def test_a_state_that_is_read_alone_needs_another_page():
    """Whoever goes on behind a kept state holds one page of it and needs a second."""
    mem = memory(2 * 96, ("full", "state"))
    filled(mem, "key", range(4))
    others = [Holding() for _ in range(3)]
    assert all(mem.grow(other, 1) is not None for other in others)  # with the kept one, a slab of states
    held, computed = mem.match("key", array(range(5)))
    assert computed == 4
    assert not mem.fits(held, 5, step_tokens=STEP)
    assert mem.grow(held, 5) is None
    mem.release(others[0])
    assert mem.fits(held, 5, step_tokens=STEP)
    assert mem.grow(held, 5) is not None


def test_pinned_pages_stay_where_they_are():
    """Slabs with pinned pages are not emptied; their free pages are used, and what fits counts with it."""
    mem = memory(4 * 64, ("full", "state"), slab=64)
    pool = mem.pools[0]
    held = Holding()
    mem.grow(held, 12 * PAGE)  # three slabs
    kept = held.rows[0][[0, 5, 10]]
    pool.pin(kept[:2])
    pool.release(np.setdiff1d(held.rows[0], kept))
    held.rows[0] = kept
    places = pool.page_table[kept[:2]].copy()
    assert len(pool.pinned_slabs()) == 2
    assert mem.fits(Holding(), 2 * PAGE, step_tokens=STEP)
    states = []
    while True:
        states.append(Holding())
        fits = len(states) <= 6 - 1  # three of 20 bytes go into a slab of 64, and two slabs can be had
        assert (mem.pools[1].slabs_for(1) == 0 or mem.arena.free_slabs + (pool.emptiest() is not None) > 0) == fits
        if not fits:
            break
        mem.pools[0].check()
        assert mem.room.make([0, 1])
        states[-1].rows = [np.empty(0, np.int32), mem.pools[1].allocate(1).repeat(2)]
    assert (pool.page_table[kept[:2]] == places).all()
    assert not mem.room.make([0, 2])
    assert not mem.fits(Holding(), 1, step_tokens=STEP)
    pool.unpin(kept[:2])
    assert mem.fits(Holding(), 1, step_tokens=STEP)
    assert mem.room.make([0, 2])
    mem.check([held, *states[:-1]])
