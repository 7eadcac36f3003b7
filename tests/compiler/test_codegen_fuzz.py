"""Random graphs through schedule and C, against the interpreter: whatever it can compute, compiled code computes."""

import native_fuzz
import numpy as np
import pytest
from native_graph import run_native

from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.interpret import interpret
from headrace.compiler.ir import Builder, DType, Kind
from headrace.compiler.schedule.tiles import Tile
from headrace.compiler.show import show

F, I = DType.F32, DType.I32  # noqa: E741


def check(seeds, steps=8, may_refuse=0, **options):
    """Graphs in C against the interpreter; some may be refused with a reason, none may be wrong."""
    drawn = {seed: native_fuzz.draw(seed, f"g{seed}", steps) for seed in seeds}
    refusals = {seed: why for seed, case in drawn.items() if (why := native_fuzz.refused(case))}
    assert len(refusals) <= may_refuse, refusals
    cases = [case for seed, case in drawn.items() if seed not in refusals]
    for case, rows, expected, real, found in native_fuzz.run_together(cases, **options):
        for name in found:
            wrong = native_fuzz.differs(case, name, expected[name], real[name], found[name])
            assert not wrong, f"{rows} rows, {wrong}\n{show(case.graph)}"


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_graphs(first):
    check(range(first, first + 20))


def test_random_graphs_on_two_threads_in_other_tiles():
    def tiles(facts, nest):
        return Tile(rows=3, vectors=2, rows_outside=True)

    check(range(60, 72), threads=2, row_tile=5, tile_for=tiles)


@pytest.mark.bars
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_random_graphs(first):
    check(range(first, first + 50), steps=10, may_refuse=1)


def both(build, sizes, inputs, **options):
    builder = Builder()
    builder.axis("t", "T")
    graph = build(builder)
    expected = interpret(graph, {k: v.copy() for k, v in inputs.items()}, sizes)
    return expected, run_native(graph, inputs, sizes, flags=("-O1",), **options), graph


def test_a_value_that_is_two_results_and_one_that_is_an_input():
    x = np.arange(15, dtype=np.float32).reshape(3, 5)  # [d, t]

    def build(b):
        b.axis("d", 3)
        given = b.input("x", F, ["t", "d"])
        y = b.add(given, b.const(1, F))
        return b.graph({"a": (y, ["t", "d"]), "b": (y, ["t", "d"]), "c": (given, ["t", "d"])})

    expected, found, _ = both(build, {"T": 5}, {"x": x})
    assert all(np.array_equal(found[name], expected[name]) for name in "abc")


def test_a_bound_that_does_not_ascend_with_the_rows():
    """The loops of a tile end at its farthest row, wherever that is; a row of which nothing counts has a sum, too."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((32, 7), (32, 16)))
    end = np.array([0, 31, 3, -5, 40, 1, 0], np.int32)

    def build(b):
        b.axis("k", 32)
        b.axis("n", 16)
        left, right = b.input("x", F, ["t", "k"]), b.input("w", F, ["k", "n"], Kind.WEIGHT)
        bound = b.input("end", I, ["t"])
        return b.graph({"y": (b.fold("sum", "k", b.mul(left, right), bound), ["t", "n"])})

    expected, found, _ = both(build, {"T": 7}, {"x": x, "w": w, "end": end})
    assert np.array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("unbounded", [False, True])
def test_a_factor_is_zero_behind_a_bound_only_if_nobody_else_reads_it(unbounded):
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (32, 6)).astype(np.float32)
    w = rng.integers(-4, 5, (32, 16)).astype(np.float32)
    end = np.array([5, 32, 0, 17, 2, 9], np.int32)

    def build(b):
        b.axis("k", 32)
        b.axis("n", 16)
        left = b.cast(b.add(b.input("x", F, ["t", "k"]), b.const(1, F)), DType.BF16)
        right = b.input("w", DType.BF16, ["k", "n"], Kind.WEIGHT)
        product = b.mul(b.cast(left, F), b.cast(right, F))
        results = {"y": (b.fold("sum", "k", product, b.input("end", I, ["t"])), ["t", "n"])}
        if unbounded:
            results["z"] = (left, ["t", "k"])
        return b.graph(results)

    expected, found, _ = both(build, {"T": 6}, {"x": x, "w": w, "end": end})
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_maximum_of_sums_is_not_taken_apart():
    x = np.array([[3.0, -1.0], [-5.0, 2.0], [1.0, 1.0]], np.float32)

    def build(b):
        b.axis("d", 3)
        given = b.input("x", F, ["t", "d"])
        return b.graph({"y": (b.fold("max", "d", b.add(given, b.mul(given, given))), ["t"])})

    expected, found, _ = both(build, {"T": 2}, {"x": x})
    assert np.array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_arithmetic_on_half_precision_is_rounded(dtype):
    x = np.array([[1.0, 256.0, 3.0]], np.float32)

    def build(b):
        b.axis("d", 1)
        half = b.cast(b.input("x", F, ["t", "d"]), dtype)
        return b.graph({"y": (b.cast(b.add(half, b.cast(b.const(2**-9 + 1, F), dtype)), F), ["t", "d"])})

    expected, found, _ = both(build, {"T": 3}, {"x": x})
    assert np.array_equal(found["y"], expected["y"])


def test_reading_rows_that_other_threads_compute():
    """What is gathered across rows, or folded over them, waits until all rows are there."""
    rng = np.random.default_rng(0)
    rows = 301
    x = rng.integers(-9, 9, (16, rows)).astype(np.float32)
    order = rng.integers(0, rows, rows).astype(np.int32)

    def build(b):
        b.axis("d", 16)
        y = b.exp2(b.input("x", F, ["t", "d"]))
        other = b.gather(y, {"t": b.input("order", I, ["t"])})
        total = b.fold("max", "t", y)
        return b.graph({"y": (b.add(other, total), ["t", "d"]), "z": (b.fold("sum", "d", other), ["t"])})

    expected, found, _ = both(build, {"T": rows}, {"x": x, "order": order}, threads=2, row_tile=4)
    assert all(np.allclose(found[name], expected[name], rtol=1e-6) for name in expected)


def test_axes_of_rows_of_two_kinds():
    """A step selects some of its rows: both have any length, and nests over them do not share a stage."""
    x = np.arange(50, dtype=np.float32).reshape(10, 5)  # [d, t]
    select = np.array([4, 0, 2], np.int32)

    def build(b):
        b.axis("d", 10)
        b.axis("chosen", "R")
        y = b.mul(b.input("x", F, ["t", "d"]), b.const(2, F))
        picked = b.gather(y, {"t": b.input("select", I, ["chosen"])})
        return b.graph({"y": (y, ["t", "d"]), "z": (picked, ["chosen", "d"])})

    expected, found, _ = both(build, {"T": 5, "R": 3}, {"x": x, "select": select})
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_state_that_nothing_is_contracted_with():
    rng = np.random.default_rng(0)
    region = rng.standard_normal((8, 6, 16)).astype(np.float32)  # [d, page, slot]
    x = rng.standard_normal((8, 4)).astype(np.float32)
    place = np.array([3, 90, 0, 17], np.int32)

    def build(b):
        b.axis("d", 8)
        b.axis("page", "PAGES")
        b.axis("slot", 16)
        state = b.state("memory", F, ["page", "slot", "d"])
        at = b.input("place", I, ["t"])
        b.axis("flat", "FLAT")
        page, slot = b.gather(b.iota("flat", 16), {"flat": at}), b.mod(at, b.const(16, I))
        old = b.gather(b.read(state, 0), {"page": page, "slot": slot})
        new = b.add(old, b.input("x", F, ["t", "d"]))
        from headrace.compiler.ir import Write

        write = Write(state, ("page", "slot"), (page, slot), new)
        later = b.gather(b.read(state, 1), {"page": page, "slot": slot})
        return b.graph({"y": (old, ["t", "d"]), "z": (later, ["t", "d"])}, [write])

    sizes = {"T": 4, "PAGES": 6, "FLAT": 96}
    mine, theirs = region.copy(), region.copy()
    builder = Builder()
    builder.axis("t", "T")
    graph = build(builder)
    expected = interpret(graph, {"x": x, "place": place, "memory": theirs}, sizes)
    found = run_native(graph, {"x": x, "place": place, "memory": mine}, sizes, flags=("-O1",))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda b: b.fold("sum", "d", b.input("x", F, ["t", "d"]), mode="scan"), "fold"),
        (lambda b: b.scatter(b.input("x", F, ["t", "d"]), b.const(1, F), {"d": b.const(1, I)}), "scatter"),
        (lambda b: b.add(b.input("y", DType.F64, ["t", "d"]), b.const(1, DType.F64)), "f64"),
    ],
)
def test_what_there_is_no_code_for_is_refused(build, why):
    builder = Builder()
    builder.axis("t", "T")
    builder.axis("d", 32)
    graph = builder.graph({"out": (build(builder), ["t", "d"])})
    with pytest.raises(CannotEmit, match=why):
        run_native(graph, {}, {"T": 1})
