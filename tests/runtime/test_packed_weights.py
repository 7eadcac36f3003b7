"""A program's weights side by side in memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.codegen.layout import Layout, Piece, pack, plain
from headrace.compiler.interpret import round_bf16
from headrace.compiler.ir import Builder, DType, Kind
from headrace.runtime.native_program import SLACK
from headrace.runtime.packed_weights import ALIGNMENT, addresses, directory, fill, stored_bits

LAYERS = ("0", "1", "2")


def array(name, dtype=DType.F32, extents=None, repeats=("",), layout=None):
    extents = extents or {"a": 3, "b": 5}
    axes = tuple(sorted(extents))
    return Array(name, dtype, axes, layout or plain(axes, extents), "", repeats)


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.booleans(), st.sampled_from([DType.F32, DType.I8, DType.BF16])), max_size=5
    )
)
def test_no_weight_touches_another(chosen):
    weights = [
        array(f"w{n}.*" if layered else f"w{n}", dtype, {"a": extent}, LAYERS if layered else ("",))
        for n, (extent, layered, dtype) in enumerate(chosen)
    ]
    where = directory(weights, {w.name: {"a": extent} for w, (extent, *_) in zip(weights, chosen, strict=True)})
    ends = 0
    for place in where.places:
        assert place.begin % ALIGNMENT == 0
        assert place.begin >= ends
        ends = place.begin + place.size + SLACK
    assert where.size >= ends
    repetitions = max((len(w.repeats) for w in weights), default=1)
    assert len(where.table) == repetitions * len(weights)
    for n, place in enumerate(where.table):
        repetition, weight = divmod(n, len(weights))
        names = [
            w.name.replace("*", w.repeats[repetition])
            for w in weights[weight : weight + 1]
            if repetition < len(w.repeats)
        ]
        assert [place.name] == names if place else names == []


def test_the_same_weight_lies_once_in_each_layout():
    """Tied embeddings are read by rows and by columns."""
    rows = array("table")
    columns = array("table", layout=Layout((Piece("b", 1, 5), Piece("a", 1, 3))))
    where = directory([rows, columns, rows], {"table": {"a": 3, "b": 5}})
    assert len(where.places) == 2
    assert where.table[0] is where.table[2]


def test_weights_are_computed_packed_and_reported():
    builder = Builder()
    builder.axis("a", 3)
    doubled = builder.mul(builder.input("w.*", DType.F32, ["a"], Kind.WEIGHT), builder.const(2, DType.F32))
    made = {"w.*#1": builder.graph({"value": (doubled, ["a"])})}
    weights = [array("w.*#1", extents={"a": 3}, repeats=LAYERS), array("h", DType.BF16, {"a": 3})]
    where = directory(weights, {w.name: {"a": 3} for w in weights})
    stored = {f"w.{n}": np.full(3, n, np.float32) for n in range(3)} | {"h": np.array([1, -2, 0.5], np.float32)}
    seen = []
    block = fill(where, made, stored.__getitem__, lambda done, total: seen.append((done, total)))
    table = addresses(where, block)
    for n in range(3):
        place = where.table[2 * n]
        assert np.array_equal(block[place.begin :][: place.size].view(np.float32), np.full(3, 2 * n))
        assert table[2 * n] == block.ctypes.data + place.begin
    half = where.table[1]
    assert block[half.begin :][: half.size].view(np.uint16).tolist() == [0x3F80, 0xC000, 0x3F00]
    assert [table[3], table[5]] == [0, 0]  # later repetitions have no such weight
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1.5, -2], np.float32), DType.F32),
        (round_bf16(np.array([1.1, 2.7], np.float32)), DType.BF16),
        (np.array([0x3F80], np.uint16), DType.BF16),
        (np.array([1, 2], np.float16), DType.F16),
        (np.array([-3, 3], np.int8), DType.I8),
        (np.array([15, 0], np.uint8), DType.U4),
    ],
)
def test_memory_holds_what_the_interpreter_sees(values, dtype):
    held = stored_bits(values, dtype)
    if dtype is DType.BF16 and values.dtype == np.float32:
        assert np.array_equal((held.astype(np.uint32) << 16).view(np.float32), values)
    else:
        assert np.array_equal(held, values)
    assert pack(held, ("a",), plain(("a",), {"a": len(held)})).dtype == held.dtype
