"""Pool and prefix tree under random operations, against a plain dictionary of what should be there."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.memory.kv_memory import KvMemory

PAGE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def array(values):
    return np.array(values, np.int32)


def memory(pages=16, **kwargs):
    return KvMemory(pages=pages, page_bytes=64, page_tokens=PAGE, **kwargs)


def fill(mem, handles, tokens):
    """Write the tokens into the pages' bytes, as an executor writes keys and values."""
    for i, handle in enumerate(handles):
        offset = mem.pool.page_table[handle]
        page = tokens[i * PAGE : (i + 1) * PAGE]
        mem.arena.buffer[offset : offset + len(page)] = page


def read(mem, handles):
    offsets = mem.pool.page_table[handles]
    return np.concatenate([mem.arena.buffer[o : o + PAGE] for o in offsets] or [np.empty(0, np.uint8)])


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
        more = self.mem.allocate(self.mem.pages_for(len(tokens)) - len(row))
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
