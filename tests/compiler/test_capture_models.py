"""Whole models: captured, interpreted, against Transformers."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from captured import PagedRun
from tiny import CONFIGS, make
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from headrace.compiler.capture import capture_model
from headrace.compiler.show import show_part
from headrace.models.configs.llama import parse_llama
from headrace.models.families.llama import Model
from headrace.models.loading import load_model
from headrace.models.opening import open_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # of torch.export itself
RNG = np.random.default_rng(7)
TOKENS = [RNG.integers(3, 256, n).tolist() for n in (5, 19, 37)]


def ours(name, folder):
    make(name).save_pretrained(folder)
    return load_model(open_checkpoint(folder))


def theirs(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def ragged(run, sequences=TOKENS):
    """Prefill of 5; one token after 18; 3 tokens after a prefix of 34; logits of all 9."""
    first, second, third = sequences
    pages = [[3], [7, 1], [2, 9, 4]]
    run.step([(second[:18], 0, pages[1]), (third[:34], 0, pages[2])], [0])
    return run.step([(first, 0, pages[0]), (second[18:], 18, pages[1]), (third[34:], 34, pages[2])], list(range(9)))


QUICK = ("llama3", "qwen3")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.bars) for n in CONFIGS])
def test_ragged_batch_against_transformers(name, tmp_path):
    model = ours(name, tmp_path)
    captured = capture_model(model)
    assert [p.name for p in captured.program.parts] == ["embed", "layers", "head"]
    assert captured.program.parts[1].repeats == ("0", "1", "2")
    got = ragged(PagedRun(captured, model))
    reference = make(name)
    expected = np.concatenate([theirs(reference, t)[-n:] for t, n in zip(TOKENS, (5, 1, 3), strict=True)])
    assert expected.std() > 0.3
    assert np.abs(got - expected).max() < 1e-4


def random_model(layers=3, change=None, **options):
    """A small decoder of ours with random weights, its architecture changed by ``change``."""
    config = parse_llama({**SMALL, **options, "num_hidden_layers": layers}, "test")
    torch.manual_seed(0)
    model = Model(config).eval()
    model.make_tables("cpu")
    if change is not None:
        change(model)
    for parameter in model.requires_grad_(requires_grad=False).parameters():
        parameter.normal_(0, parameter.shape[-1] ** -0.5) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
    return model


SMALL = {
    "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "vocab_size": 96,
    "intermediate_size": 48, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip


def whole_sequence(model, tokens):
    """Logits of all tokens of one sequence, computed by the module itself."""

    class Whole:
        def attend(self, layer, query, key, value):
            q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    with torch.no_grad():
        positions = torch.arange(len(tokens))
        return model.logits(model.hidden(torch.tensor(tokens), positions, Whole())).numpy()


SHORT = [[t % 96 for t in tokens] for tokens in TOKENS]


def assert_runs(captured, model, bar=1e-4, exact=False):
    got = ragged(PagedRun(captured, model, exact=exact), SHORT)
    wide = copy.deepcopy(model).double() if exact else model
    wanted = [whole_sequence(wide, tokens)[-n:] for tokens, n in zip(SHORT, (5, 1, 3), strict=True)]
    assert np.abs(got - np.concatenate(wanted)).max() < bar


@pytest.fixture(scope="module")
def small():
    """A small model, and what was captured of it."""
    model = random_model()
    return model, capture_model(model)


class GeluMLP(nn.Module):
    """Another activation."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        inner = self.inner
        return inner.down_proj(functional.gelu(inner.gate_proj(x), approximate="tanh") * inner.up_proj(x))


class Gated(nn.Module):
    """A gate on what attention gives."""

    def __init__(self, inner, hidden):
        super().__init__()
        self.inner = inner
        self.gate = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, *rest):
        return self.inner(x, *rest) * torch.sigmoid(self.gate(x))


def with_gelu(model):
    for block in model.model.layers:
        block.mlp = GeluMLP(block.mlp)


def with_gates(model):
    for block in model.model.layers:
        block.self_attn = Gated(block.self_attn, 32)


def test_a_changed_module_still_compiles():
    model = random_model(change=lambda m: (with_gelu(m), with_gates(m)))
    captured = capture_model(model)
    assert [p.repeats for p in captured.program.parts] == [("",), ("0", "1", "2"), ("",)]
    assert_runs(captured, model)


def with_two_kinds(model):
    for number in (2, 3):
        model.model.layers[number].mlp = GeluMLP(model.model.layers[number].mlp)


@pytest.mark.bars
def test_layers_of_two_kinds_are_parts_of_their_own():
    model = random_model(layers=7, change=with_two_kinds)
    captured = capture_model(model)
    repeats = [p.repeats for p in captured.program.parts]
    assert repeats == [("",), ("0", "1"), ("2", "3"), ("4", "5", "6"), ("",)]
    assert_runs(captured, model)


class Numbered(nn.Module):
    """Does something else in one layer only, which no attribute of any layer tells."""

    def __init__(self, inner, number):
        super().__init__()
        self.inner, self.number = inner, number

    def forward(self, x):
        return self.inner(x) * (2.0 if self.number == 3 else 1.0)


def with_an_odd_one(model):
    for number, block in enumerate(model.model.layers):
        block.mlp = Numbered(block.mlp, number)


@pytest.mark.bars
def test_a_layer_that_looks_at_its_number_is_found_out():
    model = random_model(layers=6, change=with_an_odd_one)
    captured = capture_model(model)
    assert [p.repeats for p in captured.program.parts] == [("",), ("0", "1", "2"), ("3",), ("4", "5"), ("",)]
    assert_runs(captured, model)


class Shared(nn.Module):
    """Adds to every layer what came out of the first one: layers that need more than the one before."""

    memory: ClassVar[list[torch.Tensor]] = []

    def __init__(self, inner, number):
        super().__init__()
        self.inner, self.number = inner, number

    def forward(self, x):
        out = self.inner(x)
        if self.number == 0:
            self.memory[:] = [out]
        return out + self.memory[0]


def with_shared_values(model):
    for number, block in enumerate(model.model.layers):
        block.mlp = Shared(block.mlp, number)


@pytest.mark.bars
def test_a_value_for_all_later_layers():
    model = random_model(layers=5, change=with_shared_values)
    captured = capture_model(model)
    assert captured.program.parts[2].repeats == ("1", "2", "3", "4")
    assert_runs(captured, model)


def test_in_float64_to_the_ninth_digit(small, monkeypatch):
    model, captured = small
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    assert_runs(captured, model, 1e-9, exact=True)


def test_without_weights_in_memory():
    """Captured from the meta device, run with real weights."""
    with torch.device("meta"):
        bare = Model(parse_llama({**SMALL, "num_hidden_layers": 12}, "test"))
    model = random_model(layers=12)
    bare.register_buffer("frequencies", model.frequencies, persistent=False)
    captured = capture_model(bare)
    assert list(dict(bare.named_parameters())) == list(dict(model.named_parameters()))
    assert all(p.device.type == "meta" for p in bare.parameters())
    assert len(captured.program.parts[1].repeats) == 12
    assert captured.constants["frequencies"].tolist() == model.frequencies.tolist()
    assert_runs(captured, model)


def test_alone_or_in_a_batch_the_same_bits(small):
    """The interpreter adds in one order, so what a sequence gets does not depend on its company."""
    model, captured = small
    tokens = SHORT[1]
    alone = PagedRun(captured, model).step([(tokens, 0, [3, 5])], [18])
    others = [([5, 6], 0, [0]), (tokens, 0, [7, 2]), ([9], 0, [4])]
    assert np.array_equal(alone[0], PagedRun(captured, model).step(others, [20])[0])


def test_golden_layer(small):
    """The layer as text; after a change that is meant: ``HEADRACE_GOLDEN=write``."""
    text = show_part(small[1].program.parts[1])
    path = Path(__file__).parent / "data" / "llama_layer.txt"
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
