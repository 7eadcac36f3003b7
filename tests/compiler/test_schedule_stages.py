"""What is kept, what runs together, and who waits for whom."""

import ir_layers
import native_fuzz
import pytest

from headrace.compiler.ir import Builder, DType, Kind, Op, Write
from headrace.compiler.schedule.plan import plan_part
from headrace.compiler.schedule.stages import divide, row_axis
from headrace.compiler.schedule.tiles import LANES

F, I = DType.F32, DType.I32  # noqa: E741
MAXIMA = {"NB": 4, "P": 64, "B": 8}


def started():
    b = Builder()
    b.axis("t", "T")
    b.axis("k", 32)
    b.axis("n", 48)
    return b, b.input("x", F, ["t", "k"]), b.input("w", F, ["n", "k"], Kind.WEIGHT)


def planned(b, outputs, writes=()):
    return plan_part(b.graph(outputs, writes), MAXIMA, 16)


def whys(plan):
    return sorted(memory.why for memory in plan.kept.values())


def test_a_chain_of_elementwise_operations_is_one_nest_in_one_stage():
    b, x, _ = started()
    y = b.exp2(b.mul(b.add(x, b.const(1, F)), x))
    plan = planned(b, {"y": (y, ["t", "k"])})
    assert whys(plan) == ["result"]
    assert [len(stage.nests()) for stage in plan.stages] == [1]


def test_a_computed_factor_is_kept_in_the_threads_own_memory():
    b, x, w = started()
    y = b.fold("sum", "k", b.mul(b.exp2(x), w))
    plan = planned(b, {"y": (y, ["t", "n"])})
    assert whys(plan) == ["factor", "result"]
    (stage,) = plan.stages
    assert len(stage.prologue) == 1
    assert len(stage.groups) == 1
    assert [memory.local for memory in plan.kept.values()] == [True, False]


def test_what_columns_do_not_change_is_not_computed_for_each_of_their_tiles():
    b, x, w = started()
    scale = b.fold("max", "k", x)
    y = b.mul(b.fold("sum", "k", b.mul(x, w)), b.recip(scale))
    assert "invariant" in whys(planned(b, {"y": (y, ["t", "n"])}))


@pytest.mark.parametrize("across", [False, True])
def test_reading_other_rows_takes_another_stage(across):
    b, x, _ = started()
    y = b.exp2(x)
    index = {"t": b.input("order", I, ["t"])} if across else {"k": b.iota("k")}
    plan = planned(b, {"y": (y, ["t", "k"]), "z": (b.gather(b.mul(y, y), index), ["t", "k"])})
    assert len(plan.stages) == (2 if across else 1)


def test_what_is_folded_over_all_rows_is_known_before_a_row_uses_it():
    b, x, _ = started()
    y = b.add(x, b.fold("max", "t", x))
    plan = planned(b, {"y": (y, ["t", "k"])})
    assert whys(plan) == ["result", "whole"]
    assert [stage.row_axis for stage in plan.stages] == ["", "t"]


def test_rows_of_two_kinds_never_share_a_stage():
    b, x, _ = started()
    b.axis("chosen", "R")
    other = b.exp2(b.input("other", F, ["chosen", "k"]))
    plan = planned(b, {"y": (b.exp2(x), ["t", "k"]), "z": (other, ["chosen", "k"])})
    assert sorted(stage.row_axis for stage in plan.stages) == ["chosen", "t"]


@pytest.mark.parametrize(("version", "first"), [(0, "read"), (1, "write")])
def test_a_read_comes_after_the_writes_before_its_version_and_before_the_next(version, first):
    b, x, _ = started()
    b.axis("page", "PAGES")
    state = b.state("s", F, ["page", "k"])
    at = b.input("at", I, ["t"])
    old = b.gather(b.read(state, version), {"page": at})
    plan = planned(b, {"y": (b.exp2(old), ["t", "k"])}, [Write(state, ("page",), (at,), b.exp2(x))])
    order = ["write" if nest.writes else "read" for stage in plan.stages for nest in stage.nests()]
    assert len(plan.stages) == 2
    assert order[0] == first


def check(plan):
    """Every read is of something that is there: of an earlier stage, the own prologue, or earlier in the own group."""
    facts = plan.facts
    done = set()
    for stage in plan.stages:
        here = set()
        for nest in stage.prologue:
            assert set(nest.reads) <= done | here
            here |= set(nest.roots)
        for group in stage.groups:
            mine = set()
            for nest in group:
                assert set(nest.reads) <= done | here | mine
                mine |= set(nest.roots)
        done |= {root for nest in stage.nests() for root in nest.roots}
        rows = {row_axis(facts, nest, ()) for nest in stage.prologue} - {""}
        assert len(rows) <= 1
    assert done == set(plan.kept)
    readers = {at: [n for stage in plan.stages for n in stage.nests() if at in n.reads] for at in plan.kept}
    for at, memory in plan.kept.items():
        if memory.local:
            homes = [stage for stage in plan.stages if any(at in nest.roots for nest in stage.nests())]
            assert all(nest in homes[0].nests() for nest in readers[at])
    for nest, loops in plan.loops.items():
        folded = {str(facts.node(x).attrs[1]) for x in nest.nodes if facts.node(x).op is Op.FOLD}
        assert not folded & set(loops.tasks)
        for axis, extent in ((a, facts.graph.axes[a].extent) for a in {x.axis for x in loops.levels}):
            levels = [x for x in loops.levels if x.axis == axis]
            if isinstance(extent, int):
                top = sum(x.stride * (x.count - 1) for x in levels)
                assert extent - 1 <= top < extent + LANES * max(x.stride for x in levels)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_graphs(first):
    for seed in range(first, first + 100):
        check(plan_part(native_fuzz.draw(seed, "g", 10).graph, MAXIMA, 16))


def test_a_whole_layer():
    plan = plan_part(ir_layers.layer(), MAXIMA, 16)
    check(plan)
    assert len(plan.stages) <= 6
    assert divide(plan.facts, list(plan.loops))  # again, from what was found
