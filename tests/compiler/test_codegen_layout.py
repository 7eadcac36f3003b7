"""Where elements lie: packing against a loop that follows the words of the definition."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.codegen.layout import Layout, Piece, pack, plain
from headrace.compiler.ir import BITS, DType

AXES = ("a", "b", "c")


@st.composite
def layouts(draw, nibble=False):
    """A layout of some axes, every element in a place of its own, and the array's shape: digits may reach beyond it."""
    axes = AXES[: draw(st.integers(1, 3))]
    pieces, shape = [], []
    for axis in axes:
        sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 16]), min_size=1, max_size=3))
        divisors = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
        pieces += [Piece(axis, divisor, size) for divisor, size in zip(divisors, sizes, strict=True)]
        whole = math.prod(sizes)
        shape.append(draw(st.integers(max(1, whole - 7), whole)))
    pieces = draw(st.permutations(pieces))
    half = None
    if nibble:
        pair = Piece(axes[0], 1, 2)
        pieces = [Piece(p.axis, 2 * p.divisor, p.extent) if p.axis == axes[0] else p for p in pieces]
        shape[0] = 2 * shape[0] - draw(st.integers(0, 1))
        half = pair
    return axes, tuple(shape), Layout(tuple(pieces), half)


def place(layout, point):
    """Element (byte, if there is a nibble) and half of it, from the definition of a digit."""
    digits = [point[p.axis] // p.divisor % p.extent for p in layout.pieces]
    half = layout.nibble and point[layout.nibble.axis] // layout.nibble.divisor % layout.nibble.extent
    return sum(d * s for d, s in zip(digits, layout.strides(), strict=True)), half or 0


def slowly(values, axes, layout):
    size = math.prod(p.extent for p in layout.pieces)
    found = np.zeros(size, values.dtype)
    for point in itertools.product(*map(range, values.shape)):
        at, half = place(layout, dict(zip(axes, point, strict=True)))
        found[at] |= values[point] << (4 * half)
    return found


@given(layouts())
def test_packing(given_layout):
    axes, shape, layout = given_layout
    values = np.arange(1, 1 + math.prod(shape), dtype=np.int64).reshape(shape)
    packed = pack(values, axes, layout)
    assert np.array_equal(packed, slowly(values, axes, layout))
    assert packed.size == layout.elements(dict(zip(axes, shape, strict=True)))
    assert layout.nbytes(DType.I64, {}) == packed.nbytes == packed.size * BITS[DType.I64] // 8


@given(layouts(nibble=True), st.integers(0, 2**32 - 1))
def test_packing_two_elements_a_byte(given_layout, seed):
    axes, shape, layout = given_layout
    values = np.random.default_rng(seed).integers(0, 16, shape).astype(np.uint8)
    packed = pack(values, axes, layout)
    assert packed.dtype == np.uint8
    assert np.array_equal(packed, slowly(values, axes, layout))
    assert layout.nbytes(DType.U4, {}) == packed.nbytes


@given(layouts(), st.sampled_from([np.float16, np.uint16, np.float32, np.uint8]))
def test_unpacking_gives_every_element_back(given_layout, dtype):
    axes, shape, layout = given_layout
    values = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    packed = pack(values, axes, layout)
    assert packed.dtype == dtype
    order = pack(np.arange(1, values.size + 1).reshape(shape), axes, layout)
    assert np.array_equal(packed[order > 0], values.reshape(-1)[order[order > 0] - 1])
    assert not packed[order == 0].any()  # what is beyond the array is zero


@given(layouts())
def test_strides_tell_where_a_digits_next_value_is(given_layout):
    axes, shape, layout = given_layout
    numbers = pack(np.arange(math.prod(shape)).reshape(shape), axes, layout)
    for n, (piece, stride) in enumerate(zip(layout.pieces, layout.strides(), strict=True)):
        inner = math.prod(p.extent for p in layout.pieces[n + 1 :])
        assert stride == inner, piece
    assert numbers.size == math.prod(p.extent for p in layout.pieces)


def test_a_page_may_hold_more_than_one_state():
    """With ``records`` a digit steps over what others have there; what lies inside does not move."""
    layout = Layout((Piece("page", 1, 0), Piece("slot", 1, 16), Piece("d", 1, 4)), records=((1, 1000),))
    assert layout.strides() == (1000, 4, 1)
    assert layout.elements({"page": 3}) == 3000


def test_an_axis_of_any_length_comes_first():
    layout = plain(("t", "d"), {"t": "T", "d": 5})
    assert layout.strides() == (5, 1)
    assert layout.nbytes(DType.F32, {"t": 7}) == 7 * 5 * 4
    values = np.arange(35).reshape(7, 5)
    assert np.array_equal(pack(values, ("t", "d"), layout), values.reshape(-1))


def test_a_single_value_has_one_element():
    layout = plain((), {})
    assert (layout.elements({}), layout.nbytes(DType.F32, {})) == (1, 4)
    assert pack(np.float32(3), (), layout).tolist() == [3.0]


@pytest.mark.parametrize(("piece", "leads"), [(Piece("a", 16, 3), True), (Piece("a", 1, 16), False)])
def test_the_highest_digit_needs_no_remainder(piece, leads):
    layout = Layout((Piece("b", 1, 2), Piece("a", 16, 3), Piece("a", 1, 16)))
    assert layout.leads(piece) is leads
