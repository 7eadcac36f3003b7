"""Whole layers, as captured and with everything quantized: what the rules make of them, and that it is equal."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
from quantized import quantize, random_inputs
from tiny import CONFIGS, make

from headrace.compiler.capture import capture_model
from headrace.compiler.egraph import random_choice
from headrace.compiler.interpret import interpret
from headrace.compiler.ir import INTEGERS, Kind, Op, selected_axes
from headrace.compiler.rules import Assumptions, Blocks, explore
from headrace.compiler.show import show
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint

BLOCKS = Blocks("S", 16, "NB")
KNOWN = Assumptions({"positions": "position"}, (BLOCKS,))
SIZES = BLOCKS.of({"T": 6, "B": 3, "S": 48, "P": 3, "N": 12, "R": 2})
RECIPES = {
    "float": lambda graph: graph,
    "affine": quantize,
    "symmetric": lambda graph: quantize(graph, asymmetric=False),
    "no minima": lambda graph: quantize(graph, minima=False),
    "scales only": lambda graph: quantize(graph, asymmetric=False, minima=False),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    @cache
    def capture(name):
        folder = tmp_path_factory.mktemp("model")
        make(name).save_pretrained(folder)
        program = capture_model(load_model(open_checkpoint(folder))).program
        return {part.name: part.graph for part in program.parts}

    return capture


@pytest.fixture(scope="module")
def explored(parts):
    @cache
    def layer(recipe):
        graph = RECIPES[recipe](parts("smollm2")["layers"])
        return graph, explore(graph, KNOWN), run(graph, graph)

    return layer


def run(graph, like, *, exact=True):
    rng = np.random.default_rng(1)
    inputs = random_inputs(like, SIZES, rng, exact=exact)
    rows = np.array([0, 0, 0, 1, 2, 2], np.int32)
    indices = {
        "positions": np.array([0, 1, 2, 17, 46, 47]), "row": rows, "tokens": rng.integers(0, 256, 6),
        "page_rows": rng.permutation(9).reshape(3, 3), "select": np.array([5, 2]),
    }  # fmt: skip
    inputs |= {name: values.astype(np.int32) for name, values in indices.items() if name in inputs}
    for name, values in inputs.items():
        if name.endswith("proj.weight"):
            values *= 0.15
    results = interpret(graph, inputs, SIZES, exact=exact)
    return results | {name: inputs[name] for name in like.states}


def assert_equal(graph, like, expected, tolerance=1e-9, *, exact=True):
    got = run(graph, like, exact=exact)
    for name, values in expected.items():
        assert np.abs(got[name] - values).max() <= tolerance * max(1.0, np.abs(values).max()), name


class Shape:
    """What a graph consists of."""

    def __init__(self, graph):
        self.graph = graph
        self.nodes = list(zip(graph.nodes, graph.types, strict=True))
        self.weights = [
            (n.op is Op.INPUT and graph.inputs[str(n.attrs[0])].kind is Kind.WEIGHT) for n in graph.nodes
        ]  # fmt: skip
        for at, node in enumerate(graph.nodes):
            if node.op is not Op.INPUT:
                self.weights[at] = all(self.weights[a] for a in node.args)
        self.views = []
        for node in graph.nodes:
            through = node.op in (Op.GATHER, Op.CAST)
            self.views.append(node.op in (Op.INPUT, Op.IOTA) or (through and self.views[node.args[0]]))

    def contractions(self):
        """Sums of products with a weight."""
        found = []
        for at, (node, kind) in enumerate(self.nodes):
            if node.op is Op.FOLD and node.attrs[0] == "sum" and not self.weights[at]:
                body = self.graph.nodes[node.args[0]]
                if body.op is Op.MUL and any(self.weights[a] and self.graph.types[a].axes for a in body.args):
                    found.append(kind.dtype)
        return found

    def integer_folds(self):
        return sum(n.op is Op.FOLD and t.dtype in INTEGERS and not self.weights[at]
                   for at, (n, t) in enumerate(self.nodes))  # fmt: skip

    def bounded(self):
        return Counter((n.attrs[0], n.attrs[1]) for n, _ in self.nodes if n.op is Op.FOLD and len(n.args) > 1)

    def masks(self):
        """Selections that give what a fold ignores."""
        constants = {at: n.attrs[0] for at, (n, _) in enumerate(self.nodes) if n.op is Op.CONST}
        return [n for n, _ in self.nodes if n.op is Op.SELECT and constants.get(n.args[1]) in (-np.inf, 0.0)]

    def rearranged(self):
        """The axes that are selected from in computed values."""
        return Counter(selected_axes(n) for at, (n, _) in enumerate(self.nodes)
                       if n.op is Op.GATHER and not self.views[n.args[0]] and not self.weights[at])  # fmt: skip


ATTENTION = {
    ("max", "position_inner"): 1, ("sum", "position_inner"): 2,
    ("max", "position_block"): 1, ("sum", "position_block"): 2,
}  # fmt: skip


def check_form(recipe, graph, found, expected):
    assert all(report.stop == "saturated" for report in found.reports)
    result = found.read(found.cheapest())
    shape = Shape(result)
    coded = recipe != "float"
    assert sum((dtype in INTEGERS) is coded for dtype in shape.contractions()) == 7
    # The sum of codes is wanted only where weights have an offset, once for q, k and v, and for gate and up.
    assert shape.integer_folds() == {"float": 0, "affine": 11, "symmetric": 11}.get(recipe, 7)
    assert shape.bounded() == ATTENTION
    assert not shape.masks()
    out = ("group", "head_dim", "kv_head")
    # The second norm's argument is read in blocks, and as it is by the residual.
    assert shape.rearranged() == {("head_dim",): 4, out: 1} | ({("hidden",): 1} if coded else {})
    assert_equal(result, graph, expected)


@pytest.mark.parametrize("recipe", ["float", "affine"])
def test_form_of_a_layer(explored, recipe):
    check_form(recipe, *explored(recipe))


@pytest.mark.bars
@pytest.mark.parametrize("recipe", RECIPES)
def test_form_of_a_layer_in_all_recipes(explored, recipe):
    check_form(recipe, *explored(recipe))


def test_layer_in_float32(explored):
    graph, found, _ = explored("float")
    assert_equal(found.read(found.cheapest()), graph, run(graph, graph, exact=False), 1e-4, exact=False)


def test_rules_that_made_a_layer_are_known(explored):
    _, found, _ = explored("affine")
    reasons = found.reasons(found.cheapest())
    wanted = {"product of codes", "sum in integers", "online softmax", "cut long fold", "refine selection", "given"}
    assert wanted <= reasons.keys()


def test_same_graph_same_result(parts):
    graph = parts("smollm2")["layers"]
    first, second = explore(graph, KNOWN), explore(graph, KNOWN)
    assert first.graph.dump() == second.graph.dump()
    assert show(first.read(first.cheapest())) == show(second.read(second.cheapest()))


@pytest.mark.bars
@pytest.mark.parametrize("part", ["embed", "layers", "head"])
@pytest.mark.parametrize("name", ["qwen3"])
def test_other_families(parts, name, part):
    graph = parts(name)[part]
    found = explore(graph, KNOWN)
    result = found.read(found.cheapest())
    assert_equal(result, graph, run(graph, graph))
    if part == "layers":
        assert len(Shape(result).contractions()) == 7
        assert Shape(result).bounded() == ATTENTION


def check_random(graph, found, expected, count):
    rng = Random(0)
    for _ in range(count):
        assert_equal(found.read(random_choice(found.space, rng)), graph, expected)


@pytest.mark.parametrize(("recipe", "count"), [("float", 12), ("affine", 4)])
def test_random_programs_are_equal(explored, recipe, count):
    check_random(*explored(recipe), count)


@pytest.mark.bars
@pytest.mark.parametrize("recipe", RECIPES)
def test_many_random_programs_are_equal(explored, recipe):
    check_random(*explored(recipe), 200)


@pytest.mark.bars
@pytest.mark.parametrize("name", CONFIGS)
def test_many_random_programs_of_all_families(parts, name):
    for graph in parts(name).values():
        check_random(graph, explore(graph, KNOWN), run(graph, graph), 40)
