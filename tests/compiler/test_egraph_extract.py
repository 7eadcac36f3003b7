"""Programs drawn from an e-graph: valid, acyclic, cheap; against brute force on small graphs."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compiler.egraph import (
    EGraph,
    EGraphError,
    ENode,
    Head,
    Node,
    NoProgram,
    Rule,
    Space,
    Var,
    cheapest,
    crossover,
    mutate,
    random_choice,
    saturate,
    walk,
)
from headrace.compiler.egraph.space import grow


def tangle(seed, nodes=14, unions=6):
    """A small random graph with sharing and cycles, and two roots."""
    rng = random.Random(seed)
    graph = EGraph()
    ids = [graph.add(Head("leaf", (i,))) for i in range(2)]
    for i in range(nodes):
        ids.append(graph.add(Head("n", (i,)), [rng.choice(ids) for _ in range(rng.randint(1, 3))]))
    for _ in range(unions):
        graph.union(rng.choice(ids), rng.choice(ids))
    graph.rebuild()
    return graph, [ids[-1], rng.choice(ids)]


def price(eclass, node):
    """Any fixed cost, zero among them."""
    return float((7 * len(node.children) + 5 * sum(node.head.attrs) + len(node.head.op)) % 11)


def assert_valid(choice, graph):
    seen = set()
    for eclass, node in walk(choice):
        assert node in graph.nodes(eclass)
        assert graph.find(eclass) == eclass
        assert seen.issuperset(node.children), "a child comes after its parent"
        seen.add(eclass)
    assert seen == set(choice) == {eclass for eclass, _ in walk(choice, choice.space.roots)}, "not all is needed"
    assert seen.issuperset(choice.space.roots)


def programs(space):
    """All acyclic choices, by trying all."""
    classes = list(space.options)
    for nodes in itertools.product(*space.options.values()):
        pick = dict(zip(classes, nodes, strict=True))
        needed, path = {}, []

        def visit(eclass, pick=pick, needed=needed, path=path):
            if eclass in path:
                return False
            if eclass not in needed:
                path.append(eclass)
                if not all(visit(child) for child in pick[eclass].children):
                    return False
                path.pop()
                needed[eclass] = pick[eclass]
            return True

        if all(visit(root) for root in space.roots):
            yield needed


def small(space):
    return math.prod(map(len, space.options.values())) <= 2_000


@settings(max_examples=100)
@given(st.integers(0, 10**9))
def test_every_program_is_among_all_there_are(seed):
    graph, roots = tangle(seed)
    space = Space(graph, roots)
    if not small(space):
        return
    every = {tuple(sorted(program.items())) for program in programs(space)}
    rng = random.Random(seed)
    choice = random_choice(space, rng)
    for _ in range(20):
        other = random_choice(space, rng)
        for each in (choice, other, mutate(choice, rng, rng.randint(1, 4)), crossover(choice, other, rng)):
            assert_valid(each, graph)
            assert tuple(sorted(each.items())) in every
            assert dict(space.choice(each.genes())) == dict(each)
            choice = each
    best = min(sum(price(*item) for item in program) for program in every)
    found = cheapest(space, price)
    assert_valid(found, graph)
    assert best <= found.cost(price)


@settings(max_examples=50)
@given(st.integers(0, 10**9), st.integers(14, 40))
def test_a_walk_that_runs_into_circles_finds_its_way(seed, nodes):
    """Where there is a program, giving nodes up in any order ends in one, without starting again."""
    graph, roots = tangle(seed, nodes=nodes, unions=nodes // 2)
    try:
        space = Space(graph, roots)
    except NoProgram:
        return
    rng = random.Random(seed)
    for _ in range(30):
        shuffled = {eclass: rng.sample(nodes, len(nodes)) for eclass, nodes in space.options.items()}
        assert grow(space, shuffled.__getitem__) is not None


@settings(max_examples=50)
@given(st.integers(0, 10**9))
def test_large_tangles(seed):
    graph, roots = tangle(seed, nodes=300, unions=250)
    space = Space(graph, roots)
    rng = random.Random(seed)
    a, b = random_choice(space, rng), cheapest(space, price)
    for choice in (a, b, space.simplest(), mutate(b, rng, 10), crossover(a, b, rng)):
        assert_valid(choice, graph)


@settings(max_examples=100)
@given(st.integers(0, 10**9))
def test_greedy_is_optimal_without_sharing(seed):
    """On trees of classes: there the total is the sum, and Knuth's order gives the optimum."""
    rng = random.Random(seed)
    graph = EGraph()
    count = itertools.count()

    def tree(depth):
        best, ids = math.inf, []
        for _ in range(rng.randint(1, 3)):
            below = [tree(depth - 1) for _ in range(rng.randint(0, 2) if depth else 0)]
            head = Head("n", (next(count),))
            ids.append(graph.add(head, [eclass for eclass, _ in below]))
            best = min(best, price(0, ENode(head, (0,) * len(below))) + sum(cost for _, cost in below))
        for other in ids:
            graph.union(ids[0], other)
        return ids[0], best

    root, best = tree(4)
    graph.rebuild()
    assert cheapest(Space(graph, [root]), price).cost(price) == best


def test_all_programs_are_reached():
    graph, roots = tangle(3)
    space = Space(graph, roots)
    every = {tuple(sorted(program.items())) for program in programs(space)}
    assert len(every) > 3
    rng = random.Random(0)
    assert {tuple(sorted(random_choice(space, rng).items())) for _ in range(500)} == every
    walked, choice = set(), space.simplest()
    for _ in range(1_000):
        choice = mutate(choice, rng)
        walked.add(tuple(sorted(choice.items())))
    assert walked == every


def test_either_of_two_layouts_may_come_from_the_other():
    """Cycles of conversions: each class is computed by its own product or converted from the other, never both."""
    graph = EGraph()
    x = graph.add(Head("x"))
    rows, columns = graph.add(Head("product", ("rows",)), [x]), graph.add(Head("product", ("columns",)), [x])
    graph.union(rows, graph.add(Head("convert"), [columns]))
    graph.union(columns, graph.add(Head("convert"), [rows]))
    graph.rebuild()
    space = Space(graph, [rows, columns])
    rng = random.Random(1)
    found = {tuple(choice[graph.find(each)].head.op for each in (rows, columns))
             for choice in (random_choice(space, rng) for _ in range(100))}  # fmt: skip
    assert found == {("product", "product"), ("convert", "product"), ("product", "convert")}


def residual(graph, layers):
    """h = h + f(h), with two ways to compute f; and the class of each h."""
    h = graph.add(Head("x"))
    for i in range(layers):
        f = graph.add(Head("f", (i,)), [h])
        graph.union(f, graph.add(Head("down", (i,)), [graph.add(Head("up", (i,)), [h])]))
        h = graph.add(Head("add"), [h, f])
    graph.rebuild()
    return h


def test_sharing_is_counted_once():
    graph = EGraph()
    top = residual(graph, 64)
    choice = cheapest(Space(graph, [top]), lambda eclass, node: 3.0 if node.head.op == "f" else 1.0)
    assert choice.cost(lambda eclass, node: 1.0) == len(choice) == 1 + 3 * 64
    assert {node.head.op for node in choice.values()} == {"x", "up", "down", "add"}


def test_deep_programs():
    graph = EGraph()
    top = residual(graph, 10_000)
    space = Space(graph, [top])
    rng = random.Random(0)
    choice = random_choice(space, rng)
    best = cheapest(space, lambda eclass, node: float(node.head.op != "f"))
    assert best.cost(lambda eclass, node: 1.0) == 20_001
    for each in (choice, best, mutate(choice, rng, 5), crossover(choice, best, rng)):
        assert_valid(each, graph)


def test_forbidden_nodes():
    graph = EGraph()
    x = graph.add(Head("x"))
    high = graph.add(Head("high"), [x])
    with pytest.raises(NoProgram, match=rf"class {high} cannot be computed: of its nodes \['high\(0\)'\]") as caught:
        Space(graph, [high], lambda eclass, node: node.head.op != "high")
    assert caught.value.eclass == high
    with pytest.raises(NoProgram):
        cheapest(Space(graph, [high]), lambda eclass, node: math.inf if node.head.op == "x" else 1.0)
    saturate(graph, [Rule("lower", "", "bit", Node("high", (), (Var("x"),)), Node("low", (), (Var("x"),)))])
    space = Space(graph, [high], lambda eclass, node: node.head.op != "high")
    assert [node.head.op for _, node in walk(random_choice(space, random.Random(0)))] == ["x", "low"]
    for cost in (-1.0, math.nan):
        with pytest.raises(EGraphError, match="costs"):
            cheapest(space, lambda eclass, node, cost=cost: cost)


def test_a_class_that_only_computes_itself_is_no_program():
    graph = EGraph()
    a = graph.add(Head("a"))
    graph.union(a, graph.add(Head("f"), [a]))
    graph.rebuild()
    with pytest.raises(NoProgram):
        Space(graph, [a], lambda eclass, node: node.head.op == "f")


def test_genes_of_another_space_are_refused():
    graph = EGraph()
    x = graph.add(Head("x"))
    graph.union(x, graph.add(Head("copy"), [x]))
    graph.rebuild()
    space = Space(graph, [x])
    index = [node.head.op for node in space.options[x]].index("copy")
    with pytest.raises(EGraphError, match="does not fit"):
        space.choice(((x, 2),))
    with pytest.raises(EGraphError, match="does not fit"):
        space.choice(((99, 0),))
    with pytest.raises(EGraphError, match="circle"):
        space.choice(((x, index),))
