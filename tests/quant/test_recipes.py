"""Recipes: their names, and whole models under them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import gguf
import numpy as np
import oracles
import pytest
from captured import PagedRun
from stored_weights import exact
from tiny import make
from torch import nn

from headrace.compiler.capture import capture_model
from headrace.compiler.ir import BITS, DType, Kind, Op, Program
from headrace.compiler.rules.optimize import optimize
from headrace.compiler.schedule.facts import Facts
from headrace.errors import CheckpointError, InvalidInput
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint
from headrace.quant.apply import apply_recipe
from headrace.quant.recipes import DEFAULT, RECIPES, Recipe, recipe_named
from headrace.quant.weights import Piece, WeightSource, form_of, load_piece, load_weight, load_weights, stored_formats

TOKENS = np.random.default_rng(7).integers(3, 256, 37).tolist()


def test_names_and_numerics_ids():
    assert recipe_named(DEFAULT) is RECIPES["int8"]
    ids = {name: recipe.numerics_id for name, recipe in RECIPES.items()}
    assert len(set(ids.values())) == len(RECIPES)
    # Pages on disk carry these: a change means that what was stored before is not used any more.
    assert ids["float32"] == "float32-d8d368fe"
    assert ids["bf16"] == "bf16-009af730"
    assert ids["int8"] == "int8-bf4f5edc"
    assert replace(RECIPES["int8"], block=16).numerics_id != ids["int8"]
    with pytest.raises(InvalidInput, match="no recipe 'int4'; there are float32, bf16, int8"):
        recipe_named("int4")
    with pytest.raises(InvalidInput, match="one of 8, 16, 32, not 64"):
        Recipe("r", block=64)


def test_free_numerics_are_other_numerics():
    free, promised = recipe_named("int8", "free"), recipe_named("int8", "invariant")
    assert promised is RECIPES["int8"]
    assert (free.name, free.numerics_id != promised.numerics_id) == ("int8-free", True)
    assert free.positions > promised.positions
    with pytest.raises(InvalidInput, match="invariant, free"):
        recipe_named("int8", "any")


def test_exact_weights_by_name():
    head, qkv = RECIPES["int8-head"], RECIPES["int8-qkv"]
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        assert head.is_exact(name)
        assert qkv.is_exact(name)
    name = "model.layers.3.self_attn.k_proj.weight"
    assert (head.is_exact(name), qkv.is_exact(name)) == (False, True)
    assert not qkv.is_exact("model.layers.3.self_attn.o_proj.weight")


def test_finer_blocks_by_name():
    recipe = RECIPES["int8"]
    assert [recipe.block_of(name) for name in ("lm_head.weight", "model.embed_tokens.weight")] == [16, 16]
    assert recipe.block_of("model.layers.3.self_attn.o_proj.weight") == 32
    assert replace(recipe, block=8).block_of("lm_head.weight") == 8


CAPTURED = {}


def captured_once(name, module):
    """The program of a tiny model, which takes seconds and does not depend on the weights."""
    if name not in CAPTURED:
        CAPTURED[name] = capture_model(module)
    return CAPTURED[name]


class Model:
    """A captured tiny model over a GGUF file of its weights."""

    def __init__(self, folder, form, name="llama3"):
        oracles.write_gguf(make(name), folder / "m.gguf", gguf.GGMLQuantizationType[form.upper()])
        self.checkpoint = open_checkpoint(folder / "m.gguf")
        self.module = load_model(self.checkpoint)
        self.captured = captured_once(name, self.module)

    def prepared(self, recipe):
        return apply_recipe(self.captured.program, recipe, stored_formats(self.checkpoint), self.captured.dims)

    def under(self, recipe, *, exact=False):
        """Runs the model under a recipe."""
        made = self.prepared(recipe)
        run = PagedRun(replace(self.captured, program=made.program), nn.Module(), exact=exact)
        for part in made.program.parts:
            sources = {name: s for name, s in made.sources.items() if name in part.graph.inputs}
            for repeat in part.repeats:
                arrays = load_weights(self.checkpoint, sources, repeat).items()
                run.inputs |= {n: a.astype(np.float64) if exact and a.dtype.kind == "f" else a for n, a in arrays}
        return run

    def original(self):
        """The captured program, on what the stored weights stand for."""
        run = PagedRun(self.captured, self.module, exact=True)
        for part in self.captured.program.parts:
            for name, declared in part.graph.inputs.items():
                for full in {name.replace("*", repeat) for repeat in part.repeats}:
                    if declared.kind is Kind.WEIGHT and full in self.checkpoint.names():
                        run.inputs[full] = self.captured.arrange(name, exact(self.checkpoint.stored(full)))
        return run


def logits(run):
    """Of the last 12 tokens, after a prefix."""
    pages = [2, 9, 4]
    run.step([(TOKENS[:25], 0, pages)], [0])
    return run.step([(TOKENS[25:], 25, pages)], list(range(12)))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {form: Model(tmp_path_factory.mktemp(form), form) for form in ("q4_0", "q4_1", "q8_0", "bf16", "f16")}


@pytest.mark.parametrize("form", ["q4_0", "q4_1", "q8_0", "bf16", "f16"])
def test_float32_recipe_is_the_model(form, models):
    model = models[form]
    np.testing.assert_allclose(
        logits(model.under(RECIPES["float32"], exact=True)), logits(model.original()), rtol=1e-9, atol=1e-9
    )


def test_tied_head_reads_the_table_that_tokens_are_taken_from(tmp_path):
    model = Model(tmp_path, "q4_1", "smollm2")
    made = model.prepared(RECIPES["int8"])
    embed, _, head = (part.graph.inputs for part in made.program.parts)
    table = {f"model.embed_tokens.weight.{piece}" for piece in ("codes", "scales", "mins")}
    assert table <= embed.keys() & head.keys()
    assert DType.I8 not in {t.dtype for t in made.program.parts[0].graph.types}
    wanted = logits(model.under(RECIPES["float32"], exact=True))
    np.testing.assert_allclose(wanted, logits(model.original()), rtol=1e-9, atol=1e-9)
    assert np.abs(logits(model.under(RECIPES["int8"])) - wanted).mean() < 0.05 * wanted.std()


LOSS = {"float32": 1e-5, "bf16": 0.02, "int8": 0.03, "int8-symmetric-all": 0.05}


@pytest.mark.parametrize("name", LOSS)
def test_recipes_lose_little(name, models):
    wanted = logits(models["q4_1"].under(RECIPES["float32"], exact=True))
    got = logits(models["q4_1"].under(RECIPES[name]))
    loss = np.sqrt(np.square(got - wanted).mean()) / wanted.std()
    assert LOSS[name] / 100 < loss < LOSS[name]


def test_finer_recipes_lose_less(models):
    wanted = logits(models["q4_1"].under(RECIPES["float32"], exact=True))
    names = ["int8-symmetric-all", "int8-all", "int8-block16-all", "int8-block16", "bf16"]
    losses = [np.square(logits(models["q4_1"].under(RECIPES[n])) - wanted).mean() for n in names]
    assert losses == sorted(losses, reverse=True)


def test_states_and_attention_are_bf16(models):
    made = models["q4_1"].prepared(RECIPES["int8"])
    layers = made.program.parts[1].graph
    assert {kind.dtype for kind in layers.states.values()} == {DType.BF16}
    assert {layers.types[write.value].dtype for write in layers.writes} == {DType.BF16}
    facts, found = Facts(layers), 0
    for each in facts.contractions.values():
        if not facts.constant[each.right]:
            found += 1
            assert layers.types[facts.behind(each.left)].dtype is DType.BF16
            assert BITS[layers.types[facts.behind(each.right)].dtype] == 16
    assert found == 2
    plain = models["q4_1"].prepared(Recipe("r", "int8")).program.parts[1].graph
    assert {kind.dtype for kind in plain.states.values()} == {DType.F32}
    assert DType.BF16 not in {t.dtype for t in plain.types}


def test_every_product_with_a_weight_is_in_blocks(models):
    made = models["q4_0"].prepared(RECIPES["int8-all"])
    for part in made.program.parts[1:]:
        small = [n for n in part.graph.nodes if n.op is Op.CAST and n.attrs == ("i8",)]
        assert len(small) == {"layers": 4, "head": 1}[part.name]  # what q, k, v share; o; what gate, up share; down
        for name, declared in part.graph.inputs.items():
            if declared.kind is Kind.WEIGHT and "proj" in name:
                assert name.endswith((".codes", ".scales"))
    assert {s.dtype for s in made.sources.values()} == {DType.U4, DType.F16, DType.F32}


def test_after_rules(models):
    """What rules made of the model before has the same products, and loses as little."""
    model = models["q4_1"]
    given = model.captured.program.parts
    parts = tuple(replace(part, graph=optimize(part.graph)[0]) for part in given)
    assert parts[1].graph != given[1].graph
    moved = copy(model)
    moved.captured = replace(model.captured, program=Program(parts))
    for name, casts in {"int8": [0, 4, 1], "int8-head": [0, 4, 2]}.items():
        graphs = [part.graph for part in moved.prepared(RECIPES[name]).program.parts]
        assert [sum(n.op is Op.CAST and n.attrs == ("i8",) for n in g.nodes) for g in graphs] == casts
    wanted = logits(model.under(RECIPES["float32"], exact=True))
    for recipe in (RECIPES["float32"], RECIPES["int8"]):
        loss = np.sqrt(np.square(logits(moved.under(recipe)) - wanted).mean()) / wanted.std()
        assert loss < LOSS[recipe.name]


def test_constants_of_the_model_are_no_weights_of_the_checkpoint(models):
    sources = models["q4_1"].prepared(RECIPES["int8"]).sources
    assert "frequencies" not in sources
    assert sources["model.norm.weight"].piece is Piece.VALUES


# Layers stored in different formats


def test_forms_hold_every_format_of_a_row_of_layers():
    assert form_of(["q4_0"]).min_factor == -8
    assert form_of(["q4_0", "q4_1"]) == form_of(["q4_1"])
    assert (form_of(["q4_0", "q8_0"]).dtype, form_of(["q4_0", "q8_0"]).min_factor) == (DType.U8, None)
    assert form_of(["bf16"]).dtype is DType.BF16
    for mixed in (["bf16", "f16"], ["q4_0", "f32"], ["f16", "q8_0"]):
        assert (form_of(mixed).dtype, form_of(mixed).blocks) == (DType.F32, False)


@pytest.mark.parametrize(("first", "second"), [("Q4_0", "Q8_0"), ("Q4_1", "F16")])
def test_mixed_layers(first, second, tmp_path, monkeypatch):
    """Every second layer's matrices in another format: one program holds both, and loses nothing."""
    add, kinds = oracles._add, gguf.GGMLQuantizationType
    monkeypatch.setattr(
        oracles,
        "_add",
        lambda writer, name, x, _: add(writer, name, x, kinds[second if ".layers.1." in name else first]),
    )
    model = Model(tmp_path, "q4_0")
    assert len(set(stored_formats(model.checkpoint).values())) == 3
    run = model.under(RECIPES["float32"], exact=True)
    np.testing.assert_allclose(logits(run), logits(model.original()), rtol=1e-9, atol=1e-9)
    assert np.isfinite(logits(model.under(RECIPES["int8"]))).all()


def test_mins_that_do_not_fit(models):
    checkpoint = models["q8_0"].checkpoint
    stored = checkpoint.stored("lm_head.weight")
    source = WeightSource("lm_head.weight", Piece.MINS, form_of(["q4_1", "q8_0"]), ("vocab", "hidden"))
    np.testing.assert_array_equal(load_piece(stored, source), stored.scales * -128)
    stored.scales[3, 1] = 600
    with pytest.raises(CheckpointError, match="too large"):
        load_piece(stored, source, checkpoint.path)
    with pytest.raises(CheckpointError, match="not in blocks"):
        load_weight(checkpoint, replace(source, tensor="model.norm.weight", dims=("hidden",)))
