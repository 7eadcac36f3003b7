"""What a scheduler wants to know of a graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.compiler.ir import BITS, ELEMENTWISE, FINAL, FLOATS, DType, Graph, Kind, Node, Op, roots, selected_axes

COSTLY = (Op.EXP2, Op.LOG2, Op.SIN, Op.SQRT, Op.RECIP, Op.FOLD, Op.SCATTER)


@dataclass(frozen=True)
class Contraction:
    """A sum of products of two arrays, each of which is used again along an axis that only the other has.

    Attributes:
        fold: The node.
        left: The factor that rows of the result share: the activations.
        right: The factor whose axes become lanes: weights, or state.
        axis: What is folded.
    """

    fold: int
    left: int
    right: int
    axis: str


@dataclass(frozen=True)
class Facts:
    """Questions about one graph, answered once."""

    graph: Graph

    def node(self, at: int) -> Node:
        """The node."""
        return self.graph.nodes[at]

    @cached_property
    def segments(self) -> dict[int, str]:
        """Inputs that say which segment of a ragged axis an element belongs to, with the ragged axis."""
        ragged = {axis.segments: name for name, axis in self.graph.axes.items() if axis.segments}
        named = ((at, str(n.attrs[0])) for at, n in enumerate(self.graph.nodes) if n.op is Op.INPUT)
        return {at: ragged[name] for at, name in named if name in ragged}

    @cached_property
    def axes(self) -> tuple[frozenset[str], ...]:
        """The axes along which each value differs inside of one segment."""
        found: list[frozenset[str]] = []
        for at, node in enumerate(self.graph.nodes):
            own = frozenset(self.graph.types[at].axes)
            if at in self.segments:
                own -= {self.segments[at]}
            elif node.op is Op.GATHER:
                own = (found[node.args[0]] - set(selected_axes(node))).union(*(found[a] for a in node.args[1:]))
            elif node.args:
                own &= frozenset().union(*(found[a] for a in node.args))
            found.append(own)
        return tuple(found)

    @cached_property
    def constant(self) -> tuple[bool, ...]:
        """Values that depend on weights alone."""
        found: list[bool] = []
        for node in self.graph.nodes:
            weight = node.op is Op.INPUT and self.graph.inputs[str(node.attrs[0])].kind is Kind.WEIGHT
            found.append(weight or (node.op is not Op.INPUT and all(found[a] for a in node.args)))
        return tuple(found)

    @cached_property
    def costly(self) -> tuple[bool, ...]:
        """Values that take more than a few instructions an element, with all that they need."""
        found: list[bool] = []
        for node in self.graph.nodes:
            heavy = node.op in COSTLY and not (node.op is Op.RECIP and self.node(node.args[0]).op is Op.CONST)
            found.append(heavy or any(found[a] for a in node.args))
        return tuple(found)

    @cached_property
    def read_from_memory(self) -> tuple[bool, ...]:
        """Values that are there: inputs, elements of inputs, and casts of these."""
        found: list[bool] = []
        for node in self.graph.nodes:
            loaded = node.op is Op.GATHER and found[node.args[0]]
            found.append(node.op is Op.INPUT or loaded or (node.op is Op.CAST and found[node.args[0]]))
        return tuple(found)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Who reads each value."""
        found: list[list[int]] = [[] for _ in self.graph.nodes]
        for at, node in enumerate(self.graph.nodes):
            for a in dict.fromkeys(node.args):
                found[a].append(at)
        return tuple(tuple(x) for x in found)

    @cached_property
    def ends(self) -> tuple[dict[str, int], ...]:
        """Axes along which nobody counts what lies at a bound and behind it, with the node that is the bound."""
        found: list[dict[str, int]] = [{} for _ in self.graph.nodes]
        for at in reversed(range(len(found))):
            if at not in self.roots and self.consumers[at]:
                first, *others = (self._end_for(found, reader, at) for reader in self.consumers[at])
                found[at] = {axis: b for axis, b in first.items() if all(o.get(axis) == b for o in others)}
        return tuple(found)

    def _end_for(self, found: Sequence[Mapping[str, int]], reader: int, at: int) -> dict[str, int]:
        node = self.node(reader)
        inner = dict(found[reader])
        if node.op is Op.FOLD and at not in node.args[1:] and node.attrs[2] == FINAL:
            axis = str(node.attrs[1])
            inner.pop(axis, None)
            return inner | {axis: node.args[1]} if len(node.args) > 1 else inner
        return inner if node.op in ELEMENTWISE else {}

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """What the graph is there for."""
        return tuple(dict.fromkeys(roots(self.graph)))

    def behind(self, at: int) -> int:
        """The value behind casts to a wider type, which registers hold alike."""
        while self.node(at).op is Op.CAST and self._widens(at):
            at = self.node(at).args[0]
        return at

    def _widens(self, at: int) -> bool:
        source, target = self.graph.types[self.node(at).args[0]].dtype, self.graph.types[at].dtype
        same = (source in FLOATS) == (target in FLOATS) and source is not DType.BOOL
        return same and BITS[source] <= BITS[target]

    @cached_property
    def contractions(self) -> dict[int, Contraction]:
        """The contractions, by their fold."""
        found = {}
        for at, node in enumerate(self.graph.nodes):
            if node.op is Op.FOLD and node.attrs[0] == "sum" and self.node(node.args[0]).op is Op.MUL:
                axis = str(node.attrs[1])
                factors = self.node(node.args[0]).args
                pair = self._sides(factors[0], factors[1], axis)
                if pair is not None:
                    found[at] = Contraction(at, *pair, axis)
        return found

    def _sides(self, a: int, b: int, axis: str) -> tuple[int, int] | None:
        if axis not in self.axes[a] or axis not in self.axes[b]:
            return None
        if self.axes[a] <= self.axes[b] or self.axes[b] <= self.axes[a]:
            return None
        # The right side lies in memory in an order that we choose: weights before state before what was computed.
        return (b, a) if self._choice(a) > self._choice(b) else (a, b)

    def _choice(self, at: int) -> int:
        if self.constant[at]:
            return 2
        return 1 if self.read_from_memory[at] and self._state(at) else 0

    def _state(self, at: int) -> bool:
        node = self.node(at)
        if node.op is Op.INPUT:
            return self.graph.inputs[str(node.attrs[0])].kind is Kind.STATE
        return bool(node.args) and self._state(node.args[0])

    def cone(self, at: int, stop: set[int] | frozenset[int]) -> list[int]:
        """What a value is computed from, itself last, down to what is in ``stop`` (left out)."""
        seen: set[int] = set()
        stack = [at]
        while stack:
            x = stack.pop()
            if x not in seen and (x == at or x not in stop):
                seen.add(x)
                stack += self.node(x).args
        return sorted(seen)


def folded(facts: Facts, nodes: Iterable[int]) -> set[str]:
    """The axes that some nodes fold."""
    return {str(facts.node(x).attrs[1]) for x in nodes if facts.node(x).op is Op.FOLD}
