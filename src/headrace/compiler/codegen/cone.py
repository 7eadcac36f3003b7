"""What one loop nest is asked to compute, and what that needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.compiler.codegen.layout import Layout
from headrace.compiler.codegen.nest import Level
from headrace.compiler.ir import DType, Graph, Node, Op, selected_axes
from headrace.errors import HeadraceError


class CannotEmit(HeadraceError):
    """A schedule asks for code that there is no way to write; the search drops it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array in memory.

    Attributes:
        pointer: To its first element, in C.
        dtype: Its elements.
        layout: Where they lie.
        padded: Whether a vector may run over the end of the last axis without harm.
        streamed: Whether it may be fetched ahead (see ``Ahead``): it is read once a step, in order.
        pages: Tokens of a page; where it is read through a table of pages, later ones may be fetched ahead.
    """

    pointer: str
    dtype: DType
    layout: Layout
    padded: bool = True
    streamed: bool = False
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is fetched into the cache before it is read.

    Attributes:
        stream: Bytes that weights are fetched ahead, where few rows share a load; 0: they are not.
        few_rows: Rows up to which they are.
        pages: How many pages of state; 0: they are not.
    """

    stream: int = 0
    few_rows: int = 0
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A value that a nest is there to compute.

    Attributes:
        node: The value.
        into: Where it goes.
        indices: Nodes that say where along an axis of the buffer, for those that are not the value's own.
        bounds: Axis to the node that says where it ends for this value; what lies behind is stored as zero.
    """

    node: int
    into: Buffer
    indices: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cone:
    """A loop nest and what it computes.

    Attributes:
        graph: Where the nodes are.
        stores: What is computed.
        levels: The iteration, from outer to inner.
        buffers: Nodes that are in memory already.
        uniform: Nodes that are the same in the whole task, though they have an axis that it runs over, in C.
        limits: Axis that is folded only so far, to the farthest that any value of the task folds it, in C.
        ended: Nodes in memory that are zero behind a bound, with the bound of each such axis.
        ahead: What is fetched before it is read.
        memo: Values of weights alone that the first rows of a task compute for all: where they lie, in C.
    """

    graph: Graph
    stores: tuple[Store, ...]
    levels: tuple[Level, ...]
    buffers: Mapping[int, Buffer]
    uniform: Mapping[int, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    ahead: Ahead = Ahead()
    memo: Mapping[int, str] = field(default_factory=dict)


def uses_of(cone: Cone) -> dict[int, int]:
    """How often each needed value is read; those in memory already stop the walk."""
    uses: dict[int, int] = {}
    stack = [s.node for s in cone.stores] + [i for s in cone.stores for i in s.indices.values()]
    stack += [i for s in cone.stores for i in s.bounds.values()]
    while stack:
        at = stack.pop()
        uses[at] = uses.get(at, 0) + 1
        if uses[at] == 1 and at not in cone.buffers and at not in cone.uniform:
            node = cone.graph.nodes[at]
            whole = node.op is not Op.GATHER or not _addressed(cone, node)
            stack += node.args if whole else node.args[1:]
    return uses


def _addressed(cone: Cone, gather: Node) -> bool:
    """Whether a gather's source is no value, only something that an index goes into."""
    return gather.args[0] in cone.buffers or cone.graph.nodes[gather.args[0]].op is Op.IOTA


def axes_of(cone: Cone, uses: Mapping[int, int]) -> dict[int, frozenset[str]]:
    """The axes along which each value differs within a task."""
    axes: dict[int, frozenset[str]] = {}
    for at in sorted(uses):
        node, known = cone.graph.nodes[at], cone.graph.types[at].axes
        if at in cone.uniform:
            axes[at] = frozenset()
        elif at in cone.buffers or node.op in (Op.IOTA, Op.CONST, Op.INPUT):
            axes[at] = frozenset(known)
        elif node.op is Op.GATHER:
            source = axes.get(node.args[0], frozenset(cone.graph.types[node.args[0]].axes))
            axes[at] = (source - set(selected_axes(node))).union(*(axes[x] for x in node.args[1:]))
        else:
            axes[at] = frozenset().union(*(axes[x] for x in node.args)) & frozenset(known)
    return axes
