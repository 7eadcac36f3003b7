"""Random graphs for Hypothesis, and what each node means, one element at a time."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import numpy as np

from headrace.compiler.ir import BINARY, FLOATS, REDUCERS, SCAN, UNARY, Builder, DType, Kind, Op

EXTENTS = {"a": 3, "b": 2, "c": 4, "t": "T"}
SIZES = {"T": 3}
NUMBERS = st.one_of(
    st.floats(-4, 4), st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 1e30, 1e-30])
)


def size(axis):
    extent = EXTENTS[axis]
    return SIZES[extent] if isinstance(extent, str) else extent


@st.composite
def graphs(draw, nodes=12, numbers=NUMBERS):
    """A graph of random operations on float32, int32 and bool, its inputs, and the arrays given to them."""
    builder, arrays = Builder(), {}
    for name, extent in EXTENTS.items():
        builder.axis(name, extent)
    made = []
    for n in range(draw(st.integers(1, 3))):
        axes = sorted(draw(st.sets(st.sampled_from(sorted(EXTENTS)), max_size=3)))
        dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.I32]))
        shape = [size(a) for a in axes]
        element = numbers.map(np.float32) if dtype is DType.F32 else st.integers(-6, 6).map(np.int32)
        count = math.prod(shape)
        flat = draw(st.lists(element, min_size=count, max_size=count))
        arrays[f"x{n}"] = np.array(flat, np.float32 if dtype is DType.F32 else np.int32).reshape(shape)
        made.append(builder.input(f"x{n}", dtype, axes, Kind.ARGUMENT))
    for _ in range(nodes):
        made.append(draw(one_node(builder, made)))
    result = made[-1]
    axes = set(builder.types[result].axes) | draw(st.sets(st.sampled_from(sorted(EXTENTS)), max_size=1))
    return builder.graph({"y": (result, sorted(axes))}), arrays


@st.composite
def one_node(draw, builder, made):
    """One more node on those that there are."""
    types = builder.types

    def pick(*dtypes):
        fitting = [n for n in made if types[n].dtype in dtypes]
        return draw(st.sampled_from(fitting)) if fitting else builder.const(draw(st.integers(-3, 3)), dtypes[0])

    kind = draw(st.sampled_from(["unary", "binary", "binary", "select", "fold", "iota", "gather", "scatter", "cast"]))
    if kind == "unary":
        return builder.node(draw(st.sampled_from(UNARY)), (), (pick(DType.F32),))
    if kind == "binary":
        dtype = draw(st.sampled_from([DType.F32, DType.F32, DType.I32]))
        return builder.node(draw(st.sampled_from(BINARY)), (), (pick(dtype), pick(dtype)))
    if kind == "select":
        yes = pick(DType.F32, DType.I32)
        return builder.select(pick(DType.BOOL), yes, pick(types[yes].dtype))
    if kind == "iota":
        return builder.iota(draw(st.sampled_from(sorted(EXTENTS))), draw(st.integers(1, 3)))
    if kind == "cast":
        x = pick(DType.F32, DType.I32, DType.BOOL)
        # A floating point number may be no integer at all; what is cast to one is an integer already.
        to = (DType.F32, DType.I32) if types[x].dtype not in FLOATS else (DType.F32,)
        return builder.cast(x, draw(st.sampled_from(to)))
    x = pick(DType.F32, DType.I32)
    if not types[x].axes:
        return x
    if kind == "fold":
        axis = draw(st.sampled_from(types[x].axes))
        bound = pick(DType.I32)
        usable = axis not in types[bound].axes and draw(st.booleans())
        mode = draw(st.sampled_from(["final", "scan"]))
        return builder.fold(draw(st.sampled_from(REDUCERS)), axis, x, bound if usable else None, mode)
    selected = sorted(draw(st.sets(st.sampled_from(types[x].axes), min_size=1, max_size=2)))
    index = {a: pick(DType.I32) for a in selected}
    if kind == "gather":
        return builder.gather(x, index)
    allowed = {a for a in types[x].axes if a not in selected} | {a for i in index.values() for a in types[i].axes}
    value = pick(types[x].dtype)
    return builder.scatter(x, value, index) if set(types[value].axes) <= allowed else x


class Oracle:
    """The meaning of a graph as ``spec.md`` has it, element by element, in float64 or float32."""

    def __init__(self, graph, arrays, number=np.float64):
        self.graph, self.arrays, self.number = graph, arrays, number
        self.cache = {}

    def output(self, name):
        at, full = self.graph.outputs[name]
        shape = [size(a) for a in full.axes]
        points = itertools.product(*map(range, shape))
        return np.array([self.value(at, dict(zip(full.axes, p, strict=True))) for p in points]).reshape(shape)

    def value(self, at, point):
        own = tuple((a, point[a]) for a in self.graph.types[at].axes)
        if (at, own) not in self.cache:
            self.cache[at, own] = self.compute(self.graph.nodes[at], self.graph.types[at], dict(own))
        return self.cache[at, own]

    def compute(self, node, kind, point):
        if node.op is Op.INPUT:
            found = self.arrays[node.attrs[0]][tuple(point[a] for a in kind.axes)]
            return self.number(found) if kind.dtype in FLOATS else int(found)
        if node.op is Op.CONST:
            return self.number(node.attrs[0]) if kind.dtype in FLOATS else node.attrs[0]
        if node.op is Op.IOTA:
            return point[node.attrs[0]] // node.attrs[1]
        special = {Op.FOLD: self.fold, Op.GATHER: self.gather, Op.SCATTER: self.scatter}.get(node.op)
        if special:
            return special(node, kind, point)
        values = [self.value(a, point) for a in node.args]
        with np.errstate(all="ignore"):
            return self.elementwise(node.op, kind.dtype, *values)

    def elementwise(self, op, dtype, x, y=None, z=None):
        if op is Op.SELECT:
            return y if x else z
        if op is Op.CAST:
            return self.number(x) if dtype in FLOATS else int(x)
        if op is Op.LESS:
            return bool(x < y)
        if op is Op.MAX:
            return x if math.isnan(x) or x > y else y
        if op is Op.MOD:
            return remainder(x, y, self.number)
        if op in (Op.ADD, Op.MUL):
            result = x + y if op is Op.ADD else x * y
            return result if dtype in FLOATS else wrap(result)
        if op is Op.RECIP:
            return self.number(1) / x
        return {Op.EXP2: np.exp2, Op.LOG2: np.log2, Op.SIN: np.sin, Op.SQRT: np.sqrt}[op](x)

    def fold(self, node, kind, point):
        reducer, axis, mode = node.attrs
        last = point[axis] if mode == SCAN else size(axis) - 1
        bound = self.value(node.args[1], point) if len(node.args) > 1 else size(axis)
        integer = kind.dtype not in FLOATS
        total = {"sum": 0, "prod": 1, "max": -(2**31) if integer else -math.inf}[reducer]
        total = total if integer else self.number(total)
        op = {"sum": Op.ADD, "prod": Op.MUL, "max": Op.MAX}[reducer]
        for at in range(min(bound, last + 1)):
            with np.errstate(all="ignore"):
                total = self.elementwise(op, kind.dtype, total, self.value(node.args[0], point | {axis: at}))
        return total

    def place(self, node, first, point):
        """Where the indices point, inside of their axes."""
        found = {a: self.value(i, point) for a, i in zip(node.attrs[0], node.args[first:], strict=True)}
        return {a: min(max(i, 0), size(a) - 1) for a, i in found.items()}

    def gather(self, node, kind, point):
        return self.value(node.args[0], point | self.place(node, 1, point))

    def scatter(self, node, kind, point):
        kept = {a: i for a, i in point.items() if a not in node.attrs[0]}
        moving = sorted({a for i in node.args[2:] for a in self.graph.types[i].axes} - set(kept))
        result = self.value(node.args[0], point)
        for at in itertools.product(*(range(size(a)) for a in moving)):
            here = kept | dict(zip(moving, at, strict=True))
            if all(point[a] == i for a, i in self.place(node, 2, here).items()):
                result = self.value(node.args[1], here)
        return result


def wrap(x):
    return (x + 2**31) % 2**32 - 2**31


def remainder(x, y, number):
    """The remainder with the divisor's sign."""
    if isinstance(x, int):
        return wrap(x - (x // y) * y) if y else 0
    if y == 0 or math.isinf(x) or math.isnan(x + y):
        return number(math.nan)
    rest = math.fmod(x, y)
    if rest and (rest < 0) != (y < 0):
        rest += y
    return number(rest)
