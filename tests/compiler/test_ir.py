"""Graphs: what is written down, what is left out, in which order, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import SIZES, graphs

from headrace.compiler.interpret import interpret
from headrace.compiler.ir import (
    Axis,
    Builder,
    DType,
    Graph,
    InvalidProgram,
    Kind,
    Node,
    Op,
    Type,
    Write,
    in_order,
    infer,
    prune,
    roots,
)
from headrace.compiler.show import show

quick = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(graphs())
def test_prune_keeps_the_meaning_and_nothing_else(case):
    graph, arrays = case
    padded = Graph(
        {**graph.axes, "z": Axis("z", 9)},
        graph.inputs,
        graph.states,
        (*graph.nodes, Node(Op.IOTA, ("z", 1)), Node(Op.ADD, (), (len(graph.nodes), len(graph.nodes)))),
        (*graph.types, Type(DType.I32, ("z",)), Type(DType.I32, ("z",))),
        graph.outputs,
    )
    assert prune(padded) == graph  # the builder's graphs are pruned
    assert prune(graph) == graph
    reached = set(roots(graph))
    for at in range(len(graph.nodes) - 1, -1, -1):
        reached |= set(graph.nodes[at].args) if at in reached else set()
    assert reached == set(range(len(graph.nodes)))
    named = {str(n.attrs[0]) for n in graph.nodes if n.op is Op.INPUT}
    assert named == set(graph.inputs)
    wanted = interpret(padded, arrays, SIZES, exact=True)["y"]
    np.testing.assert_array_equal(interpret(graph, arrays, SIZES, exact=True)["y"], wanted)


@quick
@given(graphs())
def test_in_order_puts_arguments_first(case):
    graph, _ = case
    order = in_order(graph)
    assert sorted(order) == list(range(len(graph.nodes)))
    for at in order:
        assert all(order.index(a) < order.index(at) for a in graph.nodes[at].args)


@quick
@given(graphs())
def test_types_are_inferred_again_alike(case):
    graph, _ = case
    for node, kind in zip(graph.nodes, graph.types, strict=True):
        assert infer(node, [graph.types[a] for a in node.args], graph.axes, graph.inputs) == kind


@quick
@given(graphs())
def test_every_graph_can_be_shown(case):
    graph, _ = case
    lines = show(graph).splitlines()
    shown = [n for n in graph.nodes if n.op is not Op.CONST]
    assert sum(line.lstrip().startswith("%") for line in lines) == len(shown)
    assert lines[-1].lstrip().startswith("return y = ")


def test_equal_nodes_are_one():
    b = Builder()
    b.axis("k", 3)
    x = b.input("x", DType.F32, ["k"])
    assert b.add(x, b.const(1, DType.F32)) == b.add(x, b.const(1.0, DType.F32))
    assert b.const(1, DType.F32) != b.const(1, DType.I32)


def test_order_of_writes_and_reads():
    b = Builder()
    b.axis("k", 3)
    state = b.state("s", DType.F32, ["k"])
    index = b.iota("k")
    first = Write("s", ("k",), (index,), b.add(b.read(state, 0), b.const(1, DType.F32)))
    second = Write("s", ("k",), (index,), b.mul(b.read(state, 1), b.const(2, DType.F32)))
    graph = b.graph({"y": (b.read(state, 2), ["k"])}, [first, second])
    order = in_order(graph)
    reads = [order.index(at) for at, n in enumerate(graph.nodes) if n.op is Op.INPUT]
    versions = [graph.inputs[str(graph.nodes[order[r]].attrs[0])].version for r in sorted(reads)]
    assert versions == [0, 1, 2]
    assert reads[0] < order.index(~0) < order.index(~1)
    assert order.index(~1) < max(reads)
    region = np.array([1, 2, 3], np.float32)
    assert interpret(graph, {"s": region}, {})["y"].tolist() == [4, 6, 8]


def builder():
    b = Builder()
    b.axis("k", 3)
    b.axis("n", 4)
    x, i = b.input("x", DType.F32, ["k"]), b.input("i", DType.I32, ["n"])
    return b, x, i, b.input("f", DType.BOOL, ["k"]), b.input("u", DType.U8, ["k"])


WRONG = {
    "mixed types": lambda b, x, i, f, u: b.add(x, i),
    "arithmetic on bool": lambda b, x, i, f, u: b.add(f, f),
    "arithmetic on bytes": lambda b, x, i, f, u: b.mul(u, u),
    "sine of an integer": lambda b, x, i, f, u: b.sin(i),
    "condition is a number": lambda b, x, i, f, u: b.select(x, x, x),
    "select between types": lambda b, x, i, f, u: b.select(f, x, i),
    "fold over a missing axis": lambda b, x, i, f, u: b.fold("sum", "n", x),
    "unknown reducer": lambda b, x, i, f, u: b.fold("min", "k", x),
    "unknown mode": lambda b, x, i, f, u: b.fold("sum", "k", x, mode="exclusive"),
    "bound is no integer": lambda b, x, i, f, u: b.fold("sum", "k", x, b.fold("sum", "k", x)),
    "bound has the axis": lambda b, x, i, f, u: b.fold("sum", "n", i, i),
    "iota of no axis": lambda b, x, i, f, u: b.iota("z"),
    "iota by zero": lambda b, x, i, f, u: b.iota("k", 0),
    "gather from a missing axis": lambda b, x, i, f, u: b.gather(x, {"n": i}),
    "gather by a fraction": lambda b, x, i, f, u: b.gather(x, {"k": x}),
    "gather by nothing": lambda b, x, i, f, u: b.gather(x, {}),
    "gather with too few indices": lambda b, x, i, f, u: b.node(Op.GATHER, (("k",),), (x,)),
    "gather without axes": lambda b, x, i, f, u: b.node(Op.GATHER, ("k",), (x, i)),
    "scatter of another type": lambda b, x, i, f, u: b.scatter(x, i, {"k": i}),
    "scatter of a stray axis": lambda b, x, i, f, u: b.scatter(i, i, {"n": b.const(0, DType.I32)}),
    "cast to nothing": lambda b, x, i, f, u: b.node(Op.CAST, ("f8",), (x,)),
    "unknown input": lambda b, x, i, f, u: b.node(Op.INPUT, ("z",), ()),
    "too many arguments": lambda b, x, i, f, u: b.node(Op.EXP2, (), (x, x)),
    "too few arguments": lambda b, x, i, f, u: b.node(Op.ADD, (), (x,)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_invalid_nodes(name):
    with pytest.raises(InvalidProgram):
        WRONG[name](*builder())


def test_declared_twice():
    b = Builder()
    b.axis("k", 3)
    b.input("x", DType.F32, ["k"])
    b.state("s", DType.F32, ["k"])
    with pytest.raises(InvalidProgram, match="axis 'k'"):
        b.axis("k", 4)
    with pytest.raises(InvalidProgram, match="input 'x' is declared twice"):
        b.input("x", DType.F32, ["k"], Kind.WEIGHT)
    with pytest.raises(InvalidProgram, match="state 's' is declared twice"):
        b.state("s", DType.I32, ["k"])
