"""Bit for bit the same result, whatever else is in the batch, however work is cut up, whoever compiled it."""

import itertools
import sys

import ir_layers
import numpy as np
import pytest
from header_functions import FORMS, needs_met
from hypothesis import given, settings
from hypothesis import strategies as st
from native_graph import run_native

from headrace.compiler.interpret import interpret, round_bf16
from headrace.compiler.ir import DType
from headrace.compiler.native.build import Builder
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.toolchain import Compiler
from headrace.compiler.schedule.tiles import Tile

NATIVE = ("-O1", *cpu_features().compile_flags())


def layer_inputs(graph, rows, dtype, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for name, declared in graph.inputs.items():
        shape = [rows if graph.axes[a].extent == "T" else graph.axes[a].extent for a in declared.type.axes]
        values = rng.standard_normal(shape).astype(np.float32)
        found[name] = round_bf16(values) if declared.type.dtype is DType.BF16 else values
    return found


def run(graph, inputs, rows=slice(None), **options):
    cut = {**inputs, "x": inputs["x"][:, rows].copy()}
    options.setdefault("flags", NATIVE)
    return run_native(graph, cut, {"T": cut["x"].shape[1]}, **options)["y"]


@pytest.fixture(scope="module", params=[DType.F32, DType.BF16])
def plain(request):
    graph = ir_layers.plain_layer(dtype=request.param)
    inputs = layer_inputs(graph, 29, request.param)
    whole = run(graph, inputs)
    expected = interpret(graph, inputs, {"T": 29})["y"]
    assert np.abs(whole - expected).max() < (1e-4 if request.param is DType.F32 else 0.1) * np.abs(expected).max()
    return graph, inputs, whole


@settings(max_examples=8)
@given(st.lists(st.integers(1, 28), max_size=4, unique=True))
def test_any_cut_of_the_rows(plain, cuts):
    graph, inputs, whole = plain
    ends = [0, *sorted(cuts), 29]
    parts = [run(graph, inputs, slice(a, b)) for a, b in itertools.pairwise(ends)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("tile", "row_tile"),
    [
        (Tile(1, 1), 1),
        (Tile(5, 2, variants=(3, 1)), 7),
        (Tile(12, 1, rows_outside=True), 48),
        (Tile(4, 2, groups_unrolled=False, blocks=2, stream=0, pages=0), 16),
    ],
)
def test_any_tiles_on_any_number_of_threads(plain, tile, row_tile, threads):
    graph, inputs, whole = plain
    found = run(graph, inputs, tile_for=lambda facts, nest: tile, row_tile=row_tile, threads=threads)
    assert np.array_equal(found, whole)


def test_how_hard_the_compiler_tries(plain):
    graph, inputs, whole = plain
    assert np.array_equal(run(graph, inputs, flags=("-O3", *NATIVE[1:])), whole)


@pytest.mark.parametrize("form", list(FORMS))
def test_sets_of_instructions(plain, form):
    """Equal but for products of pairs of bfloat16, which AVX-512 BF16 rounds in another order."""
    graph, inputs, _ = plain
    bf16 = any(declared.type.dtype is DType.BF16 for declared in graph.inputs.values())
    plain_form = run(graph, inputs, flags=FORMS["plain"])
    if not needs_met(form):
        pytest.skip(f"this processor has no {form}")
    found = run(graph, inputs, flags=FORMS[form])
    if form == "avx512" and bf16:
        assert np.abs(found - plain_form).max() < 1e-2 * np.abs(plain_form).max()
    else:
        assert np.array_equal(found, plain_form)


def test_another_compiler(plain):
    pytest.importorskip("ziglang", reason="the ziglang wheel is not installed")
    zig = Builder(Compiler((sys.executable, "-m", "ziglang", "cc"), "zig", "zig"))
    graph, inputs, whole = plain
    assert np.array_equal(run(graph, inputs, builder=zig), whole)
