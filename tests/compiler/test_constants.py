"""Work on weights alone leaves the step, and means the same."""

import ir_layers
import numpy as np

from headrace.compiler.constants import fold_constants
from headrace.compiler.interpret import interpret
from headrace.compiler.ir import Builder, DType, Kind, Op

F, I = DType.F32, DType.I32  # noqa: E741


def started():
    b = Builder()
    b.axis("t", "T")
    b.axis("k", 6)
    b.axis("n", 4)
    return b, b.input("x", F, ["t", "k"]), b.input("w", F, ["n", "k"], Kind.WEIGHT)


def check(graph, inputs, sizes):
    """The folded graph, after comparing it with the whole one."""
    folded = fold_constants(graph)
    made = {
        name: interpret(part, {own: inputs[own] for own in part.inputs}, sizes)["value"]
        for name, part in folded.made.items()
    }
    given = {name: value for name, value in (inputs | made).items() if name in folded.graph.inputs}
    for name, value in interpret(graph, inputs, sizes).items():
        assert np.array_equal(interpret(folded.graph, given, sizes)[name], value)
    return folded


def values(graph, rows=3):
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal([rows if a == "t" else graph.axes[a].extent for a in declared.type.axes]).astype(
            np.float32
        )
        for name, declared in graph.inputs.items()
    }


def test_a_factor_that_is_to_be_computed_becomes_a_weight():
    b, x, w = started()
    scaled = b.mul(w, b.const(3, F))
    graph = b.graph({"y": (b.fold("sum", "k", b.mul(x, scaled)), ["t", "n"])})
    folded = check(graph, values(graph), {"T": 3})
    assert list(folded.made) == ["w#1"]
    assert folded.graph.inputs["w#1"].kind is Kind.WEIGHT
    assert "w" not in folded.graph.inputs


def test_a_rearranged_weight_becomes_one():
    b, x, w = started()
    order = b.mod(b.add(b.iota("k"), b.const(2, I)), b.const(6, I))
    graph = b.graph({"y": (b.fold("sum", "k", b.mul(x, b.gather(w, {"k": order}))), ["t", "n"])})
    folded = check(graph, values(graph), {"T": 3})
    assert not any(node.op is Op.GATHER for node in folded.graph.nodes)


def test_what_two_use_is_computed_once():
    b, x, w = started()
    scaled = b.mul(w, b.const(3, F))
    y = b.fold("sum", "k", b.mul(x, scaled))
    z = b.fold("sum", "k", b.mul(b.mul(x, x), scaled))
    graph = b.graph({"y": (y, ["t", "n"]), "z": (z, ["t", "n"])})
    assert len(check(graph, values(graph), {"T": 3}).made) == 1


def test_indices_and_a_steps_values_stay():
    b, x, w = started()
    rolled = b.gather(x, {"k": b.mod(b.add(b.iota("k"), b.const(2, I)), b.const(6, I))})
    graph = b.graph({"y": (b.fold("sum", "k", b.mul(rolled, w)), ["t", "n"])})
    folded = check(graph, values(graph), {"T": 3})
    assert folded.made == {}
    assert folded.graph.nodes == graph.nodes


def test_scales_of_codes_stay_apart():
    """Applying them would make a weight of few bits a long one."""
    folded = fold_constants(ir_layers.layer(hidden=128, kv_heads=2, group=1, head_dim=64, ffn=64))
    assert all(
        set(part.inputs) <= {"norm1", "norm2"} or "codes" not in "".join(part.inputs) for part in folded.made.values()
    )
    assert {"q.codes", "q.scales", "q.mins"} <= set(folded.graph.inputs)
