"""The interpreter against the meaning of each primitive, written down a second time, one element at a time."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_graphs import SIZES, Oracle, graphs

from headrace.compiler.interpret import interpret, round_bf16, run_program
from headrace.compiler.ir import Builder, DType, InvalidProgram, Kind, Op, Part, Program, Write

quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = st.floats(-4, 4)


@quick
@given(graphs())
def test_random_graphs_in_float64(case):
    graph, arrays = case
    got = interpret(graph, arrays, SIZES, exact=True)["y"]
    wanted = Oracle(graph, arrays).output("y")
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)


ROUNDED = (Op.EXP2, Op.LOG2, Op.SIN)  # of which NumPy promises no last bit


@quick
@given(graphs(numbers=NUMBERS))
def test_random_graphs_in_float32_to_the_bit(case):
    graph, arrays = case
    if any(n.op in ROUNDED for n in graph.nodes):
        return
    got, wanted = interpret(graph, arrays, SIZES)["y"], Oracle(graph, arrays, np.float32).output("y")
    if np.isfinite(got).all() and np.isfinite(wanted).all():  # what overflows on the way is of no one sign
        np.testing.assert_array_equal(got, wanted)


def test_sums_go_up_in_order():
    """1e8 swallows each small one alone, but not their sum."""
    b = Builder()
    b.axis("k", 1001)
    graph = b.graph({"y": (b.fold("sum", "k", b.input("x", DType.F32, ["k"])), [])})
    small = np.full(1001, 3.0, np.float32)
    up, down = small.copy(), small.copy()
    up[0] = down[-1] = 1e8
    assert interpret(graph, {"x": up}, {})["y"] == 1e8
    assert interpret(graph, {"x": down}, {})["y"] == 1e8 + 3000


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_bfloat16_is_rounded_as_pytorch_rounds(values):
    x = np.array(values, np.float32)
    np.testing.assert_array_equal(round_bf16(x), torch.from_numpy(x).bfloat16().float().numpy())


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
def test_casts(values):
    b = Builder()
    b.axis("k", len(values))
    x = b.input("x", DType.F32, ["k"])
    kinds = (DType.I32, DType.I64, DType.F16, DType.BF16, DType.F64)
    graph = b.graph({d: (b.cast(x, d), ["k"]) for d in kinds})
    array = np.array(values, np.float32)
    tensor = torch.from_numpy(array)
    got = interpret(graph, {"x": array}, {})
    np.testing.assert_array_equal(got["i32"], tensor.round().int().numpy())
    np.testing.assert_array_equal(got["i64"], tensor.round().long().numpy())
    np.testing.assert_array_equal(got["f16"], tensor.half().numpy())
    np.testing.assert_array_equal(got["bf16"], tensor.bfloat16().float().numpy())
    np.testing.assert_array_equal(got["f64"], tensor.double().numpy())
    exact = interpret(graph, {"x": array.astype(np.float64)}, {}, exact=True)
    np.testing.assert_array_equal(exact["bf16"], array)


def test_half_precision_arithmetic_is_float32_rounded():
    b = Builder()
    b.axis("k", 64)
    x, y = (b.input(n, DType.BF16, ["k"]) for n in "xy")
    graph = b.graph({"sum": (b.add(x, y), ["k"]), "product": (b.mul(x, y), ["k"])})
    torch.manual_seed(0)
    p, q = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    got = interpret(graph, {"x": p.float().numpy(), "y": q.float().numpy()}, {})
    np.testing.assert_array_equal(got["sum"], (p + q).float().numpy())
    np.testing.assert_array_equal(got["product"], (p * q).float().numpy())


def test_bounded_fold_of_nothing_is_neutral():
    b = Builder()
    b.axis("row", 3)
    b.axis("k", 4)
    x, bound = b.input("x", DType.F32, ["row", "k"]), b.input("n", DType.I32, ["row"])
    graph = b.graph({r: (b.fold(r, "k", x, bound), ["row"]) for r in ("sum", "max", "prod")})
    values = np.full((4, 3), np.nan, np.float32)
    values[:2, 1] = [3, 5]
    values[:, 2] = 2
    got = interpret(graph, {"x": values, "n": np.array([-1, 2, 9], np.int32)}, {})
    assert got["sum"].tolist() == [0, 8, 8]
    assert got["max"].tolist() == [-math.inf, 5, 2]
    assert got["prod"].tolist() == [1, 15, 16]


def test_ragged_axis_is_one_after_the_other():
    b = Builder()
    b.axis("row", "B")
    b.axis("token", "T", "row")
    b.axis("k", 2)
    x = b.input("x", DType.F32, ["row", "k"])
    owner = b.input("owner", DType.I32, ["token"])
    graph = b.graph({"y": (b.gather(x, {"row": owner}), ["token", "k"])})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = interpret(graph, {"x": x, "owner": np.array([0, 0, 2, 1], np.int32)}, {"B": 3, "T": 4})["y"]
    assert got.tolist() == [[0, 0, 2, 1], [3, 3, 5, 4]]


@given(st.data())
def test_reads_see_the_writes_before_their_version(data):
    at = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=3))
    b = Builder()
    b.axis("slot", 5)
    b.axis("k", 3)
    state = b.state("s", DType.I32, ["slot"])
    writes, reads = [], {0: b.read(state, 0)}
    for n in range(len(at)):
        # Each write stores what it finds there, doubled, plus the number of the element.
        index = b.input(f"i{n}", DType.I32, ["k"])
        old = b.gather(reads[n], {"slot": index})
        value = b.add(b.mul(old, b.const(2, DType.I32)), b.iota("k"))
        writes.append(Write("s", ("slot",), (index,), value))
        reads[n + 1] = b.read(state, n + 1)
    graph = b.graph({f"v{n}": (r, ["slot"]) for n, r in reads.items()}, writes)
    region = np.arange(5, dtype=np.int32)
    versions = [region.tolist()]
    for indices in at:
        old = versions[-1]
        new = list(old)
        for k, i in enumerate(indices):
            new[i] = old[i] * 2 + k
        versions.append(new)
    inputs = {"s": region} | {f"i{n}": np.array(i, np.int32) for n, i in enumerate(at)}
    got = interpret(graph, inputs, {})
    assert [got[f"v{n}"].tolist() for n in range(len(versions))] == versions
    assert region.tolist() == versions[-1]


def test_parts_repeat_with_their_own_weights_and_hand_values_on():
    first = Builder()
    first.axis("k", 2)
    start = first.graph({"x": (first.input("given", DType.F32, ["k"]), ["k"])})
    layer = Builder()
    layer.axis("k", 2)
    x, w = layer.input("x", DType.F32, ["k"], Kind.VALUE), layer.input("layers.*.w", DType.F32, ["k"], Kind.WEIGHT)
    body = layer.graph({"x": (layer.add(layer.mul(x, x), w), ["k"])})
    program = Program((Part("embed", start), Part("layers", body, ("0", "1"))))
    inputs = {"given": [1, 2], "layers.0.w": [1, 1], "layers.1.w": [5, 6]}
    got = run_program(program, {n: np.array(v, np.float32) for n, v in inputs.items()}, {})
    assert got["x"].tolist() == [9, 31]


@pytest.mark.parametrize("given_", [{}, {"x": np.zeros((2, 2), np.float32)}])
def test_missing_and_misshapen_inputs(given_):
    b = Builder()
    b.axis("k", 3)
    graph = b.graph({"y": (b.input("x", DType.F32, ["k"]), ["k"])})
    with pytest.raises(InvalidProgram, match="input 'x' is"):
        interpret(graph, given_, {})


def test_missing_state():
    b = Builder()
    b.axis("k", 3)
    graph = b.graph({"y": (b.read(b.state("s", DType.F32, ["k"]), 0), ["k"])})
    with pytest.raises(InvalidProgram, match="state 's' is missing"):
        interpret(graph, {}, {})
