"""What a program means, computed with NumPy, one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.ir import (
    FLOATS,
    SCAN,
    DType,
    Graph,
    InvalidProgram,
    Node,
    Op,
    Program,
    Type,
    Write,
    in_order,
    selected_axes,
)

Array = npt.NDArray[Any]

_STORAGE: dict[DType, type[np.generic]] = {
    DType.BOOL: np.bool_,
    DType.U4: np.uint8,
    DType.U8: np.uint8,
    DType.I8: np.int8,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.F16: np.float16,
    DType.BF16: np.float32,  # holds values that bfloat16 can hold
    DType.F32: np.float32,
    DType.F64: np.float64,
}
_NEUTRAL = {"sum": 0, "prod": 1}


def storage(dtype: DType, exact: bool = False) -> type[np.generic]:
    """NumPy's type for an element type; float64 for all of floating point if ``exact``."""
    return np.float64 if exact and dtype in FLOATS else _STORAGE[dtype]


def round_bf16(x: Array) -> npt.NDArray[np.float32]:
    """Float32 values rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    values = np.asarray(x, np.float32)
    bits = np.atleast_1d(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), values, rounded.view(np.float32).reshape(values.shape))


@dataclass(slots=True)
class _Evaluation:
    graph: Graph
    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]
    exact: bool
    values: dict[int, Array] = field(default_factory=dict)
    versions: dict[str, list[Array]] = field(default_factory=dict)  # of each state, one more after every write

    def extent(self, axis: str) -> int:
        declared = self.graph.axes[axis].extent
        return declared if isinstance(declared, int) else self.sizes[declared]

    def full(self, at: int, axes: tuple[str, ...]) -> Array:
        """A node's value with exactly these axes, in order; those it lacks are broadcast."""
        return spread(self.values[at], self.graph.types[at].axes, axes, tuple(self.extent(a) for a in axes))

    def aligned(self, at: int, axes: tuple[str, ...]) -> Array:
        """A node's value with axes in this order, of length 1 where it lacks one."""
        return align(self.values[at], self.graph.types[at].axes, axes)

    def state(self, name: str) -> list[Array]:
        """The versions of a state so far."""
        if name not in self.inputs:
            raise InvalidProgram(f"state {name!r} is missing")
        return self.versions.setdefault(name, [self.inputs[name]])


def interpret(
    graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int], *, exact: bool = False
) -> dict[str, Array]:
    """Evaluate a graph.

    Args:
        graph: What to compute.
        inputs: Each input's array, its axes in the order of their names. States are changed in place by the graph's
            writes; inputs of one source must be one array.
        sizes: Values of the symbols.
        exact: Compute all of floating point in float64 and round nowhere.

    Returns:
        Each output, its axes in the order of their names, broadcast to its full type.

    Raises:
        InvalidProgram: An input is missing or has the wrong shape.
    """
    run = _Evaluation(graph, inputs, sizes, exact)
    for step in in_order(graph):
        if step >= 0:
            run.values[step] = _evaluate(run, graph.nodes[step], graph.types[step])
        else:
            _write(run, graph.writes[~step])
    results = {name: np.array(run.full(at, full.axes)) for name, (at, full) in graph.outputs.items()}
    for name, versions in run.versions.items():
        if len(versions) > 1:
            inputs[name][...] = versions[-1]
    return results


def run_program(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], *, exact: bool = False
) -> dict[str, Array]:
    """Evaluate a whole program; see ``interpret``. Weights and states of repeated parts go by their full names."""
    values: dict[str, Array] = dict(inputs)
    for part in program.parts:
        for repeat in part.repeats:
            names = [*part.graph.states, *(i.name for i in part.graph.inputs.values() if not i.state)]
            bound = {name: values[bind(name, repeat)] for name in names}
            values |= interpret(part.graph, bound, sizes, exact=exact)
    return {name: values[name] for name in program.parts[-1].graph.outputs}


def bind(name: str, repeat: str) -> str:
    """The name of a weight or state in one repetition of a part."""
    return name.replace("*", repeat)


def align(x: Array, axes: tuple[str, ...], to: tuple[str, ...]) -> Array:
    """``x``, whose axes are a sorted part of ``to``, with axes of length 1 for those it lacks."""
    shape = iter(x.shape)
    return x.reshape([next(shape) if a in axes else 1 for a in to])


def spread(x: Array, axes: tuple[str, ...], to: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """``x`` broadcast to all of ``to``."""
    return np.broadcast_to(align(x, axes, to), shape)


def _evaluate(run: _Evaluation, node: Node, kind: Type) -> Array:
    with np.errstate(all="ignore"):
        value = _EVALUATE[node.op](run, node, kind)
    if kind.dtype is DType.BF16 and not run.exact:
        value = round_bf16(value)
    return np.asarray(value, storage(kind.dtype, run.exact))


def _input(run: _Evaluation, node: Node, kind: Type) -> Array:
    name = str(node.attrs[0])
    declared = run.graph.inputs[name]
    array = run.state(declared.state)[declared.version] if declared.state else run.inputs.get(name)
    shape = tuple(run.extent(a) for a in kind.axes)
    if array is None or array.shape != shape:
        found = "missing" if array is None else f"of shape {array.shape}"
        raise InvalidProgram(f"input {name!r} is {found}; {kind.axes} make it {shape}")
    return array


def _write(run: _Evaluation, write: Write) -> None:
    versions = run.state(write.state)
    changed = versions[-1].copy()
    _put(run, changed, run.graph.states[write.state].axes, write.axes, write.indices, write.value)
    versions.append(changed)


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[_Evaluation, Node, Type], Array]:
    def evaluate(run: _Evaluation, node: Node, kind: Type) -> Array:
        return function(*(run.aligned(a, kind.axes) for a in node.args))

    return evaluate


def _unary(function: Callable[[Array], Array]) -> Callable[[_Evaluation, Node, Type], Array]:
    return lambda run, node, kind: function(run.values[node.args[0]])


def _select(run: _Evaluation, node: Node, kind: Type) -> Array:
    return np.where(*(run.aligned(a, kind.axes) for a in node.args))


def _fold(run: _Evaluation, node: Node, kind: Type) -> Array:
    reducer, axis, mode = (str(a) for a in node.attrs)
    axes = tuple(sorted({axis, *kind.axes}))
    values = run.full(node.args[0], axes)
    at = axes.index(axis)
    if len(node.args) > 1:
        index = align(np.arange(run.extent(axis)), (axis,), axes)
        bound = run.aligned(node.args[1], axes)
        values = np.where(index < bound, values, _neutral(reducer, values.dtype))
    function = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[reducer]
    if run.extent(axis) == 0:
        return np.full([run.extent(a) for a in kind.axes], _neutral(reducer, values.dtype))
    # accumulate adds one element after the other; reduce would add pairwise.
    prefixes = function.accumulate(values, axis=at, dtype=values.dtype)
    return prefixes if mode == SCAN else np.take(prefixes, -1, axis=at)


def _neutral(reducer: str, dtype: npt.DTypeLike) -> Array:
    if reducer != "max":
        return np.asarray(_NEUTRAL[reducer], dtype)
    kind = np.dtype(dtype)
    return np.asarray(-np.inf if kind.kind == "f" else np.iinfo(kind).min, dtype)


def _iota(run: _Evaluation, node: Node, kind: Type) -> Array:
    axis, divisor = str(node.attrs[0]), int(node.attrs[1])  # type: ignore[arg-type]
    return np.arange(run.extent(axis), dtype=np.int32) // divisor


def _gather(run: _Evaluation, node: Node, kind: Type) -> Array:
    source, axes = run.graph.types[node.args[0]], kind.axes
    index = {axis: run.aligned(at, axes) for axis, at in zip(selected_axes(node), node.args[1:], strict=True)}
    picks = [
        np.clip(index[a], 0, run.extent(a) - 1) if a in index else align(np.arange(run.extent(a)), (a,), axes)
        for a in source.axes
    ]
    return np.asarray(run.values[node.args[0]][tuple(picks)])


def _scatter(run: _Evaluation, node: Node, kind: Type) -> Array:
    into = run.values[node.args[0]].copy()
    _put(run, into, kind.axes, selected_axes(node), node.args[2:], node.args[1])
    return into


def _put(
    run: _Evaluation, into: Array, into_axes: tuple[str, ...], selected: tuple[str, ...], indices: tuple[int, ...],
    value: int,
) -> None:  # fmt: skip
    kept = [a for a in into_axes if a not in selected]
    axes = tuple(sorted({*kept, *(a for i in indices for a in run.graph.types[i].axes)}))
    index = {axis: run.aligned(at, axes) for axis, at in zip(selected, indices, strict=True)}
    picks = tuple(
        np.clip(index[a], 0, run.extent(a) - 1) if a in index else align(np.arange(run.extent(a)), (a,), axes)
        for a in into_axes
    )
    into[picks] = run.full(value, axes)


def _cast(run: _Evaluation, node: Node, kind: Type) -> Array:
    values = run.values[node.args[0]]
    if kind.dtype in FLOATS or values.dtype.kind not in "f":
        return values.astype(storage(kind.dtype, run.exact))
    return np.rint(values).astype(storage(kind.dtype))


def _const(run: _Evaluation, node: Node, kind: Type) -> Array:
    return np.asarray(node.attrs[0], storage(kind.dtype, run.exact))


_EVALUATE: dict[Op, Callable[[_Evaluation, Node, Type], Array]] = {
    Op.INPUT: _input,
    Op.CONST: _const,
    Op.EXP2: _unary(np.exp2),
    Op.LOG2: _unary(np.log2),
    Op.SIN: _unary(np.sin),
    Op.SQRT: _unary(np.sqrt),
    Op.RECIP: _unary(np.reciprocal),
    Op.ADD: _binary(np.add),
    Op.MUL: _binary(np.multiply),
    Op.MOD: _binary(np.mod),
    Op.MAX: _binary(np.maximum),
    Op.LESS: _binary(np.less),
    Op.SELECT: _select,
    Op.FOLD: _fold,
    Op.IOTA: _iota,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CAST: _cast,
}
