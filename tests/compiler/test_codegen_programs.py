"""Whole graphs through schedule and C, against the interpreter."""

import functools

import ir_layers
import native_graph
import numpy as np
import pytest
from layer_batches import MAXIMA, ROWS, layer_inputs

from headrace.compiler.interpret import interpret
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.schedule.tiles import Tile

NATIVE = cpu_features().compile_flags()
run_native = functools.partial(native_graph.run_native, flags=("-O1", *NATIVE))  # -O3 takes the compiler much longer


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("groups", "heads", "width"), [(3, 2, 64), (1, 4, 32)])
def test_a_quantized_layer(groups, heads, width, threads):
    graph = ir_layers.layer(hidden=groups * heads * width, kv_heads=heads, group=groups, head_dim=width, ffn=96)
    inputs, sizes, segments = layer_inputs(graph, ROWS)
    expected_inputs = {name: value.copy() for name, value in inputs.items()}
    expected = interpret(graph, expected_inputs, sizes)
    found = run_native(graph, inputs, sizes, maxima=MAXIMA, segments=segments, threads=threads)
    scale = np.abs(expected["x"]).max()
    # Rounding to 8 bits may go the other way for single elements; what is no rounding would be far off.
    assert np.abs(found["x"] - expected["x"]).max() < 5e-3 * scale
    for name in graph.states:
        assert np.abs(inputs[name] - expected_inputs[name]).max() < 2e-2


def test_poisoned_pages_do_not_leak():
    """What lies behind the end of a sequence is not a number; nobody may see it."""
    graph = ir_layers.layer(hidden=128, kv_heads=2, group=1, head_dim=64, ffn=64)
    inputs, sizes, segments = layer_inputs(graph, ROWS)
    clean = run_native(graph, {k: v.copy() for k, v in inputs.items()}, sizes, maxima=MAXIMA, segments=segments)
    position = np.full((sizes["PAGES"], 16), np.iinfo(np.int32).max)
    for row, (start, length) in enumerate(ROWS):
        for at in range(0, start + length, 16):
            position[inputs["pages"][at // 16, row]] = np.arange(at, at + 16) - (start + length)
    unused = (position >= 0).reshape(sizes["PAGES"], 16)
    for name, kind in graph.states.items():
        axes = kind.axes
        state = np.moveaxis(inputs[name], [axes.index("page"), axes.index("slot")], [0, 1])
        state[unused] = np.nan
    poisoned = run_native(graph, inputs, sizes, maxima=MAXIMA, segments=segments)
    assert np.array_equal(clean["x"], poisoned["x"])


@pytest.mark.parametrize("row_tile", [8, 48])
def test_rows_do_not_depend_on_their_neighbours(row_tile):
    """Bit for bit the same alone, in a batch, in chunks, with other tiles, on two threads."""
    graph = ir_layers.layer(hidden=128, kv_heads=2, group=1, head_dim=64, ffn=64)
    inputs, sizes, segments = layer_inputs(graph, ROWS)
    whole = run_native(
        graph,
        {k: v.copy() for k, v in inputs.items()},
        sizes,
        maxima=MAXIMA,
        segments=segments,
        row_tile=row_tile,
        threads=2,
    )["x"]
    for row, (start, length) in enumerate(ROWS):
        states = {name: inputs[name].copy() for name in graph.states}
        for first, count in ((0, length // 2), (length // 2, length - length // 2)):
            if not count:
                continue
            begin = segments[row] + first
            chunk = {**inputs, **states}
            for name, declared in graph.inputs.items():
                if "token" in declared.type.axes:
                    at = declared.type.axes.index("token")
                    chunk[name] = np.take(inputs[name], range(begin, begin + count), axis=at)
            chunk["row"] = np.zeros(count, np.int32)
            chunk["pages"] = inputs["pages"][:, row : row + 1].copy()
            small = {**sizes, "T": count, "B": 1, "NB": -(-(start + first + count) // 256)}
            alone = run_native(graph, chunk, small, maxima=MAXIMA, segments=np.array([0, count]))["x"]
            assert np.array_equal(alone, whole[:, begin : begin + count])


def small_layer():
    graph = ir_layers.layer(hidden=128, kv_heads=2, group=1, head_dim=64, ffn=64)
    return graph, *layer_inputs(graph, ROWS)


def run_layer(graph, inputs, sizes, segments, **options):
    mine = {name: value.copy() for name, value in inputs.items()}
    found = run_native(graph, mine, sizes, maxima=MAXIMA, segments=segments, **options)
    return [found["x"], *(mine[name] for name in graph.states)]


@pytest.mark.parametrize("tile", [Tile(3, 1, (1,)), Tile(2, 2, rows_outside=True, groups_unrolled=False, blocks=2)])
def test_a_quantized_layer_in_any_tiles(tile):
    layer = small_layer()
    expected = run_layer(*layer)
    found = run_layer(*layer, tile_for=lambda facts, nest: tile, row_tile=5, threads=2)
    assert all(map(np.array_equal, found, expected))


@pytest.mark.bars
@pytest.mark.parametrize("flags", [("-O3", *NATIVE), ("-O2",), ("-O2", "-mavx2", "-mfma", "-mf16c", "-mno-avx512f")])
def test_a_quantized_layer_by_other_flags(flags):
    """The products of bytes are exact everywhere; attention multiplies bfloat16, in which AVX-512 BF16 rounds alone."""
    layer = small_layer()
    expected, found = run_layer(*layer), run_layer(*layer, flags=flags)
    if flags[0] == "-O3":
        assert all(map(np.array_equal, found, expected))
    else:
        assert np.abs(found[0] - expected[0]).max() < 5e-3 * np.abs(expected[0]).max()
