"""The compiler's language: pure functions on typed arrays whose dimensions have names. ``spec.md`` is the contract.

An array has no order of dimensions, only a set of named *axes*. Two arrays that share an axis walk it together; an
axis that only one of them has is broadcast over the other. So transposes and broadcasts do not exist, reshapes and
slices are gathers with index arithmetic, and a matrix product is ``fold(sum, k, x[t, k] * w[n, k])``. In which order
the elements lie in memory is the schedule's choice, later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from headrace.errors import HeadraceError


class Op(StrEnum):
    """The primitives: sixteen, and two kinds of leaves."""

    # leaves
    INPUT = "input"  # attrs (name,)
    CONST = "const"  # attrs (value, dtype)
    # of one argument, elementwise, floating point
    EXP2 = "exp2"
    LOG2 = "log2"
    SIN = "sin"
    SQRT = "sqrt"
    RECIP = "recip"
    # of two arguments, elementwise
    ADD = "add"
    MUL = "mul"
    MOD = "mod"  # the result has the divisor's sign
    MAX = "max"
    LESS = "less"
    # of three: condition, value where it holds, value where not
    SELECT = "select"
    # along an axis: attrs (reducer, axis, mode); an optional second argument bounds the axis
    FOLD = "fold"
    # indices
    IOTA = "iota"  # attrs (axis, divisor): floor(index / divisor)
    GATHER = "gather"  # attrs (axes,); arguments: source, one index array an axis
    SCATTER = "scatter"  # attrs (axes,); arguments: destination, values, one index array an axis
    CAST = "cast"  # attrs (dtype,); to an integer: nearest, ties to even


UNARY = (Op.EXP2, Op.LOG2, Op.SIN, Op.SQRT, Op.RECIP)
BINARY = (Op.ADD, Op.MUL, Op.MOD, Op.MAX, Op.LESS)
ELEMENTWISE = (*UNARY, *BINARY, Op.SELECT, Op.CAST)
COMMUTATIVE = (Op.ADD, Op.MUL, Op.MAX)
REDUCERS = ("sum", "max", "prod")
FINAL, SCAN = "final", "scan"


class DType(StrEnum):
    """Element types. Half precision exists in memory alone: arithmetic on it is float32, rounded."""

    BOOL = "bool"
    U4 = "u4"  # 0 to 15, two in a byte of memory
    U8 = "u8"
    I8 = "i8"
    I32 = "i32"
    I64 = "i64"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"


FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = (DType.U4, DType.U8, DType.I8, DType.I32, DType.I64)
BITS = {
    DType.BOOL: 8, DType.U4: 4, DType.U8: 8, DType.I8: 8, DType.I32: 32, DType.I64: 64,
    DType.F16: 16, DType.BF16: 16, DType.F32: 32, DType.F64: 64,
}  # fmt: skip


class InvalidProgram(HeadraceError):
    """A node does not follow ``spec.md``: our own mistake, in capture or in a rule."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension.

    Attributes:
        name: Unique in a program.
        extent: Its length; a string is a symbol whose value a step brings.
        segments: The axis over whose elements this one is *ragged*: it is a concatenation of segments, and the input
            ``{name}.offsets`` (int32 [segments + 1]) says where each begins. Empty if it is plain.
    """

    name: str
    extent: int | str
    segments: str = ""


class Kind(StrEnum):
    """What an input is."""

    WEIGHT = "weight"  # known when the model is loaded; whatever depends on weights alone is computed then
    ARGUMENT = "argument"  # brought by each step
    STATE = "state"  # a region that outlives the step; reads name the version
    VALUE = "value"  # another graph's output


@dataclass(frozen=True, slots=True)
class Type:
    """Element type and axes of an array, the names sorted."""

    dtype: DType
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a graph.

    Attributes:
        name: A ``*`` in it stands for the number of the repetition (see ``Part``).
        type: What it holds.
        kind: Where it comes from.
        state: Which state a ``STATE`` input reads.
        version: How many of the graph's writes to it come before this read.
    """

    name: str
    type: Type
    kind: Kind
    state: str = ""
    version: int = 0


Attr = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation on earlier nodes of its graph."""

    op: Op
    attrs: tuple[Attr, ...] = ()
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """What a graph changes in a state, the n-th of its kind making version n + 1.

    Attributes:
        state: The region.
        axes: The axes of the region that the indices select from.
        indices: Nodes, int32, one an axis.
        value: Node; its axes are those of the indices and the region's other ones.
    """

    state: str
    axes: tuple[str, ...]
    indices: tuple[int, ...]
    value: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A pure function: nodes in an order in which arguments come first.

    Attributes:
        axes: Axes by name.
        inputs: Inputs by name.
        states: Type of each state that is read or written.
        nodes: The operations.
        types: The type of each node's result.
        outputs: Node and full type of each named result; a result that lacks an axis of its type is broadcast.
        writes: Changes of states, in order.
    """

    axes: Mapping[str, Axis]
    inputs: Mapping[str, Input]
    states: Mapping[str, Type]
    nodes: tuple[Node, ...]
    types: tuple[Type, ...]
    outputs: Mapping[str, tuple[int, Type]]
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A graph that a program runs once or, with other weights each time, several times in a row.

    Attributes:
        name: Such as ``layers``.
        graph: What runs. An output and a ``VALUE`` input of one name carry a value to the next repetition or part.
        repeats: What replaces the ``*`` in the names of weights and states, run by run; ``("",)`` for a single one.
    """

    name: str
    graph: Graph
    repeats: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Program:
    """A model's step: parts in order."""

    parts: tuple[Part, ...]


V = TypeVar("V")


class Ops(Generic[V]):
    """How nodes are written down, whether into a graph or into an e-graph: subclasses say where a node goes."""

    def node(self, op: Op, attrs: tuple[Attr, ...], args: tuple[V, ...]) -> V:
        """Add a node."""
        raise NotImplementedError

    def const(self, value: float | int | bool, dtype: DType) -> V:
        """A single value, without axes."""
        typed = float(value) if dtype in FLOATS else int(value)
        return self.node(Op.CONST, (typed, str(dtype)), ())

    def exp2(self, x: V) -> V:
        """Two to the power of x."""
        return self.node(Op.EXP2, (), (x,))

    def log2(self, x: V) -> V:
        """Logarithm to base two."""
        return self.node(Op.LOG2, (), (x,))

    def sin(self, x: V) -> V:
        """Sine of x radians."""
        return self.node(Op.SIN, (), (x,))

    def sqrt(self, x: V) -> V:
        """Square root."""
        return self.node(Op.SQRT, (), (x,))

    def recip(self, x: V) -> V:
        """1 / x."""
        return self.node(Op.RECIP, (), (x,))

    def add(self, a: V, b: V) -> V:
        """A + b."""
        return self.node(Op.ADD, (), (a, b))

    def mul(self, a: V, b: V) -> V:
        """A * b."""
        return self.node(Op.MUL, (), (a, b))

    def mod(self, a: V, b: V) -> V:
        """A - floor(a / b) * b."""
        return self.node(Op.MOD, (), (a, b))

    def max(self, a: V, b: V) -> V:
        """The larger one."""
        return self.node(Op.MAX, (), (a, b))

    def less(self, a: V, b: V) -> V:
        """Whether a < b."""
        return self.node(Op.LESS, (), (a, b))

    def select(self, condition: V, yes: V, no: V) -> V:
        """``yes`` where the condition holds, ``no`` elsewhere."""
        return self.node(Op.SELECT, (), (condition, yes, no))

    def fold(self, reducer: str, axis: str, x: V, bound: V | None = None, mode: str = FINAL) -> V:
        """Reduce along an axis, of which only the elements below ``bound`` count; or all prefixes (``SCAN``)."""
        return self.node(Op.FOLD, (reducer, axis, mode), (x,) if bound is None else (x, bound))

    def iota(self, axis: str, divisor: int = 1) -> V:
        """int32 ``[axis]``: each element's own index over ``divisor``, rounded down."""
        return self.node(Op.IOTA, (axis, divisor), ())

    def gather(self, x: V, indices: Mapping[str, V]) -> V:
        """The elements of x at these indices; an index outside of its axis means the nearest inside."""
        axes = tuple(sorted(indices))
        return self.node(Op.GATHER, (axes,), (x, *(indices[a] for a in axes)))

    def scatter(self, into: V, value: V, indices: Mapping[str, V]) -> V:
        """A copy of ``into`` with ``value`` at these indices; of equal indices the last wins."""
        axes = tuple(sorted(indices))
        return self.node(Op.SCATTER, (axes,), (into, value, *(indices[a] for a in axes)))

    def cast(self, x: V, dtype: DType) -> V:
        """X as another type."""
        return self.node(Op.CAST, (str(dtype),), (x,))


def infer(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    """The type of a node's result.

    Raises:
        InvalidProgram: The node does not follow the contract.
    """
    try:
        return _INFER[node.op](node, args, axes, inputs)
    except (KeyError, ValueError) as error:
        shown = ", ".join(f"{a.dtype}[{' '.join(a.axes)}]" for a in args)
        raise InvalidProgram(f"{node.op}{list(node.attrs)}({shown}): {error}") from None


def union_axes(types: Iterable[Type]) -> tuple[str, ...]:
    """All axes of some arrays, sorted."""
    return tuple(sorted({axis for t in types for axis in t.axes}))


def selected_axes(node: Node) -> tuple[str, ...]:
    """The axes that a gather or scatter selects from."""
    selected = node.attrs[0]
    if not isinstance(selected, tuple):
        raise ValueError("names the axes that it selects from")
    return selected


def _same(args: Sequence[Type], count: int, allowed: Sequence[DType]) -> DType:
    if len(args) != count:
        raise ValueError(f"takes {count} arguments")
    if args[0].dtype not in allowed or any(a.dtype != args[0].dtype for a in args):
        raise ValueError("takes arguments of one type, out of " + ", ".join(allowed))
    return args[0].dtype


def _infer_unary(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    return Type(_same(args, 1, FLOATS), args[0].axes)


def _infer_binary(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    dtype = _same(args, 2, (*FLOATS, DType.I32, DType.I64))
    return Type(DType.BOOL if node.op is Op.LESS else dtype, union_axes(args))


def _infer_select(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    if not args or args[0].dtype is not DType.BOOL:
        raise ValueError("takes a condition first")
    return Type(_same(args[1:], 2, tuple(DType)), union_axes(args))


def _infer_fold(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    reducer, axis, mode = node.attrs
    if reducer not in REDUCERS or mode not in (FINAL, SCAN):
        raise ValueError("knows sum, max and prod, final and scan")
    dtype = _same(args[:1], 1, (*FLOATS, DType.I32, DType.I64))
    if axis not in args[0].axes:
        raise ValueError(f"the array has no axis {axis!r}")
    bound = args[1:]
    if len(bound) > 1 or any(b.dtype is not DType.I32 or axis in b.axes for b in bound):
        raise ValueError("a bound is one int32 array without the folded axis")
    kept = tuple(a for a in union_axes(args) if a != axis or mode == SCAN)
    return Type(dtype, kept)


def _infer_iota(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    name, divisor = node.attrs
    if args or not isinstance(divisor, int) or divisor < 1:
        raise ValueError("takes no arguments and a positive divisor")
    return Type(DType.I32, (axes[str(name)].name,))


def _indices(node: Node, indices: Sequence[Type]) -> tuple[str, ...]:
    selected = selected_axes(node)
    if len(selected) != len(indices) or not selected:
        raise ValueError("takes one index a selected axis")
    if any(index.dtype is not DType.I32 for index in indices):
        raise ValueError("takes int32 indices")
    return selected


def _infer_gather(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    selected = _indices(node, args[1:])
    if not set(selected) <= set(args[0].axes):
        raise ValueError(f"the source has no axes {selected}")
    kept = Type(args[0].dtype, tuple(a for a in args[0].axes if a not in selected))
    return Type(args[0].dtype, union_axes([kept, *args[1:]]))


def _infer_scatter(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    selected = _indices(node, args[2:])
    into, value = args[:2]
    if into.dtype != value.dtype or not set(selected) <= set(into.axes):
        raise ValueError("destination and values must be of one type, and the axes the destination's")
    allowed = {a for a in into.axes if a not in selected} | set(union_axes(args[2:]))
    if not set(value.axes) <= allowed:
        raise ValueError("the values have an axis that neither the indices nor the destination have")
    return into


def _infer_cast(node: Node, args: Sequence[Type], axes: Mapping[str, Axis], inputs: Mapping[str, Input]) -> Type:
    _same(args, 1, tuple(DType))
    return Type(DType(str(node.attrs[0])), args[0].axes)


Infer = Callable[[Node, Sequence[Type], Mapping[str, Axis], Mapping[str, Input]], Type]
_INFER: dict[Op, Infer] = {
    Op.INPUT: lambda node, args, axes, inputs: inputs[str(node.attrs[0])].type,
    Op.CONST: lambda node, args, axes, inputs: Type(DType(str(node.attrs[1])), ()),
    **dict.fromkeys(UNARY, _infer_unary),
    **dict.fromkeys(BINARY, _infer_binary),
    Op.SELECT: _infer_select,
    Op.FOLD: _infer_fold,
    Op.IOTA: _infer_iota,
    Op.GATHER: _infer_gather,
    Op.SCATTER: _infer_scatter,
    Op.CAST: _infer_cast,
}


@dataclass(slots=True)
class Builder(Ops[int]):
    """Writes a graph down, each distinct node once."""

    axes: dict[str, Axis] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    states: dict[str, Type] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)

    def axis(self, name: str, extent: int | str, segments: str = "") -> str:
        """Declare an axis; returns its name.

        Raises:
            InvalidProgram: The name is taken by another extent.
        """
        axis = Axis(name, extent, segments)
        if self.axes.setdefault(name, axis) != axis:
            raise InvalidProgram(f"axis {name!r} is {self.axes[name].extent} long, not {extent}")
        return name

    def input(self, name: str, dtype: DType, axes: Iterable[str], kind: Kind = Kind.ARGUMENT) -> int:
        """Declare an input and return its node."""
        return self._input(Input(name, Type(dtype, tuple(sorted(axes))), kind))

    def state(self, name: str, dtype: DType, axes: Iterable[str]) -> str:
        """Declare a state; returns its name."""
        declared = Type(dtype, tuple(sorted(axes)))
        if self.states.setdefault(name, declared) != declared:
            raise InvalidProgram(f"state {name!r} is declared twice, differently")
        return name

    def read(self, state: str, version: int) -> int:
        """The state as it is after the graph's first ``version`` writes to it."""
        return self._input(Input(f"{state}@{version}", self.states[state], Kind.STATE, state, version))

    def _input(self, declared: Input) -> int:
        if self.inputs.setdefault(declared.name, declared) != declared:
            raise InvalidProgram(f"input {declared.name!r} is declared twice, differently")
        return self.node(Op.INPUT, (declared.name,), ())

    def node(self, op: Op, attrs: tuple[Attr, ...], args: tuple[int, ...]) -> int:
        """Add a node, or find the equal one that is there."""
        node = Node(op, attrs, args)
        found = self._known.get(node)
        if found is not None:
            return found
        self.types.append(infer(node, [self.types[a] for a in args], self.axes, self.inputs))
        self.nodes.append(node)
        self._known[node] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def graph(self, outputs: Mapping[str, tuple[int, Sequence[str]]], writes: Sequence[Write] = ()) -> Graph:
        """What was written, without what no output needs.

        Args:
            outputs: Node and all axes of each result.
            writes: Changes of states.
        """
        typed = {name: (n, Type(self.types[n].dtype, tuple(sorted(axes)))) for name, (n, axes) in outputs.items()}
        nodes, types = tuple(self.nodes), tuple(self.types)
        return prune(Graph(self.axes, self.inputs, self.states, nodes, types, typed, tuple(writes)))


def roots(graph: Graph) -> list[int]:
    """The nodes that a graph is there for."""
    wanted = [node for node, _ in graph.outputs.values()]
    return wanted + [node for write in graph.writes for node in (*write.indices, write.value)]


def in_order(graph: Graph) -> list[int]:
    """Nodes and writes such that each comes after all that it needs; write n stands as ``~n``.

    A read of a state needs the writes before its version; a write needs the one before it.
    """
    made: dict[str, list[int]] = {}
    needs: dict[int, tuple[int, ...]] = {}
    for n, write in enumerate(graph.writes):
        earlier = made.setdefault(write.state, [])
        needs[~n] = (*write.indices, write.value, *earlier[-1:])
        earlier.append(~n)
    for at, node in enumerate(graph.nodes):
        needs[at] = node.args
        if node.op is Op.INPUT:
            declared = graph.inputs[str(node.attrs[0])]
            if declared.version:
                needs[at] = (made[declared.state][declared.version - 1],)
    order: dict[int, None] = {}
    stack = [~n for n in range(len(graph.writes))] + [node for node, _ in graph.outputs.values()]
    stack.reverse()
    while stack:
        waiting = [x for x in needs[stack[-1]] if x not in order]
        if waiting:
            stack += reversed(waiting)
        else:
            order[stack.pop()] = None
    return list(order)


def prune(graph: Graph) -> Graph:
    """The graph without nodes, inputs and axes that nothing needs."""
    needed = set(roots(graph))
    for at in range(len(graph.nodes) - 1, -1, -1):
        if at in needed:
            needed.update(graph.nodes[at].args)
    order = sorted(needed)
    new = {old: at for at, old in enumerate(order)}
    nodes = tuple(
        Node(graph.nodes[old].op, graph.nodes[old].attrs, tuple(new[a] for a in graph.nodes[old].args)) for old in order
    )
    used = {str(node.attrs[0]) for node in nodes if node.op is Op.INPUT}
    inputs = {name: declared for name, declared in graph.inputs.items() if name in used}
    touched = {i.state for i in inputs.values()} | {w.state for w in graph.writes}
    states = {name: kind for name, kind in graph.states.items() if name in touched}
    types = tuple(graph.types[old] for old in order)
    named = set(union_axes([*types, *states.values(), *(t for _, t in graph.outputs.values())]))
    named |= {graph.axes[a].segments for a in named} - {""}
    return Graph(
        {name: axis for name, axis in graph.axes.items() if name in named},
        inputs,
        states,
        nodes,
        types,
        {name: (new[node], full) for name, (node, full) in graph.outputs.items()},
        tuple(Write(w.state, w.axes, tuple(new[i] for i in w.indices), new[w.value]) for w in graph.writes),
    )
