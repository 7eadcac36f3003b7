"""Between graphs and e-graphs: ``ProgramGraph`` holds programs, ``read`` takes one out.

In an e-graph two equal arrays may differ in axes (see ``facts.py``). ``read`` sees to it that a program obeys the
contract all the same: where an operation needs an axis that the chosen form lacks it is added, and where a form has one
too many it is dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.compiler.egraph import Choice, ClassId, EGraph, Head, Space, walk
from headrace.compiler.ir import (
    COMMUTATIVE,
    Attr,
    Axis,
    Builder,
    DType,
    Graph,
    InvalidProgram,
    Op,
    Ops,
    Write,
    roots,
    selected_axes,
)
from headrace.compiler.ir import Node as IrNode
from headrace.compiler.rules.facts import INDEX, FactAnalysis, Facts


@dataclass(frozen=True, slots=True)
class Blocks:
    """How an axis of a length that a step brings may be cut.

    Attributes:
        symbol: The length.
        size: Of a block.
        count: The symbol for the number of blocks, which a step has to bring too: the length over the size, rounded up.
    """

    symbol: str
    size: int
    count: str

    def of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """These sizes with the number of blocks."""
        return {**sizes, self.count: -(-sizes[self.symbol] // self.size)}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is known of a program besides its graph.

    Attributes:
        indices: Inputs whose elements are all valid indices of an axis, and which.
        blocks: Lengths that may be cut into blocks.
    """

    indices: Mapping[str, str] = field(default_factory=dict)
    blocks: tuple[Blocks, ...] = ()


class Writer(Ops[ClassId]):
    """Writes nodes into an e-graph. Arguments of commutative operations are put in order."""

    def __init__(self, graph: ProgramGraph) -> None:
        self.graph = graph

    def node(self, op: Op, attrs: tuple[Attr, ...], args: tuple[ClassId, ...]) -> ClassId:
        """See ``Ops``."""
        if op in COMMUTATIVE:
            args = tuple(sorted(map(self.graph.find, args)))
        return self.graph.add(Head(op.value, attrs), args)

    def gather(self, x: ClassId, indices: Mapping[str, ClassId]) -> ClassId:
        """See ``Ops``; axes along which ``x`` does not differ are left out, and index arithmetic is done at once."""
        from headrace.compiler.rules.index import picked

        facts = self.graph.facts(x)
        own = {axis: index for axis, index in indices.items() if axis in facts.axes}
        if own and facts.level == INDEX and all(self.graph.facts(i).level == INDEX for i in own.values()):
            return picked(self.graph, x, own)
        return super().gather(x, own) if own else x

    def product(self, factors: Sequence[ClassId]) -> ClassId:
        """The product of one or more."""
        result = factors[0]
        for factor in factors[1:]:
            result = self.mul(result, factor)
        return result

    def total(self, terms: Sequence[ClassId]) -> ClassId:
        """The sum of one or more."""
        result = terms[0]
        for term in terms[1:]:
            result = self.add(result, term)
        return result

    def negative(self, x: ClassId) -> ClassId:
        """``-1 * x``."""
        return self.mul(self.const(-1, self.graph.facts(x).dtype), x)


class ProgramGraph(EGraph):
    """An e-graph of programs.

    Args:
        source: A program to begin with.
        assumptions: What else is known.
        max_nodes: See ``EGraph``.

    Attributes:
        axes: By name; rules add new ones.
        source: As given.
        roots: The classes that the program is there for: outputs, then each write's indices and value.
        write: How rules write nodes.
        searched: Each rule's reading of the clock when it last looked (see ``finding.py``).
        applied: What each rule was applied to.
        joined: Axes along which weights were put one after the other (see ``merging.py``).
        forms: Normal forms of indices, each with the clock when it was made (see ``index.py``).
    """

    def __init__(self, source: Graph, assumptions: Assumptions | None = None, max_nodes: int = 100_000) -> None:
        self.source = source
        self.assumptions = assumptions or Assumptions()
        self.axes: dict[str, Axis] = dict(source.axes)
        self.blocks = {each.symbol: each for each in self.assumptions.blocks}
        symbols = {each.count: each.symbol for each in self.assumptions.blocks}
        indices = {name: axis for name, axis in self.assumptions.indices.items() if axis in self.axes}
        super().__init__([FactAnalysis(self.axes, source.inputs, indices, symbols)], max_nodes)
        self.write = Writer(self)
        self.searched: dict[str, int] = {}
        self.applied: dict[str, set[Hashable]] = {}
        self.joined: set[str] = set()
        self.forms: dict[ClassId, tuple[int, Any]] = {}
        classes: list[ClassId] = []
        for node in source.nodes:
            classes.append(self.write.node(node.op, node.attrs, tuple(classes[a] for a in node.args)))
        self.roots = tuple(classes[at] for at in roots(source))
        self.rebuild()

    def facts(self, eclass: ClassId) -> Facts:
        """What is known of a class."""
        facts: Facts = self.eclasses[self.find(eclass)].facts[0]
        return facts

    def axis(self, name: str, extent: int | str, segments: str = "") -> str:
        """An axis of this name, or of one made from it if it is taken by another extent. Returns the name."""
        wanted = Axis(name, extent, segments)
        while self.axes.setdefault(wanted.name, wanted) != wanted:
            wanted = Axis(wanted.name + "_", extent, segments)
        return wanted.name

    def twin(self, name: str, avoid: frozenset[str]) -> str:
        """An axis as long as another one, of another name than some."""
        other = name
        while True:
            other = self.axis(other + "_", self.axes[name].extent, self.axes[name].segments)
            if other not in avoid:
                return other

    def space(self) -> Space:
        """All programs that were found."""
        return Space(self, self.roots)


def read(graph: ProgramGraph, choice: Choice) -> Graph:
    """The chosen program as a graph, with the source's results and writes."""
    reader = _Reader(graph)
    for eclass, node in walk(choice):
        op, args = Op(node.head.op), tuple(reader.built[graph.find(child)] for child in node.children)
        reader.built[eclass] = reader.add(op, node.head.attrs, args)
    return reader.finish()


class _Reader:
    def __init__(self, graph: ProgramGraph) -> None:
        source = graph.source
        self.graph = graph
        self.builder = Builder(dict(graph.axes), dict(source.inputs), dict(source.states))
        self.built: dict[ClassId, int] = {}

    def add(self, op: Op, attrs: tuple[Attr, ...], args: tuple[int, ...]) -> int:
        if op is Op.FOLD:
            axis = str(attrs[1])
            args = (self.widened(args[0], axis), *(self.narrowed(bound, {axis}) for bound in args[1:]))
        elif op is Op.GATHER:
            axes = self.builder.types[args[0]].axes
            selected = selected_axes(IrNode(op, attrs))
            own = [(axis, index) for axis, index in zip(selected, args[1:], strict=True) if axis in axes]
            if not own:
                return args[0]
            attrs, args = (tuple(axis for axis, _ in own),), (args[0], *(index for _, index in own))
        elif op is Op.SCATTER:
            into = args[0]
            for axis in self.needed(attrs, args):
                into = self.widened(into, axis)
            args = (into, *args[1:])
        return self.builder.node(op, attrs, args)

    def needed(self, attrs: tuple[Attr, ...], args: tuple[int, ...]) -> list[str]:
        """The axes that a scatter's destination must have."""
        types = self.builder.types
        from_indices = {axis for index in args[2:] for axis in types[index].axes}
        return sorted({*selected_axes(IrNode(Op.SCATTER, attrs)), *(set(types[args[1]].axes) - from_indices)})

    def widened(self, at: int, axis: str) -> int:
        """The same with an axis along which nothing changes."""
        builder = self.builder
        if axis in builder.types[at].axes:
            return at
        always = builder.less(builder.iota(axis), builder.const(2**31 - 1, DType.I32))
        return builder.select(always, at, at)

    def narrowed(self, at: int, axes: set[str]) -> int:
        """The same without some axes, along which nothing changes."""
        extra = {axis: self.builder.const(0, DType.I32) for axis in self.builder.types[at].axes if axis in axes}
        return self.builder.gather(at, extra) if extra else at

    def finish(self) -> Graph:
        source, builder = self.graph.source, self.builder
        found = [self.built[self.graph.find(root)] for root in self.graph.roots]
        outputs: dict[str, tuple[int, Sequence[str]]] = {}
        for name, (_, full) in source.outputs.items():
            at = found.pop(0)
            outputs[name] = (self.narrowed(at, set(builder.types[at].axes) - set(full.axes)), full.axes)
        writes = []
        for write in source.writes:
            given = source.states[write.state].axes
            old = {axis for index in write.indices for axis in source.types[index].axes}
            allowed = old | (set(given) - set(write.axes))
            ends = [found.pop(0) for _ in (*write.indices, write.value)]
            ends = [self.narrowed(at, set(builder.types[at].axes) - allowed) for at in ends]
            writes.append(Write(write.state, write.axes, tuple(ends[:-1]), ends[-1]))
        graph = builder.graph(outputs, writes)
        for name, (at, full) in graph.outputs.items():
            if graph.types[at].dtype is not source.outputs[name][1].dtype:
                raise InvalidProgram(f"result {name!r} became {full.dtype}")
        return graph
