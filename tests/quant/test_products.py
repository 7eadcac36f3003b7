"""One product of activations and a weight under each recipe, against the formulas written out in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stored_weights import HeldCheckpoint, exact, stored

from headrace.compiler.interpret import interpret, round_bf16
from headrace.compiler.ir import Builder, DType, Kind, Op, Part, Program
from headrace.quant import products
from headrace.quant.apply import apply_recipe
from headrace.quant.recipes import RECIPES, Recipe
from headrace.quant.weights import load_weights, stored_formats

K, N, T = 96, 5, 7
F = np.float32
RNG = np.random.default_rng(5)
BLOCK_FORMATS = ["q4_0", "q4_1", "q8_0"]


def linear(rows=False, renamed=False):
    """``y[t, n] = sum over k of x[t, k] w[n, k]``; w's rows selected, or its k renamed, as rules leave it."""
    b = Builder()
    for name, extent in {"t": "T", "n": N, "m": N, "k": K, "j": K}.items():
        b.axis(name, extent)
    w = b.input("w", DType.F32, ["n", "k"], Kind.WEIGHT)
    k = "j" if renamed else "k"
    x = b.input("x", DType.F32, ["t", k])
    index = {"n": b.add(b.mul(b.iota("m"), b.const(-1, DType.I32)), b.const(N - 1, DType.I32))} if rows else {}
    index |= {"k": b.iota("j")} if renamed else {}
    w = b.gather(w, index) if index else w
    y = b.fold("sum", k, b.mul(x, w))
    return Program((Part("all", b.graph({"y": (y, ["t", "m" if rows else "n"])})),))


DIMS = {"w": ("n", "k")}


def prepared(recipe, form, program=None, weight=None):
    """The program under a recipe, its weights as inputs, and the stored weight."""
    held = stored(RNG.normal(size=(N, K)).astype(F) if weight is None else weight, form)
    checkpoint = HeldCheckpoint({"w": held})
    made = apply_recipe(program or linear(), recipe, stored_formats(checkpoint), DIMS)
    return made.program.parts[0].graph, load_weights(checkpoint, made.sources), held


def activations(t=T):
    """Some with an offset, some with an outlier, some that are all equal."""
    x = RNG.normal(size=(t, K)).astype(F) + RNG.normal(size=(t, 1)).astype(F) * 3
    x[0, 5] = 80
    x[1, 32:64] = -1.25
    x[2] = 0
    return x


def run(graph, inputs, x, exact=False):
    given = {name: np.ascontiguousarray(a) for name, a in inputs.items()} | {"x": x.T if "k" in axes_of(graph) else x}
    return interpret(graph, given, {"T": x.shape[0]}, exact=exact)["y"].T


def axes_of(graph):
    return graph.inputs["x"].type.axes[:1]


def wide(inputs):
    return {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in inputs.items()}


@pytest.mark.parametrize("form", [*BLOCK_FORMATS, "f32", "f16", "bf16"])
@pytest.mark.parametrize("block", [8, 16, 32])
def test_float32_is_the_product_with_the_stored_weight(form, block):
    graph, inputs, held = prepared(Recipe("r", block=block), form)
    x = activations().astype(np.float64)
    np.testing.assert_allclose(run(graph, wide(inputs), x, exact=True), x @ exact(held).T, rtol=1e-9, atol=1e-9)


def asymmetric(x, block):
    """Formulas of the recipe, in float32."""
    x = x.reshape(*x.shape[:-1], -1, block)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    scale = np.maximum(high - low, F(1e-30)) * F(1 / 255)
    code = np.rint((x - low) * (F(1) / scale) - F(128))
    assert code.min() >= -128
    assert code.max() <= 127
    return scale * code + (low + F(128) * scale)


def symmetric(x, block, top=127):
    x = x.reshape(*x.shape[:-1], -1, block)
    scale = np.maximum(np.abs(x).max(-1, keepdims=True), F(1e-30)) * F(1 / top)
    code = np.rint(x * (F(1) / scale))
    assert np.abs(code).max() <= top
    return scale * code


def simulated(recipe, x, w):
    if recipe.is_exact("w"):
        rounded = symmetric(x, recipe.block, 32512)
    elif recipe.asymmetric:
        rounded = asymmetric(x, recipe.block)
    else:
        rounded = symmetric(x, recipe.block)
    return rounded.reshape(x.shape).astype(np.float64) @ w.T


@pytest.mark.parametrize("form", BLOCK_FORMATS)
@pytest.mark.parametrize("block", [8, 16, 32])
@pytest.mark.parametrize("kind", ["asymmetric", "symmetric", "exact"])
def test_int8_is_the_simulation(form, block, kind):
    recipe = Recipe("r", "int8", kind == "asymmetric", block, ("w",) if kind == "exact" else ())
    graph, inputs, held = prepared(recipe, form)
    x = activations()
    got, wanted = run(graph, inputs, x), simulated(recipe, x, exact(held))
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
    codes = {graph.types[n.args[0]].dtype for n in graph.nodes if n.op is Op.CAST and graph.types[n.args[0]].axes}
    assert {DType.I8, DType.U8 if form == "q8_0" else DType.U4} <= codes


@pytest.mark.parametrize("form", [*BLOCK_FORMATS, "f32", "f16", "bf16"])
def test_bf16_rounds_both_sides(form):
    graph, inputs, held = prepared(Recipe("r", "bf16"), form)
    x = activations()
    wanted = round_bf16(x).astype(np.float64) @ round_bf16(exact(held)).astype(np.float64).T
    np.testing.assert_allclose(run(graph, inputs, x), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_exact_under_bf16_rounds_nothing():
    graph, inputs, held = prepared(Recipe("r", "bf16", exact=("w",)), "q4_1")
    x = activations().astype(np.float64)
    np.testing.assert_allclose(run(graph, wide(inputs), x, exact=True), x @ exact(held).T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["f32", "f16", "bf16"])
def test_int8_leaves_float_weights_to_bf16(form):
    graphs = [prepared(r, form)[0] for r in (Recipe("r", "int8", exact=("w",)), Recipe("r", "bf16"))]
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize(
    "recipe", [Recipe("r"), RECIPES["int8-all"], RECIPES["int8-block16-all"]], ids=lambda r: r.name
)
def test_selected_rows_and_renamed_axes_are_found(recipe):
    weight, x = RNG.normal(size=(N, K)).astype(F), activations()
    graph, inputs, _ = prepared(recipe, "q4_1", weight=weight)
    wanted = run(graph, inputs, x)
    graph, inputs, _ = prepared(recipe, "q4_1", linear(rows=True), weight)
    np.testing.assert_array_equal(run(graph, inputs, x), wanted[:, ::-1])
    graph, inputs, _ = prepared(recipe, "q4_1", linear(renamed=True), weight)
    given = {name: np.ascontiguousarray(a) for name, a in inputs.items()}
    got = interpret(graph, given | {"x": np.ascontiguousarray(x.T)}, {"T": T})["y"].T
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("rows", [False, True])
def test_factors_of_the_weight_go_back_to_the_activations(rows):
    """A norm's weights, which rules may have made part of the next ones."""
    b = Builder()
    for name, extent in {"t": "T", "n": N, "m": N, "k": K}.items():
        b.axis(name, extent)
    norm, w = (b.input(name, DType.F32, axes, Kind.WEIGHT) for name, axes in {"norm": ["k"], "w": ["n", "k"]}.items())
    w = b.mul(norm, w)
    w = b.gather(w, {"n": b.iota("m")}) if rows else w
    y = b.fold("sum", "k", b.mul(w, b.input("x", DType.F32, ["t", "k"])))
    program = Program((Part("all", b.graph({"y": (y, ["t", "m" if rows else "n"])})),))
    scale = RNG.normal(size=K).astype(F)
    held = {"w": stored(RNG.normal(size=(N, K)).astype(F), "q4_1"), "norm": stored(scale, "f32")}
    checkpoint, recipe, x = HeldCheckpoint(held), RECIPES["int8-all"], activations()
    made = apply_recipe(program, recipe, stored_formats(checkpoint), DIMS | {"norm": ("k",)})
    got = run(made.program.parts[0].graph, load_weights(checkpoint, made.sources), x)
    wanted = simulated(recipe, x * scale, exact(held["w"]))
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_a_sum_over_another_axis_than_the_blocks():
    """``y[t, k] = sum over n of x[t, n] w[n, k]``: no scale stands outside of it, so nothing becomes int8."""
    b = Builder()
    for name, extent in {"t": "T", "n": N, "k": K}.items():
        b.axis(name, extent)
    w, x = b.input("w", DType.F32, ["n", "k"], Kind.WEIGHT), b.input("x", DType.F32, ["t", "n"])
    program = Program((Part("all", b.graph({"y": (b.fold("sum", "n", b.mul(x, w)), ["t", "k"])})),))
    graph, inputs, held = prepared(RECIPES["int8-all"], "q4_0", program)
    assert DType.I8 not in {t.dtype for t in graph.types}
    x = RNG.normal(size=(T, N)).astype(F)
    given = {name: np.ascontiguousarray(a) for name, a in inputs.items()} | {"x": np.ascontiguousarray(x.T)}
    wanted = round_bf16(x).astype(np.float64) @ round_bf16(exact(held))
    np.testing.assert_allclose(interpret(graph, given, {"T": T})["y"].T, wanted, rtol=1e-5, atol=1e-5)


# What rounding may do to any block of numbers

ROUNDINGS = {
    "asymmetric": (products.rounded_asymmetric, 255, lambda x: x.max() - x.min()),
    "symmetric": (products.rounded_symmetric, 127, lambda x: np.abs(x).max()),
    "exact": (products.rounded_16_bits, 32512, lambda x: np.abs(x).max()),
}


def rounding(kind, size):
    b = Builder()
    b.axis("i", size)
    x = b.input("x", DType.F32, ["i"])
    made = ROUNDINGS[kind][0](b, x, "i")
    graph = b.graph({"y": (b.add(*made) if isinstance(made, tuple) else made, ["i"])})
    return lambda values: interpret(graph, {"x": values}, {})["y"]


FINITE = st.floats(-(2.0**126), 2.0**126, width=32)
ROUND = {kind: rounding(kind, 8) for kind in ROUNDINGS}


def bound(kind, x):
    """Half a step, and what float32 may add to it. A code that left int8 would be off by 256 steps."""
    _, steps, span = ROUNDINGS[kind]
    return max(span(x.astype(np.float64)), 1e-30) / steps * 0.51 + np.abs(x).max() * 2.0**-22


@pytest.mark.parametrize("kind", ROUNDINGS)
@given(values=st.one_of(arrays(F, 8, elements=FINITE), arrays(F, 8, elements=st.floats(-1, 1, width=32))))
def test_error_of_any_block_is_half_a_step(kind, values):
    got = ROUND[kind](values)
    assert np.abs(got.astype(np.float64) - values).max() <= bound(kind, values)


@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(8),
        np.full(8, -0.0),
        np.full(8, 1.0),
        np.full(8, -3e4),
        np.linspace(0, 1e-40, 8),
        np.linspace(-1e-45, 1e-45, 8),
        np.linspace(1, 1 + 2**-20, 8),
        np.array([2.0**126] + [0] * 7),
        np.array([-(2.0**126)] + [1e-30] * 7),
        np.array([2.0**126, -(2.0**126), 0, 1, 2, 3, 4, 5]),
        np.arange(8) - 3.5,
    ],
    ids=str,
)
def test_odd_blocks(kind, values):
    values = values.astype(F)
    got = ROUND[kind](values)
    assert np.abs(got.astype(np.float64) - values).max() <= bound(kind, values)


def test_a_constant_block_keeps_its_value():
    for value in (0.0, 1.0, -7.3, 1e-20, 3e30):
        values = np.full(8, value, F)
        np.testing.assert_array_equal(ROUND["asymmetric"](values), values)


def test_every_16_bit_code_comes_back():
    codes = np.arange(-32512, 32513)
    rounded = rounding("exact", codes.size)(codes.astype(F))
    np.testing.assert_allclose(rounded, codes, rtol=3e-7)


@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(kind, bad):
    """And spoils its own block only, so that a broken sequence is seen, and no other is."""
    recipe = replace(RECIPES["int8-all"], asymmetric=kind == "asymmetric", exact=("w",) if kind == "exact" else ())
    graph, inputs, _ = prepared(recipe, "q8_0")
    x = activations()
    clean = run(graph, inputs, x)
    x[3, 40] = bad
    got = run(graph, inputs, x)
    assert not np.isfinite(got[3]).any()
    np.testing.assert_array_equal(np.delete(got, 3, 0), np.delete(clean, 3, 0))
