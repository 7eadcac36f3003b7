"""Copies of pages beside ``PageForm.pieces``, page by page."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.page_form import PageForm
from headrace.memory.tiers.page_bytes import ArenaBytes, neighbours

FORMS = st.builds(
    lambda pages, runs, rest: PageForm(pages, (form := PageForm.of(pages, runs)).slab_bytes + rest, form.runs),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4),
    st.just(0),
)


def content(form, buffer, offset):
    return np.concatenate([pieces.reshape(-1) for pieces in form.pieces(buffer, offset)])


@given(form=FORMS, slabs=st.integers(1, 4), data=st.data())
def test_pages_go_out_and_in(form, slabs, data):
    places = [
        slab * form.slab_bytes + page * form.page_bytes for slab in range(slabs) for page in range(form.slab_pages)
    ]
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True, max_size=len(places)))
    if data.draw(st.booleans()):
        chosen.sort()
    offsets = np.array(chosen, np.int64)
    arena = np.arange(slabs * form.slab_bytes, dtype=np.uint32).astype(np.uint8)
    before = arena.copy()
    pages = ArenaBytes(arena, (form,))
    out = np.zeros(len(offsets) * form.page_bytes, np.uint8)
    pages.read(0, offsets, out)
    expected = [content(form, before, offset) for offset in chosen]
    assert out.tobytes() == b"".join(x.tobytes() for x in expected)
    arena[:] = 0
    pages.write(0, offsets, out)
    for offset, page in zip(chosen, expected, strict=True):
        assert (content(form, arena, offset) == page).all()
    assert np.count_nonzero(arena) == sum(np.count_nonzero(page) for page in expected), "other pages were written"


def test_neighbours_in_a_slab_go_together():
    form = PageForm.of(4, [(1, 8)])
    assert neighbours(np.array([0, 8, 16, 24, 32, 40, 56], np.int64), form) == [(0, 4), (4, 6), (6, 7)]
    assert neighbours(np.array([8, 0], np.int64), form) == [(0, 1), (1, 2)]
    assert neighbours(np.array([], np.int64), form) == []
