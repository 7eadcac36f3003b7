"""Random graphs for the C compiler, many in one file, against the interpreter.

A value is *exact* if float32 computes it without rounding (small multiples of a power of two): it must come out bit for
bit, and only exact values are cast to integers or compared. Others must be as near to float64 as the interpreter is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from native_graph import SLACK, argument, bits, output, packed_weights, roomy, tiles_of

from headrace.compiler.build import native_source
from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.codegen.layout import pack
from headrace.compiler.codegen.program import generate
from headrace.compiler.interpret import interpret, round_bf16
from headrace.compiler.ir import FLOATS, Builder, DType, Graph, Kind, Part
from headrace.compiler.native import build
from headrace.compiler.native.pool import ThreadPool
from headrace.compiler.schedule.plan import default_tile, plan_part
from headrace.runtime.native_program import NativeProgram

assert SLACK
EXTENTS = (1, 3, 16, 17, 32, 48, 64, 100)
DEPTHS = (3, 8, 16, 32, 48)
MAXIMA = {"B": 8}
EXACT = 2**22  # below this times the grain, sums of some exact values are exact too


@dataclass(frozen=True)
class Value:
    """A node, what bounds it, and its grain if it is exact: a multiple of ``2**-grain``."""

    node: int
    bound: float
    grain: int | None = 0


@dataclass(frozen=True)
class Case:
    """A graph, and how its inputs are drawn: name to (low, high, grain) of what is uniform."""

    graph: Graph
    ranges: dict[str, tuple[int, int, int]]
    exact: frozenset[str]
    bounds: dict[str, float]


class Draft:
    """A graph under construction."""

    def __init__(self, seed: int, name: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.name = name
        self.builder = Builder()
        self.ranges: dict[str, tuple[int, int, int]] = {}
        self.token = self.builder.axis(f"{name}_token", "T")
        self.axes = [self.axis("wide"), self.axis("wide")]
        self.made: list[Value] = []

    # -- what to choose from

    def pick(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

    def axis(self, kind="wide", extent=None):
        extent = extent or int(self.pick(EXTENTS if kind == "wide" else DEPTHS))
        return self.builder.axis(f"{self.name}_{kind}{len(self.builder.axes)}", extent)

    def extent(self, axis):
        return self.builder.axes[axis].extent

    def axes_of(self, value):
        return self.builder.types[value.node].axes

    def dtype(self, value):
        return self.builder.types[value.node].dtype

    def known(self, *dtypes, exact=False):
        return [v for v in self.made if self.dtype(v) in dtypes and (v.grain is not None or not exact)]

    def floats(self, exact=False):
        found = self.known(DType.F32, exact=exact)
        return self.pick(found) if found else self.input(DType.F32)

    def fresh(self, dtype, axes, kind, low, high, grain=0):
        name = f"{self.name}_in{len(self.ranges)}"
        self.ranges[name] = (low, high, grain)
        node = self.builder.input(name, dtype, axes, kind)
        return Value(node, max(abs(low), abs(high)) / 2**grain, grain)

    def input(self, dtype, axes=None, low=-8, high=8):
        if axes is None:
            axes = {self.token} if self.rng.random() < 0.7 else set()
            axes |= {a for a in self.axes if self.rng.random() < 0.6}
        kind = self.pick(
            [Kind.ARGUMENT, Kind.VALUE, Kind.VALUE] if self.token in axes else [Kind.WEIGHT, Kind.ARGUMENT]
        )
        return self.fresh(dtype, sorted(axes), kind, low, high, int(self.rng.integers(0, 3)) if dtype in FLOATS else 0)

    def const(self, value, dtype=DType.F32):
        return self.builder.const(value, dtype)

    def keep(self, node, bound, grain):
        fine = grain is not None and bound * 2**grain < EXACT
        self.made.append(Value(node, bound, grain if fine else None))
        return self.made[-1]

    # -- operations

    def step(self):
        names = ["binary"] * 3 + ["unary", "fold", "fold", "shift", "by_input", "select", "half", "integer", "product"]
        names += ["product", "bytes", "bytes", "blocks", "scaled"]
        getattr(self, self.pick(names))()

    def binary(self):
        a, b = self.floats(), self.floats()
        grain = None if a.grain is None or b.grain is None else max(a.grain, b.grain)
        match self.pick(["add", "max", "mul"]):
            case "add":
                self.keep(self.builder.add(a.node, b.node), a.bound + b.bound, grain)
            case "max":
                self.keep(self.builder.max(a.node, b.node), max(a.bound, b.bound), grain)
            case _:
                both = None if grain is None else a.grain + b.grain
                if a.bound * b.bound < 1e6:
                    self.keep(self.builder.mul(a.node, b.node), a.bound * b.bound, both)

    def unary(self):
        b, x = self.builder, self.floats()
        small = b.mul(x.node, self.const(2.0 ** -math.ceil(math.log2(max(x.bound, 1)))))
        match self.pick(["exp2", "recip", "sqrt", "log2", "sin"]):
            case "exp2":
                self.keep(b.exp2(b.mul(small, self.const(4))), 16, None)
            case "recip":
                self.keep(b.recip(b.add(small, self.const(1.5))), 2, None)
            case "sqrt":
                self.keep(b.sqrt(b.max(small, self.const(0))), 1, None)
            case "log2":
                self.keep(b.log2(b.add(small, self.const(1.25))), 2, None)
            case _:
                self.keep(b.sin(x.node), 1, None)

    def bound_of_fold(self, axis, axes):
        """None, or an int32 node: what is folded ends somewhere."""
        if self.rng.random() < 0.6:
            return None
        b = self.builder
        others = [a for a in axes if a != axis and isinstance(self.extent(a), int)]
        choices = ["const", "input"] + ["iota"] * bool(others)
        match self.pick(choices):
            case "const":
                return self.const(int(self.rng.integers(0, 20)), DType.I32)
            case "iota":
                first = b.iota(self.pick(others), int(self.rng.integers(1, 4)))
                return b.add(first, self.const(int(self.rng.integers(0, 3)), DType.I32))
        where = {self.token} if self.token in axes and axis != self.token else set()
        return self.fresh(DType.I32, where, Kind.ARGUMENT, 0, 20).node

    def fold(self):
        x = self.floats()
        if self.rng.random() < 0.15 and self.known(DType.I32):
            x = self.pick(self.known(DType.I32))
        axes = [a for a in self.axes_of(x) if self.rng.random() < 0.9 or a != self.token]
        if not axes:
            return
        axis = self.pick(axes)
        extent = self.extent(axis)
        extent = extent if isinstance(extent, int) else 40
        reducer = self.pick(["sum", "sum", "max", "prod"] if x.bound <= 1 and extent <= 20 else ["sum", "max"])
        bound = self.bound_of_fold(axis, self.axes_of(x))
        if reducer == "max" and bound is not None:
            bound = self.builder.max(bound, self.const(1, DType.I32))  # of nothing it is minus infinity
        node = self.builder.fold(reducer, axis, x.node, bound)
        total = x.bound * extent if reducer == "sum" else max(1, x.bound) if reducer == "prod" else x.bound
        if reducer == "max" and self.dtype(x) is DType.I32:
            total = x.bound
        self.keep(node, total, x.grain if reducer != "prod" else None)

    def shift(self):
        """A gather by index arithmetic."""
        b, x = self.builder, self.floats()
        axes = [a for a in self.axes_of(x) if isinstance(self.extent(a), int)]
        if not axes:
            return
        axis = self.pick(axes)
        n = self.extent(axis)
        to = self.pick([*self.axes, axis]) if self.rng.random() < 0.7 else self.axis()
        i = b.iota(to)

        def c(value):
            return b.const(int(value), DType.I32)

        match self.pick(["add", "roll", "floor", "split", "back", "times", "where"]):
            case "add":
                index = b.add(i, c(self.pick([-17, -16, -1, 0, 1, 3, 16, 32])))
            case "roll":
                index = b.mod(b.add(i, c(self.pick([1, 8, 16, n // 2, n]))), c(n))
            case "floor":
                index = b.iota(to, int(self.pick([2, 3, 16, 32])))
            case "split":
                inner = self.axis("deep")
                index = b.add(b.mul(i, c(self.extent(inner))), b.iota(inner))
            case "back":
                index = b.add(b.mul(i, c(-1)), c(n - 1))
            case "times":
                index = b.mul(i, c(self.pick([2, 3, 16])))
            case _:
                index = b.select(b.less(i, c(self.pick([1, 5, 16, 20]))), i, b.add(i, c(-5)))
        if self.rng.random() < 0.2:
            index = b.gather(b.iota(axis, int(self.pick([2, 16]))), {axis: index})
        self.keep(b.gather(x.node, {axis: index}), x.bound, x.grain)

    def by_input(self):
        """A gather by indices that a step brings, or that were computed."""
        b, x = self.builder, self.floats()
        if not self.axes_of(x):
            return
        axis = self.pick(self.axes_of(x))
        integers = [v for v in self.known(DType.I32) if axis not in self.axes_of(v)]
        if integers and self.rng.random() < 0.3:
            index = self.pick(integers).node
        else:
            extent = self.extent(axis) if isinstance(self.extent(axis), int) else 40
            where = [self.token, *self.axes]
            axes = {self.pick(where)} | ({self.pick(where)} if self.rng.random() < 0.3 else set())
            index = self.fresh(DType.I32, axes, Kind.ARGUMENT, -2, extent + 2).node
        if self.rng.random() < 0.2:
            table = self.fresh(DType.I32, {self.axis()}, Kind.ARGUMENT, 0, 40).node
            index = b.gather(table, {self.axes_of(self.made[0])[0] if False else b.types[table].axes[0]: index})
        self.keep(b.gather(x.node, {axis: index}), x.bound, x.grain)

    def select(self):
        b = self.builder
        yes, no = self.floats(), self.floats()
        axis = self.pick([self.token, *self.axes])
        match self.pick(["number", "value", "two", "token"]):
            case "number":
                condition = b.less(b.iota(axis), self.const(int(self.pick([1, 5, 16, 32])), DType.I32))
            case "value":
                condition = b.less(self.floats(exact=True).node, self.floats(exact=True).node)
            case "two":
                condition = b.less(b.iota(axis), b.iota(self.pick(self.axes)))
            case _:
                end = self.fresh(DType.I32, {self.token}, Kind.ARGUMENT, 0, 20)
                condition = b.less(b.iota(self.pick(self.axes)), end.node)
        if self.rng.random() < 0.15:
            number = b.cast(condition, self.pick([DType.F32, DType.I32]))
            self.keep(number, 1, 0)
            return
        grain = None if yes.grain is None or no.grain is None else max(yes.grain, no.grain)
        self.keep(b.select(condition, yes.node, no.node), max(yes.bound, no.bound), grain)

    def half(self):
        """Half precision and back."""
        b, x = self.builder, self.floats()
        dtype = self.pick([DType.BF16, DType.F16])
        if x.bound > 6e4:
            return
        low = b.cast(x.node, dtype)
        if self.rng.random() < 0.3:
            low = b.add(low, low) if x.bound < 3e4 else low
            x = replace(x, bound=2 * x.bound)
        self.keep(b.cast(low, DType.F32), x.bound, None)

    def integer(self):
        """To an integer and back; ties too."""
        b, x = self.builder, self.floats(exact=True)
        if x.bound > 1e6:
            return
        dtype = self.pick([DType.I32, DType.I8, DType.U8]) if x.bound <= 100 else DType.I32
        node = b.max(x.node, self.const(0)) if dtype is DType.U8 else x.node
        whole = b.cast(node, dtype)
        if self.rng.random() < 0.4:
            i = b.cast(whole, DType.I32)
            i = self.pick([i, b.mod(i, self.const(int(self.pick([3, 16, -7])), DType.I32)), b.add(i, i)])
            self.keep(i, 2 * x.bound + 16, 0)
            whole = i
        self.keep(b.cast(whole, DType.F32), 2 * x.bound + 16, 0)

    def product(self):
        """A contraction of floats, or of bfloat16."""
        b = self.builder
        k, n = self.axis("deep"), self.pick([*self.axes, self.axis()])
        dtype = self.pick([DType.F32, DType.F32, DType.BF16])
        left = self.wide(self.input(dtype, {self.token, k}, -4, 4))
        right = self.wide(
            self.input(dtype, {n, k} | ({self.pick(self.axes)} if self.rng.random() < 0.2 else set()), -4, 4)
        )
        if self.rng.random() < 0.3:
            left = b.add(left, self.const(1))
        bound = self.bound_of_fold(k, (self.token, n))
        self.keep(b.fold("sum", k, b.mul(left, right), bound), 5 * 4 * self.extent(k), 4)

    def wide(self, value):
        return value.node if self.dtype(value) is DType.F32 else self.builder.cast(value.node, DType.F32)

    def codes(self, k, n):
        """A sum of products of bytes."""
        b = self.builder
        left = self.pick([DType.I8, DType.I8, DType.U8])
        right = self.pick([DType.U8, DType.U4, DType.I8, DType.U4])
        ranges = {DType.I8: (-128, 127), DType.U8: (0, 255), DType.U4: (0, 15)}
        x = self.fresh(left, {self.token, *k}, Kind.VALUE, *ranges[left])
        w = self.fresh(right, {n, *k}, Kind.WEIGHT, *ranges[right])
        both = b.mul(b.cast(x.node, DType.I32), b.cast(w.node, DType.I32))
        return b.fold("sum", k[-1], both), x.bound * w.bound * self.extent(k[-1])

    def bytes(self):
        total, bound = self.codes([self.axis("deep")], self.axis())
        self.keep(self.builder.cast(total, DType.F32), bound, 0)

    def blocks(self):
        """Blocks of bytes with a scale each."""
        b = self.builder
        n = self.axis()
        k = [self.axis("deep", int(self.pick([1, 3, 4]))), self.axis("deep", int(self.pick([4, 8, 32])))]
        total, bound = self.codes(k, n)
        scale = self.fresh(DType.F16, {n, k[0]}, Kind.WEIGHT, -4, 4, 2)
        scaled = b.mul(b.cast(scale.node, DType.F32), b.cast(total, DType.F32))
        self.keep(b.fold("sum", k[0], scaled), bound * self.extent(k[0]), 2)

    def scaled(self):
        """What was computed, contracted with a weight."""
        b, x = self.builder, self.floats()
        axes = [a for a in self.axes_of(x) if a != self.token]
        if not axes or x.bound > 1e4:
            return
        k = self.pick(axes)
        w = self.fresh(DType.F32, {k, self.axis()}, Kind.WEIGHT, -4, 4)
        node = b.fold("sum", k, b.mul(x.node, w.node))
        self.keep(node, x.bound * 4 * self.extent(k), x.grain)


def draw(seed: int, name: str = "g", steps: int = 6) -> Case:
    """A random graph."""
    draft = Draft(seed, name)
    for _ in range(2):
        draft.made.append(draft.input(DType.F32))
    for _ in range(steps):
        draft.step()
    chosen = [draft.made[-1]] + ([draft.pick(draft.made)] if draft.rng.random() < 0.3 else [])
    outputs = {f"{name}_y{n}": value for n, value in enumerate(chosen)}
    graph = draft.builder.graph({key: (v.node, draft.axes_of(v)) for key, v in outputs.items()})
    exact = frozenset(key for key, v in outputs.items() if v.grain is not None)
    return Case(graph, draft.ranges, exact, {key: v.bound for key, v in outputs.items()})


def arrays(case: Case, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs for a graph."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, declared in case.graph.inputs.items():
        extents = [case.graph.axes[a].extent for a in declared.type.axes]
        shape = [sizes[e] if isinstance(e, str) else e for e in extents]
        low, high, grain = case.ranges[name]
        numbers = rng.integers(low, high, shape, endpoint=True)
        if declared.type.dtype in FLOATS:
            values = (numbers / 2**grain).astype(np.float32)
            found[name] = values.astype(np.float16) if declared.type.dtype is DType.F16 else round_bf16(values)
            if declared.type.dtype is DType.F32:
                found[name] = values
        else:
            kinds = {DType.I8: np.int8, DType.U8: np.uint8, DType.U4: np.uint8}
            found[name] = numbers.astype(kinds.get(declared.type.dtype, np.int32))
    return found


def planned(case: Case, tile_for=default_tile, row_tile: int = 48):
    """The part and its schedule.

    Raises:
        CannotEmit: There is no code for it.
    """
    part = Part(case.name if hasattr(case, "name") else next(iter(case.graph.outputs)), case.graph)
    plan = plan_part(case.graph, MAXIMA, 16, 1, tile_for, row_tile)
    generate([(part, plan)])
    return part, plan


def refused(case: Case) -> str:
    """Why there is no code for a graph; empty if there is."""
    try:
        planned(case)
    except CannotEmit as error:
        return str(error)
    return ""


def run_together(
    cases: list[Case], rows=(1, 5, 40), *, flags=("-O1", "-mavx512f"), threads: int = 1, row_tile: int = 48,
    tile_for=default_tile,
):  # fmt: skip
    """Compile graphs as parts of one program, run each alone, and yield (case, rows, expected, exact, found)."""
    parts = [planned(case, tile_for, row_tile) for case in cases]
    source = generate(parts)
    library = build.Builder().load(native_source("fuzz", source, flags))
    for count in rows:
        sizes = {"T": count}
        inputs = [arrays(case, sizes, seed) for seed, case in enumerate(cases)]
        given = {name: value for mine in inputs for name, value in mine.items()}
        _held, places = packed_weights(source.arrays.weights, given)
        arguments = {name: roomy(argument(given[a.name], a)) for name, a in source.arrays.arguments.items()}
        with ThreadPool(threads) as pool:
            program = NativeProgram(source, library, pool, weights=places, states=[], capacity=sizes)
            for case in cases:
                for name, declared in case.graph.inputs.items():
                    if declared.kind is Kind.VALUE:
                        array = source.arrays.buffers[f"{name}/0"]
                        packed = pack(bits(given[name], array.dtype), array.axes, array.layout)
                        program.value(f"{name}/0")[: packed.size] = packed
            for n, (case, mine) in enumerate(zip(cases, inputs, strict=True)):
                expected = interpret(case.graph, mine, sizes)
                real = interpret(case.graph, mine, sizes, exact=True)
                program.run(sizes, arguments, tiles_of(np.array([0, count])), (n, n + 1))
                found = {name: output(program, case.graph, name, sizes) for name in case.graph.outputs}
                yield case, count, expected, real, found


def differs(case: Case, name: str, expected: np.ndarray, real: np.ndarray, found: np.ndarray) -> str:
    """What is wrong with a result; empty if nothing is."""
    if found.shape != expected.shape:
        return f"{name}: shape {found.shape}, not {expected.shape}"
    if name in case.exact:
        wrong = np.argwhere(found != expected)
        return f"{name}: {len(wrong)} of {found.size} differ, first at {wrong[0]}" if len(wrong) else ""
    with np.errstate(invalid="ignore"):
        own = np.abs(expected - real)
        allowed = 8 * np.nanmax(own, initial=0) + 1e-5 * np.nanmax(np.abs(real), initial=0) + 1e-6 * case.bounds[name]
        wrong = np.argwhere(~(np.abs(found - real) <= allowed) & ~(np.isnan(found) & np.isnan(expected)))
    if not len(wrong):
        return ""
    at = tuple(wrong[0])
    return f"{name}: {len(wrong)} of {found.size} off, first at {at}: {found[at]} for {expected[at]} (+- {allowed:.2g})"
