"""A recipe for tests: 8-bit activations and affine 4-bit weights, both in blocks along what is contracted."""

from __future__ import annotations

import numpy as np

from headrace.compiler.ir import Builder, DType, Kind, Op, Write

F32, I32 = DType.F32, DType.I32
LEAST = 1e-30


def quantize(graph, size=32, *, asymmetric=True, minima=True):
    """The graph with each product of activations and a weight in codes.

    The weight ``w`` [n, k] becomes inputs ``w.codes`` u4 [n, k_block, k_inner], ``w.scales`` and ``w.minima`` f16
    [n, k_block].
    """
    b = Builder(dict(graph.axes), dict(graph.inputs), dict(graph.states))
    made, new = {}, []
    for node in graph.nodes:
        args = tuple(new[a] for a in node.args)
        if node.op is Op.FOLD and (pair := _operands(graph, node)):
            axis = node.attrs[1]
            x, name = pair
            blocks = b.axis(f"{axis}_block", graph.axes[axis].extent // size), b.axis(f"{axis}_inner", size)
            if (x, axis) not in made:
                made[x, axis] = _activations(b, new[x], axis, blocks, size, asymmetric)
            weight = _weights(b, graph.inputs[name], axis, blocks, size, minima)
            new.append(b.fold("sum", axis, b.mul(made[x, axis], weight)))
        else:
            new.append(b.node(node.op, node.attrs, args))
    outputs = {name: (new[at], full.axes) for name, (at, full) in graph.outputs.items()}
    writes = [Write(w.state, w.axes, tuple(new[i] for i in w.indices), new[w.value]) for w in graph.writes]
    return b.graph(outputs, writes)


def _operands(graph, node):
    """Node of the activations and name of the weight of a contraction."""
    product = graph.nodes[node.args[0]]
    if node.attrs[0] != "sum" or product.op is not Op.MUL:
        return None
    for x, w in (product.args, product.args[::-1]):
        declared = graph.inputs.get(str(graph.nodes[w].attrs[0])) if graph.nodes[w].op is Op.INPUT else None
        if (
            declared
            and declared.kind is Kind.WEIGHT
            and len(declared.type.axes) == 2
            and node.attrs[1] in graph.types[x].axes
        ):
            return x, declared.name
    return None


def _unblocked(b, x, axis, blocks, size):
    """An array in blocks as one without."""
    outer, inner = blocks
    return b.gather(x, {outer: b.iota(axis, size), inner: b.mod(b.iota(axis), b.const(size, I32))})


def _activations(b, x, axis, blocks, size, asymmetric):
    outer, inner = blocks
    c = lambda value: b.const(value, F32)  # noqa: E731
    a = b.gather(x, {axis: b.add(b.mul(b.iota(outer), b.const(size, I32)), b.iota(inner))})
    high, low = b.fold("max", inner, a), b.mul(c(-1), b.fold("max", inner, b.mul(c(-1), a)))
    if not asymmetric:
        most = b.max(high, b.mul(c(-1), low))
        scale = b.mul(b.max(most, c(LEAST)), c(1 / 127))
        codes = b.cast(b.mul(a, b.recip(scale)), DType.I8)
        return _unblocked(b, b.mul(scale, b.cast(codes, F32)), axis, blocks, size)
    scale = b.mul(b.max(b.add(high, b.mul(c(-1), low)), c(LEAST)), c(1 / 255))
    codes = b.cast(b.add(b.mul(b.add(a, b.mul(c(-1), low)), b.recip(scale)), c(-128)), DType.I8)
    offset = b.add(low, b.mul(c(128), scale))
    return _unblocked(b, b.add(b.mul(scale, b.cast(codes, F32)), offset), axis, blocks, size)


def _weights(b, declared, axis, blocks, size, minima):
    kept = [a for a in declared.type.axes if a != axis]
    codes = b.cast(b.input(f"{declared.name}.codes", DType.U4, [*kept, *blocks], Kind.WEIGHT), F32)
    scales = b.cast(b.input(f"{declared.name}.scales", DType.F16, [*kept, blocks[0]], Kind.WEIGHT), F32)
    value = b.mul(scales, codes)
    if minima:
        value = b.add(
            value, b.cast(b.input(f"{declared.name}.minima", DType.F16, [*kept, blocks[0]], Kind.WEIGHT), F32)
        )
    return _unblocked(b, value, axis, blocks, size)


def random_inputs(graph, sizes, rng, *, exact=True):
    """Values for all inputs and states; integers that are indices are set by the caller."""
    extent = lambda a: e if isinstance(e := graph.axes[a].extent, int) else sizes[e]  # noqa: E731
    kinds = {i.name: i.type for i in graph.inputs.values() if not i.state} | dict(graph.states)
    found = {}
    for name, kind in sorted(kinds.items()):
        shape = [extent(a) for a in kind.axes]
        if kind.dtype is DType.U4:
            found[name] = rng.integers(0, 16, shape, np.uint8)
        elif kind.dtype in (DType.I32, DType.I64):
            found[name] = np.zeros(shape, np.int32)
        else:
            values = rng.normal(0, 1, shape) * (0.05 if name.endswith((".scales", ".minima")) else 1)
            half = values.astype(np.float16 if kind.dtype is DType.F16 else np.float32)
            found[name] = half.astype(np.float64) if exact else half
    return found
