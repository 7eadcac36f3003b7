"""Pool and prefix tree under random operations, against a plain dictionary of what should be there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.memory.kv_memory import KvMemory
from headrace.memory.page_form import PageForm

PAGE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def array(values):
    return np.array(values, np.int32)


def memory(pages=16, **kwargs):
    return KvMemory(pages=pages, form=PageForm(4, ((1, 40), (3, 8))), page_tokens=PAGE, **kwargs)


def fill(mem, handles, tokens):
    """Write the tokens into the pages' bytes, as an executor writes keys and values."""
    for i, handle in enumerate(handles):
        page = tokens[i * PAGE : (i + 1) * PAGE]
        for pieces in mem.pool.form.pieces(mem.arena.buffer, mem.pool.page_table[handle]):
            pieces[:, : len(page)] = page


def read(mem, handles):
    """The tokens, once they are known to be the same in all pieces of each page."""
    pages = [np.empty(0, np.uint8)]
    for offset in mem.pool.page_table[handles].tolist():
        pieces = np.concatenate([p[:, :PAGE] for p in mem.pool.form.pieces(mem.arena.buffer, offset)])
        assert (pieces == pieces[0]).all()
        pages.append(pieces[0])
    return np.concatenate(pages)


class Memory(RuleBasedStateMachine):
    """Sequences come, share, grow and go; no page is lost, shared by mistake, or holds another's tokens."""

    @initialize(pages=st.integers(4, 40))
    def start(self, pages):
        self.mem = memory(pages, poison=True)
        self.rows = {}
        self.next = 0

    @rule(tokens=TOKENS, key=st.sampled_from("ab"), computed=st.booleans())
    def admit(self, tokens, key, computed):
        tokens = array(tokens)
        row = self.mem.match(key, tokens)
        assert len(row) * PAGE < len(tokens), "at least one token is left to compute"
        assert (read(self.mem, row) == tokens[: len(row) * PAGE]).all(), "a cached page holds other tokens"
        more = self.mem.allocate(self.mem.pages_for(len(tokens)) - len(row), row[-1] if len(row) else None)
        if more is None:
            self.mem.release(row)
            return
        row = np.concatenate([row, more])
        fill(self.mem, row, tokens)
        if computed:
            row = self.mem.share(key, tokens, row)
            assert (read(self.mem, row)[: len(tokens)] == tokens).all(), "an exchanged page holds other tokens"
        self.rows[self.next] = (key, tokens, row)
        self.next += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), keep=st.booleans())
    def finish(self, data, keep):
        key, tokens, row = self.rows.pop(data.draw(st.sampled_from(sorted(self.rows))))
        if keep:
            row = self.mem.share(key, tokens, row)
        self.mem.release(row)

    @rule(count=st.integers(1, 20))
    def evict(self, count):
        before, can = self.mem.pool.free, self.mem.tree.evictable()
        freed = self.mem.tree.evict(count)
        assert freed == min(count, can), "evictable pages were left, or more was freed than asked"
        assert self.mem.pool.free == before + freed

    @invariant()
    def holds(self):
        if hasattr(self, "mem"):
            self.mem.check([row for _, _, row in self.rows.values()])
            for _, tokens, row in self.rows.values():
                assert (read(self.mem, row)[: len(tokens)] == tokens).all(), "a running sequence lost a page"

    def teardown(self):
        if hasattr(self, "mem"):
            for _, _, row in self.rows.values():
                self.mem.release(row)
            self.mem.tree.evict(10_000)
            self.mem.check([])
            assert self.mem.pool.used == 0
            assert self.mem.tree.describe() == {"roots": 0, "nodes": 0, "pages": 0}


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_allocation_is_all_or_nothing():
    mem = memory(4)
    row = mem.allocate(3)
    assert mem.allocate(2) is None
    assert mem.pool.free == 1
    mem.check([row])


def test_least_recently_used_prefix_goes_first():
    mem = memory(4)
    for tokens in ([0] * 4, [1] * 4, [2] * 4):
        mem.release(mem.share("k", array(tokens), mem.allocate(1)))
    mem.release(mem.match("k", array([0] * 5)))
    mem.tree.evict(1)
    assert [len(mem.match("k", array([t] * 5))) for t in range(3)] == [1, 0, 1]


def test_tenants_share_nothing():
    mem = memory(4)
    mem.release(mem.share("a", array([7] * 8), mem.allocate(2)))
    assert len(mem.match("b", array([7] * 9))) == 0


def test_without_prefix_cache_nothing_stays():
    mem = memory(4, prefix_cache=False)
    mem.release(mem.share("a", array([7] * 8), mem.allocate(2)))
    assert mem.pool.free == 4


@pytest.mark.parametrize("damage", ["references", "table", "arena"])
def test_check_sees_damage(damage):
    mem = memory(8)
    row = mem.share("a", array(range(8)), mem.allocate(2))
    if damage == "references":
        mem.pool.references[row[0]] += 1
    elif damage == "table":
        mem.pool.page_table[row[0]] = mem.pool.page_table[row[1]]
    else:
        mem.arena.give(mem.arena.take() or 0)
        mem.arena._free.pop()
    with pytest.raises(AssertionError):
        mem.check([row])


@given(
    slab_pages=st.integers(1, 5),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=4),
    slabs=st.integers(1, 3),
)
def test_the_pieces_of_all_pages_cover_the_slabs_once(slab_pages, runs, slabs):
    form = PageForm.of(slab_pages, runs)
    assert form.page_bytes == sum(count * size for count, size in runs)
    buffer = np.zeros(slabs * form.slab_bytes, np.uint8)
    for page in range(slabs * slab_pages):
        for pieces in form.pieces(buffer, page // slab_pages * form.slab_bytes + page % slab_pages * form.page_bytes):
            pieces += 1
    assert (buffer == 1).all()


def test_a_sequence_grows_in_its_own_slab():
    """While there are slabs left: neighbours in a sequence are neighbours in memory."""
    mem = memory(16)
    rows = [list(mem.allocate(2)) for _ in range(3)]
    for row in rows * 2:
        row += list(mem.allocate(1, row[-1]))
    for row in rows:
        assert (np.diff(mem.pool.page_table[row]) == mem.pool.form.page_bytes).all()
    rows[0] += list(mem.allocate(2, rows[0][-1]))  # the last slab, whose pages are neighbours of each other
    assert np.diff(mem.pool.page_table[rows[0]])[-1] == mem.pool.form.page_bytes
    assert len(mem.allocate(2)) == 2  # what is left
    assert mem.allocate(1) is None
