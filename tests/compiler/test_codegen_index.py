"""Index arithmetic against every value that its variables, lanes and members can take."""

import ast
import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.codegen import index as ix
from headrace.compiler.codegen.index import LANES, Index, Term

VARIABLES = {"i": 3, "j": 5, "k": 2}
# What is not bounded may be negative.
UNBOUNDED = {"n": (-37, -16, -1, 0, 1, 15, 16, 40), "m": (-3, 0, 8)}

factors = st.one_of(st.sampled_from([-32, -16, -1, 1, 2, 3, 4, 8, 16, 32, 48, 64]), st.integers(-70, 70))
divisors = st.one_of(st.sampled_from([1, 2, 4, 8, 16, 32, 48, 64]), st.integers(1, 70))


@st.composite
def indices(draw):
    chosen = draw(st.lists(st.sampled_from([*VARIABLES, *UNBOUNDED]), max_size=2, unique=True))
    terms = tuple(Term(name, factor, VARIABLES.get(name, 0)) for name in chosen if (factor := draw(factors)))
    lane = draw(st.one_of(st.sampled_from([0, 0, 1, 2, 4, 16, 32, -1]), st.integers(-20, 40)))
    dots = draw(st.sampled_from([1, 2, 4]))
    dot = draw(st.sampled_from([1, 4, 16])) if dots > 1 else 0
    return Index(terms, draw(st.one_of(factors, st.just(0))), lane, dot, dots)


def quotient(a, b):
    """C's division, which rounds towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


class C(ast.NodeVisitor):
    """Evaluates what this module writes: C whose grammar Python shares, but not its division."""

    def __init__(self, variables):
        self.variables = variables

    def visit_Expression(self, node):
        return self.visit(node.body)

    def visit_Name(self, node):
        return self.variables[node.id]

    def visit_Constant(self, node):
        return node.value

    def visit_UnaryOp(self, node):
        return -self.visit(node.operand)

    def visit_Compare(self, node):
        assert isinstance(node.ops[0], ast.Lt)
        return self.visit(node.left) < self.visit(node.comparators[0])

    def visit_Call(self, node):
        a, b = map(self.visit, node.args)
        return {"hr_floor": a // b, "hr_rest": a % b}[node.func.id]

    def visit_BinOp(self, node):
        a, b = self.visit(node.left), self.visit(node.right)
        match node.op:
            case ast.Add():
                return a + b
            case ast.Mult():
                return a * b
            case ast.Div():
                return quotient(a, b)
            case ast.Mod():
                return a - quotient(a, b) * b
            case ast.RShift():
                return a >> b
            case ast.BitAnd():
                return a & b
        raise AssertionError(ast.dump(node))

    def generic_visit(self, node):
        raise AssertionError(ast.dump(node))


parse = functools.cache(functools.partial(ast.parse, mode="eval"))


def evaluate(text, variables):
    return C(variables).visit(parse(text))


def environments(*given_indices):
    names = sorted({t.name for index in given_indices for t in index.terms})
    ranges = [range(VARIABLES[name]) if name in VARIABLES else UNBOUNDED[name] for name in names]
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*ranges)]


def values(index, variables, dots):
    """The index in every lane, for every member."""
    first = evaluate(index.c(), variables)
    return [first + index.lane * lane + index.dot * dot for lane in range(LANES) for dot in range(dots)]


def check(found, source, expected):
    """``found`` is ``expected`` of ``source`` in every lane, for every member, whatever the variables are."""
    for variables in environments(source):
        wanted = [expected(value) for value in values(source, variables, source.dots)]
        assert values(found, variables, source.dots) == wanted


@given(indices(), indices())
def test_sums(a, b):
    if a.dot and b.dot:
        b = Index(b.terms, b.constant, b.lane, b.dot, a.dots)
    total = ix.add(a, b)
    for variables in environments(a, b):
        pairs = zip(values(a, variables, total.dots), values(b, variables, total.dots), strict=True)
        assert values(total, variables, total.dots) == [x + y for x, y in pairs]


@given(indices(), factors)
def test_multiples(a, factor):
    check(ix.scale(a, factor), a, lambda value: value * factor)


@given(indices(), divisors)
def test_quotients(a, divisor):
    found = ix.divide(a, divisor)
    if found is not None:
        check(found, a, lambda value: value // divisor)


@given(indices(), divisors)
def test_remainders(a, divisor):
    found = ix.modulo(a, divisor)
    if found is not None:
        check(found, a, lambda value: value % divisor)


@given(indices(), divisors, divisors)
def test_remainders_of_quotients_stay_inside_of_what_they_claim(a, first, second):
    """What comes out is taken apart again: bounds that a term claims must hold."""
    high = ix.divide(a, first)
    found = None if high is None else ix.modulo(high, second)
    again = None if found is None else ix.divide(found, 4)
    if again is not None:
        check(again, a, lambda value: value // first % second // 4)


@given(indices(), st.one_of(divisors, st.integers(-40, 0)))
def test_comparisons(a, bound):
    text = ix.below(a, bound)
    if text is not None:
        for variables in environments(a):
            assert {value < bound for value in values(a, variables, a.dots)} == {evaluate(text, variables)}


@given(indices(), divisors)
def test_what_is_known_to_be_inside_is(a, extent):
    if ix.within(a, extent):
        for variables in environments(a):
            assert all(0 <= value < extent for value in values(a, variables, a.dots))


@given(indices(), divisors)
def test_what_all_lanes_share_is_always_understood(a, divisor):
    single = Index(a.terms, a.constant)
    assert ix.divide(single, divisor) is not None
    assert ix.modulo(single, divisor) is not None
    assert ix.below(single, divisor) is not None


I16 = Index((Term("i", 16, 3),), lane=1)


@pytest.mark.parametrize(
    ("found", "lane", "text"),
    [
        (ix.divide(I16, 16), 0, "i"),
        (ix.modulo(I16, 16), 1, "0"),
        (ix.divide(I16, 48), 0, "0"),
        (ix.divide(I16, 32), 0, "((i * 16) >> 5)"),
        (ix.modulo(I16, 32), 1, "((i) & 1) * 16"),
        (ix.divide(ix.scale(I16, 2), 2), 1, "i * 16"),
        (ix.divide(ix.add(I16, ix.opaque("n")), 16), None, ""),
        (ix.modulo(ix.add(I16, ix.constant(8)), 16), None, ""),
    ],
)
def test_vectors_of_neighbours_are_found(found, lane, text):
    """Lanes that read neighbours must be seen to: everything that is fast rests on it."""
    if lane is None:
        assert found is None
    else:
        assert (found.lane, found.c()) == (lane, text)
