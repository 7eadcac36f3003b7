"""What looks like a rule's left side and is not: witnesses refuse, facts are sound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.compiler.egraph import Conflict, Limits, saturate
from headrace.compiler.ir import Builder, DType, InvalidProgram, Kind, Op
from headrace.compiler.rules import EVERYTHING, Assumptions, Blocks, ProgramGraph, explore, read
from headrace.compiler.rules.facts import INDEX, RUNTIME, WEIGHTS

RULES = {rule.name: rule for rule in EVERYTHING}
F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL


@pytest.fixture
def b():
    builder = Builder()
    for name, extent in {"k": 8, "n": 5, "t": 3, "kb": 2, "ki": 4, "wide": 40}.items():
        builder.axis(name, extent)
    builder.axis("position", "S")
    return builder


def f32(b, name, *axes, kind=Kind.ARGUMENT):
    return b.input(name, F32, axes, kind)


def i32(b, name, *axes):
    return b.input(name, I32, axes)


def fires(b, root, name, *helpers, assumptions=None):
    graph = b.graph({"y": (root, b.types[root].axes)})
    found = ProgramGraph(graph, assumptions)
    report = saturate(found, [*(RULES[h] for h in helpers), RULES[name]], Limits(rounds=6, matches=10_000))
    return report.rules[-1].matches > 0


def masked(b, condition, value=-math.inf):
    return b.fold("max", "k", b.select(condition, b.const(value, F32), f32(b, "x", "k", "t")))


def test_mask_from_below_is_no_bound(b):
    p = i32(b, "p", "t")
    assert fires(b, masked(b, b.less(p, b.iota("k"))), "mask to bound")
    assert not fires(b, masked(b, b.less(b.iota("k"), p)), "mask to bound")


def test_mask_by_another_axis_or_scaled_index_is_no_bound(b):
    p = i32(b, "p", "t")
    other = b.less(p, b.iota("n"))
    assert not fires(b, masked(b, other), "mask to bound")
    assert not fires(b, masked(b, b.less(p, b.iota("k", 2))), "mask to bound")


def test_bound_may_not_depend_on_the_folded_axis(b):
    assert not fires(b, masked(b, b.less(i32(b, "p", "t", "k"), b.iota("k"))), "mask to bound")


def test_mask_with_another_value_is_no_bound(b):
    p = i32(b, "p", "t")
    assert not fires(b, masked(b, b.less(p, b.iota("k")), 0.0), "mask to bound")
    assert not fires(b, masked(b, b.less(p, b.iota("k")), -1e30), "mask to bound")


def test_mask_of_what_lacks_the_axis_is_no_bound(b):
    x = b.select(b.less(i32(b, "p", "t"), b.iota("k")), b.const(-math.inf, F32), f32(b, "x", "t"))
    assert not fires(b, b.fold("max", "k", x), "mask to bound")


@pytest.mark.parametrize("factor", [-1.5, 0.0, math.inf])
def test_mask_of_minus_infinity_times_what_is_not_positive(b, factor):
    x = b.select(b.input("c", BOOL, ["t"]), b.const(-math.inf, F32), f32(b, "x", "t"))
    assert not fires(b, b.mul(x, b.const(factor, F32)), "mask of product")


def test_maximum_times_zero_stays(b):
    assert not fires(b, b.mul(b.fold("max", "k", f32(b, "x", "k")), b.const(0.0, F32)), "scale before maximum")


@pytest.mark.parametrize(("length", "fits"), [(518, True), (519, False)])
def test_sum_that_could_be_rounded_stays_in_floating_point(b, length, fits):
    axis = b.axis("long", length)  # 518 * 128 * 255 <= 2**24 < 519 * 128 * 255 would need 514
    a = b.cast(b.input("a", DType.I8, [axis]), F32)
    c = b.cast(b.input("c", DType.U8, [axis]), F32)
    assert fires(b, b.fold("sum", axis, b.mul(a, c)), "sum in integers") is (length * 128 * 255 <= 2**24)
    assert fires(b, b.fold("sum", axis, a), "sum in integers")


def test_sum_of_wide_integers_stays_in_floating_point(b):
    assert not fires(b, b.fold("sum", "k", b.cast(i32(b, "a", "k"), F32)), "sum in integers")


def test_sum_of_symbolic_length_stays_in_floating_point(b):
    codes = b.cast(b.input("a", DType.I8, ["position"]), F32)
    assert not fires(b, b.fold("sum", "position", codes), "sum in integers")


def test_scale_that_differs_inside_of_a_block_stays(b):
    codes = b.cast(b.input("c", DType.I8, ["k"]), F32)
    other = b.add(
        b.mul(f32(b, "d", "n"), b.cast(b.input("q", DType.U4, ["n", "k"], Kind.WEIGHT), F32)), f32(b, "m", "n")
    )
    for scale, expected in ((f32(b, "s", "t"), True), (f32(b, "s2", "k"), False)):
        product = b.mul(b.mul(scale, codes), other)
        assert fires(b, b.fold("sum", "k", product), "product of codes") is expected


def test_remainder_that_may_leave_its_range_stays(b):
    x = b.add(b.mul(b.iota("kb"), b.const(4, I32)), b.mul(b.iota("ki"), b.const(3, I32)))
    graph = b.graph({"y": (b.mod(x, b.const(4, I32)), ("kb", "ki"))})
    out = explore(graph, phases=[[RULES["reduce remainder"]]])
    assert any(n.op is Op.MOD for n in out.read(out.cheapest()).nodes)


@pytest.mark.parametrize("low", [-1, 0])
def test_index_that_may_leave_the_axis_stays_clamped(b, low):
    x = b.add(b.iota("wide"), b.const(low, I32))
    at = b.gather(b.iota("wide"), {"wide": x})
    assert fires(b, at, "index of index") is (low == 0)


def test_unknown_index_stays_clamped(b):
    at = b.gather(b.iota("wide"), {"wide": i32(b, "p", "t")})
    assert not fires(b, at, "index of index")
    assert fires(b, at, "index of index", assumptions=Assumptions({"p": "wide"}))


def long_fold(b, more, position=None):
    position = i32(b, "p", "t") if position is None else position
    return b.fold("max", "position", f32(b, "x", "position"), b.add(position, b.const(more, I32)))


BLOCKS = (Blocks("S", 4, "NB"),)


def test_long_fold_is_cut_only_below_a_certain_position(b):
    known = Assumptions({"p": "position"}, BLOCKS)
    assert fires(b, long_fold(b, 1), "cut long fold", assumptions=known)
    assert not fires(b, long_fold(b, 2), "cut long fold", assumptions=known)  # may be past the end
    assert not fires(b, long_fold(b, 0), "cut long fold", assumptions=known)  # may be empty
    assert not fires(b, long_fold(b, 1), "cut long fold", assumptions=Assumptions({}, BLOCKS))
    assert not fires(b, long_fold(b, 1), "cut long fold", assumptions=Assumptions({"p": "position"}))


def test_online_softmax_wants_the_maximum_of_the_same_scores(b):
    known = Assumptions({"p": "position"}, BLOCKS)
    x, z = f32(b, "x", "position", "t"), f32(b, "z", "position", "t")
    bound = b.add(i32(b, "p", "t"), b.const(1, I32))

    def weights(scores, least, sign=-1.0):
        return b.fold("sum", "position", b.exp2(b.add(scores, b.mul(b.const(sign, F32), least))), bound)

    most = b.fold("max", "position", x, bound)
    assert fires(b, weights(x, most), "online softmax", "cut long fold", assumptions=known)
    assert not fires(b, weights(z, most), "online softmax", "cut long fold", assumptions=known)
    assert not fires(b, weights(x, most, 1.0), "online softmax", "cut long fold", assumptions=known)
    early = b.fold("max", "position", x, b.add(i32(b, "q", "t"), b.const(1, I32)))
    both = Assumptions({"p": "position", "q": "position"}, BLOCKS)
    assert not fires(b, weights(x, early), "online softmax", "cut long fold", assumptions=both)


def test_selection_is_not_pushed_where_a_fold_would_be_computed_more_often(b):
    total = b.fold("sum", "k", b.mul(f32(b, "y", "k", "n"), f32(b, "z", "k", "n")))
    at = {"n": b.mod(b.iota("wide"), b.const(5, I32))}
    assert not fires(b, b.gather(total, at), "select from fold")
    assert not fires(b, b.gather(b.exp2(f32(b, "u", "n")), at), "select from elementwise")
    product = b.fold("sum", "k", b.mul(f32(b, "x", "k", "t"), f32(b, "w", "k", "n", kind=Kind.WEIGHT)))
    assert not fires(b, b.gather(product, at), "select from fold")
    assert fires(b, b.gather(product, {"n": b.mod(b.iota("ki"), b.const(3, I32))}), "select from fold")


def test_refinement_stays_inside_of_the_axis(b):
    x, base = f32(b, "x", "k"), b.mul(b.iota("kb"), b.const(4, I32))
    first = b.gather(x, {"k": b.add(base, b.iota("ki"))})
    for shift, expected in ((2, True), (3, False)):
        other = b.gather(x, {"k": b.add(base, b.add(b.mod(b.iota("ki"), b.const(2, I32)), b.const(shift, I32)))})
        assert fires(b, b.add(first, other), "refine selection") is expected


def test_blocks_that_do_not_divide_the_axis_stay(b):
    b.axis("sb", 3)
    b.axis("si", 3)
    size = b.const(3, I32)
    x = b.gather(f32(b, "x", "sb", "si"), {"sb": b.iota("k", 3), "si": b.mod(b.iota("k"), size)})
    assert not fires(b, b.fold("sum", "k", b.mul(x, f32(b, "w", "k"))), "cut into blocks")


def test_lossy_cast_and_back_stays(b):
    assert not fires(b, b.cast(b.cast(f32(b, "x", "t"), DType.BF16), F32), "cast to itself")
    assert not fires(b, b.cast(b.cast(i32(b, "i", "t"), DType.I8), I32), "cast to itself")


@pytest.mark.parametrize(("zero", "expected"), [(0.0, False), (-0.0, True)])
def test_zero_of_either_sign(b, zero, expected):
    assert fires(b, b.add(f32(b, "x", "t"), b.const(zero, F32)), "neutral element") is expected


def test_facts(b):
    pages = b.iota("position", 16)
    nodes = {
        "mixed": b.mul(b.iota("kb"), b.const(4, I32)),
        "remainder": b.mod(i32(b, "any", "t"), b.const(7, I32)),
        "codes": b.cast(b.input("q", DType.U4, ["n"], Kind.WEIGHT), F32),
        "position": b.gather(pages, {"position": i32(b, "p", "t")}),
        "product": b.fold("sum", "k", b.mul(f32(b, "x", "k", "t"), f32(b, "w", "k", "n", kind=Kind.WEIGHT))),
        "wraps": b.mul(b.mul(b.iota("wide"), b.const(2**20, I32)), b.const(2**20, I32)),
    }
    found = ProgramGraph(b.graph({name: (at, b.types[at].axes) for name, at in nodes.items()}))
    facts = dict(zip(nodes, map(found.facts, found.roots), strict=True))
    assert (facts["mixed"].low, facts["mixed"].high, facts["mixed"].level) == (0, 4, INDEX)
    assert (facts["remainder"].low, facts["remainder"].high) == (0, 6)
    assert (facts["codes"].bits, facts["codes"].view, facts["codes"].level) == (4, True, WEIGHTS)
    assert facts["position"].below == {"S"}
    assert (facts["product"].live, facts["product"].level) == ({"t"}, RUNTIME)
    assert (facts["wraps"].low, facts["wraps"].high) == (-math.inf, math.inf)


def test_contradictions_raise(b):
    x, i = f32(b, "x", "t"), b.iota("t")
    found = ProgramGraph(b.graph({"x": (x, ["t"]), "i": (i, ["t"])}))
    with pytest.raises(Conflict, match="element types"):
        found.union(*found.roots)
    with pytest.raises(Conflict, match="constants"):
        found.union(found.write.const(1.0, F32), found.write.const(2.0, F32))
    with pytest.raises(Conflict, match="interval"):
        found.union(found.write.const(7, I32), found.roots[1])


def test_rules_cannot_build_what_the_contract_forbids(b):
    found = ProgramGraph(b.graph({"x": (f32(b, "x", "t"), ["t"])}))
    with pytest.raises(InvalidProgram, match="one type"):
        found.write.add(found.roots[0], found.write.const(1, I32))
    with pytest.raises(InvalidProgram, match="int32 bound"):
        found.write.fold("sum", "t", found.roots[0], found.roots[0])


def test_missing_and_extra_axes_are_mended(b):
    """Equal arrays of different axes may stand for each other anywhere."""
    x = f32(b, "x", "t")
    wide = b.select(b.const(True, BOOL), x, f32(b, "z", "n", "t"))
    root = b.add(b.fold("sum", "n", wide), b.gather(wide, {"n": b.const(2, I32)}))
    graph = b.graph({"y": (root, ["t"]), "wide": (wide, ["n", "t"]), "narrow": (x, ["t"])})
    found = ProgramGraph(graph)
    saturate(found, [RULES["known selection"]])
    values = {"x": np.arange(3.0), "z": np.ones((5, 3))}
    from random import Random

    from headrace.compiler.egraph import random_choice
    from headrace.compiler.interpret import interpret

    expected = interpret(graph, values, {}, exact=True)
    for seed in range(20):
        got = interpret(read(found, random_choice(found.space(), Random(seed))), values, {}, exact=True)
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
