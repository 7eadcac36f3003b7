"""Patterns, rules and saturation: against a naive matcher, and against egglog where it is installed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compiler.egraph import (
    Attr,
    EGraph,
    EGraphError,
    Head,
    Limits,
    Match,
    Node,
    PatternError,
    Rule,
    Var,
    build,
    find_all,
    saturate,
)

X, Y, Z = Var("x"), Var("y"), Var("z")


def add(left, right):
    return Node("add", (), (left, right))


def mul(left, right):
    return Node("mul", (), (left, right))


def neg(inner):
    return Node("neg", (), (inner,))


ZERO, ONE = Node("int", (0,)), Node("int", (1,))
COMMUTE = Rule("commute", "algebra", "bit", add(X, Y), add(Y, X))
ASSOCIATE = Rule("associate", "algebra", "real", add(X, add(Y, Z)), add(add(X, Y), Z))
RULES = {
    rule.name: rule
    for rule in [
        COMMUTE,
        ASSOCIATE,
        Rule("commute mul", "algebra", "bit", mul(X, Y), mul(Y, X)),
        Rule("distribute", "algebra", "real", mul(X, add(Y, Z)), add(mul(X, Y), mul(X, Z))),
        Rule("factor", "algebra", "real", add(mul(X, Y), mul(X, Z)), mul(X, add(Y, Z))),
        Rule("add zero", "algebra", "real", add(X, ZERO), X),
        Rule("mul one", "algebra", "bit", mul(X, ONE), X),
        Rule("mul zero", "algebra", "real", mul(X, ZERO), ZERO),
        Rule("cancel", "algebra", "real", add(X, neg(X)), ZERO),
        Rule("neg neg", "algebra", "bit", neg(neg(X)), X),
        Rule("idempotent", "algebra", "bit", mul(X, X), X),
    ]
}


def put(graph, term):
    """Add a term: a tuple of op and children, or an int."""
    if isinstance(term, int):
        return graph.add(Head("int", (term,)))
    return graph.add(Head(term[0]), [put(graph, child) for child in term[1:]])


ATTRS = st.sampled_from([0, 1, True, 1.0, "k"])
PATTERNS = st.recursive(
    st.sampled_from([X, Y, Z]),
    lambda inner: st.builds(
        Node,
        st.sampled_from("fg"),
        st.lists(ATTRS | st.sampled_from([Attr("p"), Attr("q")]), max_size=2).map(tuple) | st.just(Attr("all")),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=4,
)


def naive(graph, pattern, eclass, bound):
    """All ways to match, by plain backtracking; attributes by their kind and value."""
    if isinstance(pattern, Var):
        if bound.get(pattern.name, eclass) == eclass:
            yield {**bound, pattern.name: eclass}
        return
    for node in graph.nodes(eclass):
        if node.head.op != pattern.op or len(node.children) != len(pattern.children):
            continue
        if isinstance(pattern.attrs, Attr):
            wanted, given = (pattern.attrs,), (node.head.attrs,)
        else:
            wanted, given = pattern.attrs, node.head.attrs
        if len(wanted) != len(given):
            continue
        now = dict(bound)
        for want, have in zip(wanted, given, strict=True):
            value = now.setdefault(want.name, have) if isinstance(want, Attr) else want
            if repr(value) != repr(have):
                break
        else:
            partial = [now]
            for child, below in zip(pattern.children, node.children, strict=True):
                partial = [more for one in partial for more in naive(graph, child, below, one)]
            yield from partial


@settings(max_examples=300)
@given(PATTERNS, st.integers(0, 10**9))
def test_matches_are_those_of_a_naive_matcher(pattern, seed):
    rng = random.Random(seed)
    graph = EGraph()
    ids = []
    for _ in range(14):
        attrs = tuple(rng.choice([0, 1, True, 1.0, "k"]) for _ in range(rng.randrange(3)))
        children = [rng.choice(ids) for _ in range(rng.randrange(3))] if ids else []
        ids.append(graph.add(Head(rng.choice("fg"), attrs), children))
    for _ in range(rng.randrange(6)):
        graph.union(rng.choice(ids), rng.choice(ids))
    graph.rebuild()
    found = find_all(graph, pattern)
    expected = [(root, match) for root in graph.classes() for match in naive(graph, pattern, root, {})]

    def text(root, bindings):
        return repr((root, sorted(bindings.items())))

    assert sorted(text(match.root, match) for match in found) == sorted(text(*each) for each in expected)
    for match in found:  # building what was found finds it again
        assert graph.find(build(graph, pattern, match)) == match.root


def test_attributes_are_matched_by_kind_and_carried_over():
    graph = EGraph()
    x = graph.add(Head("x"))
    inner = graph.add(Head("fold", ("sum", "k")), [x])
    outer = graph.add(Head("fold", ("sum", "n")), [inner])
    swap = Rule(
        "swap folds",
        "contraction",
        "real",
        Node("fold", (Attr("how"), Attr("a")), (Node("fold", (Attr("how"), Attr("b")), (X,)),)),
        Node("fold", (Attr("how"), Attr("b")), (Node("fold", (Attr("how"), Attr("a")), (X,)),)),
    )
    saturate(graph, [swap])
    assert graph.find(graph.add(Head("fold", ("sum", "k")), [graph.add(Head("fold", ("sum", "n")), [x])])) == outer
    graph.add(Head("fold", ("max", "m")), [outer])
    assert saturate(graph, [swap]).rules[0].unions == 0


def test_rules_that_make_no_sense_are_refused():
    with pytest.raises(PatternError, match=r"rule 'r': 'y' stands on the right side only"):
        Rule("r", "", "bit", neg(X), add(X, Y))
    with pytest.raises(PatternError, match="'a' stands on the right side only"):
        Rule("r", "", "bit", neg(X), Node("int", (Attr("a"),)))
    with pytest.raises(PatternError, match="class and for an attribute"):
        Rule("r", "", "bit", Node("f", (Attr("x"),), (X,)), X)
    with pytest.raises(PatternError, match="'y' is not bound"):
        build(EGraph(), Y, {"x": 0})
    with pytest.raises(EGraphError, match="no fixed order"):
        Rule("r", "", "bit", Node("f", ([],)), X)
    with pytest.raises(PatternError, match="one name"):
        saturate(EGraph(), [COMMUTE, COMMUTE])
    graph = EGraph()
    put(graph, ("add", ("x",), ("y",)))
    with pytest.raises(EGraphError, match="more than 0 matches"):
        find_all(graph, add(X, Y), limit=0)


def test_witnesses_and_functions():
    graph = EGraph()
    top = put(graph, ("add", ("x",), 3))
    put(graph, ("add", ("x",), 5))

    def small(graph, match):
        return any(node.head.op == "int" and node.head.attrs[0] < 4 for node in graph.nodes(match["y"]))

    def double(graph, match):
        return build(graph, mul(X, Node("int", (2,))), match) if match.root == top else None

    report = saturate(graph, [Rule("r", "", "real", add(X, Y), double, when=(small,), doc="small ones")])
    assert (report.stop, report.rules[0].matches, report.rules[0].unions) == ("saturated", 1, 1)
    assert graph.find(put(graph, ("mul", ("x",), 2))) == graph.find(top)
    assert graph.reasons(top) == {"given": 1, "r": 2}
    assert "r: 1 matches, 1 unions" in report.describe()


def test_a_function_may_look_for_several_patterns_at_once():
    """Two products that share an operand become parts of one."""
    graph = EGraph()
    products = [put(graph, ("mul", ("x",), (w,))) for w in ("q", "k")]
    put(graph, ("mul", ("y",), ("v",)))

    def pairs(graph):
        packs = graph.having("pack")  # what was joined is a product too
        matches = [match for match in find_all(graph, mul(X, Y)) if match["y"] not in packs]
        for left in matches:
            for right in matches:
                if left["x"] == right["x"] and left["y"] < right["y"]:
                    yield Match(left.root, {"x": left["x"], "y": left["y"], "z": right["y"], "other": right.root})

    def join(graph, match):
        whole = build(graph, mul(X, Node("pack", (), (Y, Z))), match)
        graph.union(match["other"], graph.add(Head("part", (1,)), [whole]))
        return graph.add(Head("part", (0,)), [whole])

    report = saturate(graph, [Rule("join", "contraction", "bit", pairs, join)])
    assert report.stop == "saturated"
    assert report.rules[0].unions == 2
    for index, product in enumerate(products):
        assert [(node.head.op, node.head.attrs) for node in graph.nodes(product)] == [("mul", ()), ("part", (index,))]
    graph.check()


def chain(graph, length):
    at = graph.add(Head("v", (0,)))
    for i in range(1, length):
        at = graph.add(Head("add"), [graph.add(Head("v", (i,))), at])
    return at


def test_limits_stop_an_explosion():
    for limits, stop in [
        (Limits(nodes=500), "nodes"),
        (Limits(rounds=2), "rounds"),
        (Limits(seconds=0.0), "seconds"),
        (Limits(matches=10, ban=1, rounds=1_000), "saturated"),
    ]:
        graph = EGraph()
        chain(graph, 7)
        report = saturate(graph, [COMMUTE, ASSOCIATE], limits)
        assert report.stop == stop
        graph.check()
    # all sums of all subsets: 3^n - 2^(n+1) + 1 ordered splits, and the leaves
    assert len(graph) == 3**7 - 2**8 + 1 + 7
    assert report.rules[0].bans + report.rules[1].bans > 0


def test_a_search_within_one_class_is_bounded():
    graph = EGraph()
    ids = [graph.add(Head("add"), [graph.add(Head("v", (i,)))] * 2) for i in range(60)]
    top = graph.add(Head("add"), [ids[0], ids[0]])
    for other in ids:
        graph.union(ids[0], other)
    graph.rebuild()
    deep = add(add(X, Y), add(Z, Var("w")))
    assert len(find_all(graph, deep, limit=3_600)) == 3_600
    with pytest.raises(EGraphError, match="more than 3599"):
        find_all(graph, deep, limit=3_599)
    assert graph.find(top) in graph.having("add")


TERMS = st.recursive(
    st.sampled_from([0, 1, ("a",), ("b",)]),
    lambda inner: st.tuples(st.sampled_from(["add", "mul"]), inner, inner) | st.tuples(st.just("neg"), inner),
    max_leaves=4,
)


@settings(max_examples=100)
@given(
    st.lists(TERMS, min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=6, unique=True),
    st.integers(1, 30),
)
def test_when_it_is_saturated_nothing_is_left_to_find(terms, chosen, matches):
    graph = EGraph()
    for term in terms:
        put(graph, term)
    rules = [RULES[name] for name in chosen]
    report = saturate(graph, rules, Limits(rounds=200, nodes=600, matches=matches, ban=2))
    if report.stop != "saturated":
        return
    size = len(graph)
    for rule in rules:
        for match in find_all(graph, rule.lhs):
            assert graph.find(build(graph, rule.rhs, match)) == match.root
    assert len(graph) == size


def test_what_was_refused_is_asked_again():
    """A witness and a right side may look at more than the pattern does."""
    graph = EGraph()
    top = put(graph, ("neg", ("a",)))
    far = put(graph, ("b",))

    def has(op):
        return lambda graph, match: any(node.head.op == op for node in graph.nodes(far))

    def when_d(graph, match):
        return put(graph, ("e",)) if has("d")(graph, match) else None

    c = Node("c", (), ())
    rules = [
        Rule("last", "", "bit", neg(X), when_d),
        Rule("second", "", "bit", neg(X), lambda graph, match: put(graph, ("f",)), when=(has("d"), has("c"))),
        Rule("first", "", "bit", c, lambda graph, match: put(graph, ("d",))),
    ]
    graph.union(far, put(graph, ("c",)))
    report = saturate(graph, rules)
    assert report.stop == "saturated"
    assert [node.head.op for node in graph.nodes(top)] == ["e", "f", "neg"]
    assert [each.unions for each in report.rules] == [1, 1, 1]


def subterms(terms):
    seen, todo = {}, list(terms)
    while todo:
        term = todo.pop()
        if term not in seen:
            seen[term] = None
            if isinstance(term, tuple):
                todo += term[1:]
    return list(seen)


def egglog_text(term):
    if isinstance(term, int):
        return f"(Int {term})"
    if isinstance(term, Var):
        return term.name
    if isinstance(term, Node):
        return f"(Int {term.attrs[0]})" if term.op == "int" else egglog_text((term.op, *term.children))
    return f"({term[0].capitalize()} {' '.join(map(egglog_text, term[1:]))})"


def egglog_classes(bindings, rules, terms, rounds):
    """Which of the terms egglog finds equal: the terms' class values; None if it has not saturated."""
    lines = ["(datatype T (Int i64) (A) (B) (Add T T) (Mul T T) (Neg T))"]
    lines += [f"(rewrite {egglog_text(rule.lhs)} {egglog_text(rule.rhs)})" for rule in rules]
    lines += [f"(let $t{i} {egglog_text(term)})" for i, term in enumerate(terms)]
    lines.append(f"(run {rounds})")
    engine = bindings.EGraph()
    engine.run_program(*engine.parse_program("\n".join(lines)))
    equal = {}
    for i in range(len(terms)):
        for j in range(i):
            try:
                engine.run_program(*engine.parse_program(f"(check (= $t{i} $t{j}))"))
            except bindings.EggSmolError:
                continue
            equal[i] = equal.get(j, j)
            break
    return [equal.get(i, i) for i in range(len(terms))]


@settings(max_examples=60)
@given(
    st.lists(TERMS, min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=5, unique=True),
)
def test_equalities_are_those_of_egglog(terms, chosen):
    bindings = pytest.importorskip("egglog.bindings", reason="egglog 13.2.0 is the oracle of this test")
    rules = [RULES[name] for name in chosen]
    terms = subterms(terms)
    graph = EGraph()
    ids = [put(graph, term) for term in terms]
    report = saturate(graph, rules, Limits(rounds=10, nodes=600))
    graph.check()
    if report.stop != "saturated":
        return
    theirs = egglog_classes(bindings, rules, terms, report.rounds + 2)
    ours = [next(j for j in range(len(ids)) if graph.find(ids[j]) == graph.find(each)) for each in ids]
    assert ours == theirs
