"""Whole graphs through schedule and C, against the interpreter."""

import ir_layers
import numpy as np
import pytest
from native_graph import run_native

from headrace.compiler.interpret import interpret, round_bf16
from headrace.compiler.ir import DType, Kind

MAXIMA = {"NB": 4, "P": 64}


def layer_inputs(graph, rows, seed=0):
    """Random weights and states, and a ragged batch of (start, length)."""
    rng = np.random.default_rng(seed)
    lengths = [n for _, n in rows]
    last = [s + n for s, n in rows]
    pages = [-(-end // 16) for end in last]
    sizes = {"T": sum(lengths), "B": len(rows), "NB": -(-max(last) // 256), "P": max(pages), "PAGES": sum(pages)}
    sizes["S"] = sizes["P"] * 16
    extents = {name: sizes.get(axis.extent, axis.extent) for name, axis in graph.axes.items()}
    table = np.zeros((len(rows), sizes["P"]), np.int32)
    order = rng.permutation(sizes["PAGES"])
    for row, (first, count) in enumerate(zip(np.cumsum([0, *pages[:-1]]), pages, strict=True)):
        table[row, :count] = order[first : first + count]
    inputs = {
        "row": np.repeat(np.arange(len(rows)), lengths).astype(np.int32),
        "positions": np.concatenate([np.arange(s, s + n) for s, n in rows]).astype(np.int32),
        "pages": table.T.copy(),
    }
    for name, kind in graph.states.items():
        state = round_bf16(rng.standard_normal([extents[a] for a in kind.axes]))
        inputs[name] = state
    for name, declared in graph.inputs.items():
        shape = [extents[a] for a in declared.type.axes]
        if name in inputs or declared.kind is Kind.STATE:
            continue
        if declared.type.dtype is DType.U4:
            inputs[name] = rng.integers(0, 16, shape).astype(np.uint8)
        elif declared.type.dtype is DType.F16:
            inputs[name] = (rng.random(shape) * (0.01 if "scales" in name else -0.07)).astype(np.float16)
        else:
            inputs[name] = rng.standard_normal(shape).astype(np.float32)
    return inputs, sizes, np.cumsum([0, *lengths]).astype(np.int32)


ROWS = [(0, 5), (300, 1), (40, 13), (255, 3), (0, 1)]


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


@pytest.mark.parametrize("row_tile", [8, 16, 48])
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
