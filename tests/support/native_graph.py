"""Runs one graph through schedule, C compiler and thread pool, for comparison with the interpreter."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from headrace.compiler.build import native_source
from headrace.compiler.codegen.layout import pack
from headrace.compiler.codegen.program import generate
from headrace.compiler.interpret import storage
from headrace.compiler.ir import DType, Graph, Kind, Part
from headrace.compiler.native.build import Builder
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.schedule.plan import default_tile, plan_part
from headrace.runtime.native_program import SLACK, NativeProgram, Tiles, aligned
from headrace.runtime.packed_weights import addresses, directory, fill

PAGE_TOKENS = 16


def bits(values: np.ndarray, dtype: DType) -> np.ndarray:
    """An array as memory holds it: bfloat16 as its upper halves."""
    if dtype is DType.BF16:
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(storage(dtype))


def unbits(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The reverse."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype is DType.BF16 else values


def roomy(values: np.ndarray) -> np.ndarray:
    """A copy with the room behind it that programs count on."""
    raw = aligned(values.nbytes + SLACK)
    raw[: values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return raw


def run_native(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    *,
    maxima: Mapping[str, int] | None = None,
    segments: np.ndarray | None = None,
    threads: int = 1,
    tile_for=default_tile,
    row_tile: int = 48,
    flags: tuple[str, ...] | None = None,
    builder: Builder | None = None,
) -> dict[str, np.ndarray]:
    """The graph's outputs, axes in the order of their names. States in ``inputs`` are changed in place.

    Args:
        graph: What to compute.
        inputs: As the interpreter takes them.
        sizes: Values of the symbols.
        maxima: The largest values of those that stand inside of arrays.
        segments: int32 offsets of the rows' segments, if the graph is ragged.
        threads: Threads that compute.
        tile_for: See ``plan_part``.
        row_tile: See ``plan_part``.
        flags: For the C compiler.
        builder: Who compiles.
    """
    maxima = dict(maxima or {})
    plan = plan_part(graph, maxima, PAGE_TOKENS, 1, tile_for, row_tile)
    source = generate([(Part("part", graph), plan)])
    library = (builder or Builder()).load(native_source("part", source, flags))
    arrays = source.arrays
    _held, places = packed_weights(arrays.weights, inputs)
    states, slabs = _states(source, inputs)
    with ThreadPool(threads) as pool:
        program = NativeProgram(
            source,
            library,
            pool,
            weights=places,
            states=[states[name].ctypes.data for name in arrays.states],
            capacity=sizes,
        )
        for name, declared in graph.inputs.items():
            if declared.kind is Kind.VALUE:
                array = arrays.buffers[f"{name}/0"]
                packed = pack(bits(inputs[name], array.dtype), array.axes, array.layout)
                program.value(f"{name}/0")[: packed.size] = packed
        arguments = {name: roomy(argument(inputs[name], a)) for name, a in arrays.arguments.items()}
        program.run(sizes, arguments, tiles_of(segments))
        for name in arrays.states:
            inputs[name][...] = _read_state(arrays.states[name], states[name], slabs, inputs[name])
        return {name: output(program, graph, name, sizes) for name in graph.outputs}


def packed_weights(weights, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Weights in memory, and where each is."""
    extents = {a.name: dict(zip(a.axes, inputs[a.name].shape, strict=True)) for a in weights.values()}
    where = directory(list(weights.values()), extents)
    block = fill(where, {}, inputs.__getitem__)
    return block, addresses(where, block)


def argument(values: np.ndarray, array) -> np.ndarray:
    extents = {p.axis: p.extent for p in array.layout.pieces if p.extent}
    wide = [(0, extents.get(axis, n) - n) for axis, n in zip(array.axes, values.shape, strict=True)]
    return pack(bits(np.pad(values, wide) if wide else values, array.dtype), array.axes, array.layout)


def tiles_of(segments: np.ndarray | None) -> Tiles:
    rows = [] if segments is None else list(zip(segments[:-1].tolist(), segments[1:].tolist(), strict=True))
    cut = [(n, b, min(b + 8, end)) for n, (begin, end) in enumerate(rows) for b in range(begin, end, 8)]
    return Tiles(*(np.array([c[i] for c in cut], np.int32) for i in range(3)))


def _states(source, inputs):
    """Each state in memory of its own, its pages as far apart as the layout says."""
    found, slabs = {}, 0
    for name, array in source.arrays.states.items():
        plain = replace(array.layout, records=())
        packed = pack(bits(inputs[name], array.dtype), array.axes, plain)
        first = array.layout.pieces[0]
        slabs = -(-inputs[name].shape[array.axes.index(first.axis)] // first.divisor)
        wide = aligned(array.layout.strides()[0] * slabs * packed.itemsize + SLACK).view(packed.dtype)
        view = wide[: array.layout.strides()[0] * slabs].reshape(slabs, array.layout.strides()[0])
        view[:, : packed.size // slabs] = packed.reshape(slabs, -1)
        found[name] = wide
    return found, slabs


def _read_state(array, wide, slabs, like):
    """Unpack by packing the numbers of the elements."""
    numbers = np.arange(1, like.size + 1).reshape(like.shape)  # 0: room of pages that there are not
    order = pack(numbers, array.axes, replace(array.layout, records=()))
    held = (
        wide[: array.layout.strides()[0] * slabs]
        .reshape(slabs, array.layout.strides()[0])[:, : order.size // slabs]
        .reshape(-1)
    )
    flat = np.empty(like.size, held.dtype)
    flat[order[order > 0] - 1] = held[order > 0]
    return unbits(flat, array.dtype).reshape(like.shape)


def output(program, graph, name, sizes):
    _, full = graph.outputs[name]
    array = program.source.arrays.buffers[f"{name}/0"]
    extents = [graph.axes[a].extent for a in full.axes]
    shape = [sizes[e] if isinstance(e, str) else e for e in extents]
    wide = [
        next((p.extent for p in array.layout.pieces if p.axis == a and p.extent), n)
        for a, n in zip(full.axes, shape, strict=True)
    ]
    numbers = np.arange(int(np.prod(wide))).reshape(wide)
    order = pack(numbers, array.axes, array.layout)
    held = program.output(name)[: order.size]
    flat = np.empty(order.size, held.dtype)
    flat[order] = held
    return unbits(flat, array.dtype).reshape(wide)[tuple(slice(n) for n in shape)]
