"""What holds of every e-graph, asserted. Slow; for tests and debugging."""

from __future__ import annotations

from headrace.compiler.egraph.graph import EGraph
from headrace.compiler.egraph.node import ENode


def check(graph: EGraph) -> None:
    """Assert the invariants of an e-graph; of one that waits for a rebuild, only those that always hold."""
    _check_names(graph)
    if not (graph._moved or graph._stale or graph._modify or graph._untidy):
        _check_nodes(graph)
        _check_parents(graph)
        _check_facts(graph)


def _check_names(graph: EGraph) -> None:
    count = len(graph._leaders)
    assert len(graph._forms) == len(graph._reasons) == count, "a number has no node"
    leaders = {graph.find(number) for number in range(count)}
    assert leaders == set(graph.eclasses), "a class is lost, or was merged and is still there"
    for form, number in graph._numbers.items():
        assert graph._forms[number] == form, "a node is filed under an old form"
        assert graph._heads[form.head] is form.head, "two objects for one head"
    for op, numbers in graph._by_op.items():
        assert all(graph._forms[number].head.op == op for number in numbers), "a node is indexed under a wrong op"
    assert sum(map(len, graph._by_op.values())) == count, "a node is not indexed by its op"


def _check_nodes(graph: EGraph) -> None:
    seen: dict[ENode, int] = {}
    for eclass in graph.classes():
        nodes = list(graph.nodes(eclass))
        assert nodes, "a class is empty"
        assert nodes == sorted(set(nodes)), "the nodes of a class are not sorted, or twice there"
        for node in nodes:
            assert graph.canonical(node) == node, "a node has a child by an old name"
            assert node not in seen, "one node is in two classes: congruence does not hold"
            seen[node] = eclass
    assert set(seen) == set(graph._numbers), "the hash-cons and the classes hold different nodes"
    for node, number in graph._numbers.items():
        assert graph.find(number) == seen[node], "the hash-cons names a wrong class"
        assert graph.find(graph.add(node.head, node.children)) == seen[node], "a node is not found again"
        assert seen[node] in graph.having(node.head.op), "the index of ops lacks a class"


def _check_parents(graph: EGraph) -> None:
    expected: dict[int, set[int]] = {eclass: set() for eclass in graph.classes()}
    for node, number in graph._numbers.items():
        for child in node.children:
            expected[child].add(number)
    for eclass, numbers in expected.items():
        assert graph.eclasses[eclass].parents == sorted(numbers), "the parents of a class are not the nodes above it"


def _check_facts(graph: EGraph) -> None:
    for eclass in graph.classes():
        for analysis in graph.analyses:
            fact = graph.fact(analysis, eclass)
            for node in graph.nodes(eclass):
                assert analysis.merge(fact, analysis.make(graph, node)) == fact, "a fact is not up to date"
