"""Random weights, states and ragged batches for the layers of ``ir_layers``."""

import numpy as np

from headrace.compiler.interpret import round_bf16
from headrace.compiler.ir import DType, Kind

MAXIMA = {"NB": 4, "P": 64}
ROWS = [(0, 5), (300, 1), (40, 13), (255, 3), (0, 1)]


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
