"""The store of responses against a plain model of it."""

from collections import OrderedDict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.gateway.response_store import ResponseStore, StoredResponse

MAX_BYTES, MAX_RESPONSES = 1000, 4
OWNERS = st.sampled_from([None, "a", "b"])
NAMES = st.sampled_from([f"resp_{i}" for i in range(6)])
ITEMS = st.lists(st.sampled_from(["x", "y", "z"]), max_size=3, unique=True).map(tuple)
STORED = st.builds(StoredResponse, st.binary(max_size=60), st.binary(max_size=60), ITEMS)


class StoreMachine(RuleBasedStateMachine):
    """The least recently used go; an owner sees only what is its own."""

    def __init__(self):
        super().__init__()
        self.store = ResponseStore(MAX_BYTES, MAX_RESPONSES)
        self.model = OrderedDict()

    @rule(owner=OWNERS, name=NAMES, stored=STORED)
    def put(self, owner, name, stored):
        self.store.put(owner, name, stored)
        self.model.pop((owner, name), None)
        if stored.size > MAX_BYTES:
            return
        self.model[owner, name] = stored
        while len(self.model) > MAX_RESPONSES or sum(kept.size for kept in self.model.values()) > MAX_BYTES:
            self.model.popitem(last=False)

    @rule(owner=OWNERS, name=NAMES)
    def get(self, owner, name):
        assert self.store.get(owner, name) == self.model.get((owner, name))
        if (owner, name) in self.model:
            self.model.move_to_end((owner, name))

    @rule(owner=OWNERS, name=NAMES)
    def delete(self, owner, name):
        assert self.store.delete(owner, name) == (self.model.pop((owner, name), None) is not None)

    @rule(owner=OWNERS, item=st.sampled_from(["x", "y", "z"]))
    def holder(self, owner, item):
        found = self.store.holder(owner, item)
        if found is not None:
            assert item in found.item_ids
            (key,) = [key for key, stored in self.model.items() if stored is found]
            assert key[0] == owner
            self.model.move_to_end(key)

    @invariant()
    def sizes_are_kept(self):
        assert len(self.store) == len(self.model) <= MAX_RESPONSES
        assert self.store.size == sum(stored.size for stored in self.model.values()) <= MAX_BYTES


TestStore = StoreMachine.TestCase


def test_the_last_one_that_holds_an_item_is_found():
    store = ResponseStore(1000, 10)
    first, second = StoredResponse(b"1", b"", ("x",)), StoredResponse(b"2", b"", ("x",))
    store.put(None, "1", first)
    store.put(None, "2", second)
    assert store.holder(None, "x") is second
    assert store.holder("a", "x") is None
    store.delete(None, "1")
    assert store.holder(None, "x") is second


def test_a_store_without_room_keeps_nothing():
    for store in (ResponseStore(0, 10), ResponseStore(1000, 0)):
        store.put(None, "1", StoredResponse(b"1", b"", ()))
        assert len(store) == store.size == 0
