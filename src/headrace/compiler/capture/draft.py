"""``Draft``: a graph under construction, in which two axes may still turn out to be one.

Whether the ``576`` of a weight and the ``576`` of an activation are one axis is known only when the two meet. So an
axis of a draft is a name that may later be *unified* with another one. It may not where some array has both: such an
array would walk along its own diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.compiler.capture.ranges import EVERYTHING, Range, range_of
from headrace.compiler.capture.simplify import simplify
from headrace.compiler.ir import (
    INTEGERS,
    Attr,
    Axis,
    DType,
    Input,
    Kind,
    Node,
    Op,
    Ops,
    Type,
    infer,
    selected_axes,
)


@dataclass(slots=True)
class Draft(Ops[int]):
    """Nodes so far, each distinct one once.

    Attributes:
        axes: Every axis ever made; unified ones lead to one representative (``find``).
        pure: For each node, whether it depends on indices and constants alone.
        ranges: Bounds of each node, if it is an integer.
        hints: What axes come from, for their names: (axis, source, role); see ``names``.
    """

    axes: dict[str, Axis] = field(default_factory=dict)
    inputs: dict[str, Input] = field(default_factory=dict)
    states: dict[str, Type] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    pure: list[bool] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    hints: list[tuple[str, str, str]] = field(default_factory=list)
    _types: list[Type] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)
    _parent: dict[str, str] = field(default_factory=dict)
    _apart: dict[str, set[str]] = field(default_factory=dict)  # axes that share an array
    _promises: dict[str, Range] = field(default_factory=dict)

    # --- axes

    def axis(self, axis: Axis) -> str:
        """Declare an axis under its own name."""
        self.axes.setdefault(axis.name, axis)
        return self.find(axis.name)

    def fresh(self, extent: int | str, source: str = "", role: str = "") -> str:
        """A new axis; ``$`` marks a name that is still to be chosen, after its source and its role there."""
        axis = self.axis(Axis(f"${len(self.axes)}", extent))
        if source:
            self.hints.append((axis, source, role))
        return axis

    def find(self, axis: str) -> str:
        """The representative of an axis."""
        while axis in self._parent:
            axis = self._parent[axis]
        return axis

    def extent(self, axis: str) -> int | str:
        """Length of an axis."""
        return self.axes[self.find(axis)].extent

    def keep_apart(self, axes: Iterable[str]) -> None:
        """Note that these axes may never become one."""
        found = {self.find(a) for a in axes}
        for axis in found:
            self._apart.setdefault(axis, set()).update(found - {axis})

    def unify(self, a: str, b: str) -> bool:
        """Make two axes one, if no array has both; returns whether they are one now."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if self.axes[a].extent != self.axes[b].extent or b in self._apart.get(a, ()):
            return False
        # Names that the caller gave win, then what came first.
        if a.startswith("$") and not b.startswith("$"):
            a, b = b, a
        if not a.startswith("$") and not b.startswith("$"):
            return False
        self._parent[b] = a
        for neighbour in self._apart.pop(b, set()):
            self._apart[neighbour].discard(b)
            self._apart[neighbour].add(a)
            self._apart.setdefault(a, set()).add(neighbour)
        return True

    # --- leaves

    def declare(self, declared: Input, promise: Range = EVERYTHING) -> int:
        """An input; ``promise`` bounds its values."""
        self.inputs.setdefault(declared.name, declared)
        self._promises.setdefault(declared.name, promise)
        return self.node(Op.INPUT, (declared.name,), ())

    def read(self, state: str, version: int) -> int:
        """The state after its first ``version`` writes."""
        return self.declare(Input(f"{state}@{version}", self.states[state], Kind.STATE, state, version))

    # --- nodes

    def type(self, node: int) -> Type:
        """Type of a node, with representatives for axes."""
        kind = self._types[node]
        return Type(kind.dtype, tuple(sorted({self.find(a) for a in kind.axes})))

    def node(self, op: Op, attrs: tuple[Attr, ...], args: tuple[int, ...]) -> int:
        """Add a node as simple as it can be said."""
        attrs, args = self._canonical(op, attrs, args)
        simple = simplify(self, op, attrs, args)
        return self.raw(op, attrs, args) if simple is None else simple

    def raw(self, op: Op, attrs: tuple[Attr, ...], args: tuple[int, ...]) -> int:
        """Add a node as it is, or find the equal one that is there."""
        node = Node(op, attrs, args)
        found = self._known.get(node)
        if found is not None:
            return found
        types = [self.type(a) for a in args]
        kind = infer(node, types, self.axes, self.inputs)
        self._types.append(kind)
        self.nodes.append(node)
        self.pure.append(op not in (Op.INPUT, Op.FOLD) and all(self.pure[a] for a in args))
        self.ranges.append(self._range(node, kind))
        self._known[node] = len(self.nodes) - 1
        self._keep_apart(node, types, kind)
        return len(self.nodes) - 1

    def _canonical(
        self, op: Op, attrs: tuple[Attr, ...], args: tuple[int, ...]
    ) -> tuple[tuple[Attr, ...], tuple[int, ...]]:
        if op is Op.IOTA:
            return (self.find(str(attrs[0])), attrs[1]), args
        if op is Op.FOLD:
            return (attrs[0], self.find(str(attrs[1])), attrs[2]), args
        if op in (Op.GATHER, Op.SCATTER):
            first = 1 if op is Op.GATHER else 2
            axes = [self.find(a) for a in selected_axes(Node(op, attrs, args))]
            pairs = sorted(zip(axes, args[first:], strict=True))
            return (tuple(a for a, _ in pairs),), (*args[:first], *(i for _, i in pairs))
        return attrs, args

    def _range(self, node: Node, kind: Type) -> Range:
        if kind.dtype not in INTEGERS:
            return EVERYTHING
        if node.op is Op.INPUT:
            return self._promises[str(node.attrs[0])]
        if node.op is Op.CAST and self._types[node.args[0]].dtype in INTEGERS:
            return self.ranges[node.args[0]]
        return range_of(node, [self.ranges[a] for a in node.args], self.axes)

    def _keep_apart(self, node: Node, types: list[Type], kind: Type) -> None:
        self.keep_apart(kind.axes)
        if node.op is Op.FOLD:
            self.keep_apart([str(node.attrs[1]), *(a for t in types for a in t.axes)])
        elif node.op is Op.SCATTER:
            kept = [a for a in kind.axes if a not in selected_axes(node)]
            self.keep_apart([*kept, *(a for t in types[2:] for a in t.axes)])

    # --- what simplification asks

    def constant(self, node: int) -> float | int | None:
        """The value of a constant node."""
        value = self.nodes[node].attrs[0] if self.nodes[node].op is Op.CONST else None
        return value if isinstance(value, int | float) else None

    def indices(self, node: int) -> Mapping[str, int]:
        """Selected axes and index nodes of a gather."""
        n = self.nodes[node]
        return {self.find(a): i for a, i in zip(selected_axes(n), n.args[1:], strict=True)}

    def dtype(self, node: int) -> DType:
        """Element type of a node."""
        return self._types[node].dtype
