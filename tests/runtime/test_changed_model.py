"""A model changed in its PyTorch module alone: it compiles, is right, and needs no more kernels than before."""

import engines
import numpy as np
import pytest
import torch
from engines import engine_for, record_logits, request, run
from tiny import make

from headrace.engine.sampling_params import SamplingParams
from headrace.models.families import layers, llama

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make("llama3").save_pretrained(folder)
    return folder


def swapped_activation(monkeypatch):
    def forward(self, x):
        return self.down_proj(torch.nn.functional.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))

    monkeypatch.setattr(layers.GatedMLP, "forward", forward)


def gate_after_attention(monkeypatch):
    """Each head's mix, gated by its own query."""

    def forward(self, x, cos, sin, state):
        query = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        key = self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim)))
        value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        mixed = state.attend(self.layer, llama.rotate(query, cos, sin), llama.rotate(key, cos, sin), value)
        return self.o_proj((mixed * torch.sigmoid(query)).flatten(-2))

    monkeypatch.setattr(llama.Attention, "forward", forward)


def nothing(monkeypatch):
    """The model as it is."""


def kernels(engine):
    """Kernels a layer: stages, after each of which all threads wait."""
    return sum(name.startswith("layers") for name in engine.executor.program.source.names)


def logits(folder, **options):
    engine = engine_for(folder, **options)
    seen = record_logits(engine)
    prompts = [np.random.default_rng(n).integers(3, 256, length).tolist() for n, length in enumerate((40, 3, 17))]
    run(engine, *[request(n, prompt, GREEDY) for n, prompt in enumerate(prompts)])
    return engine, seen


@pytest.mark.parametrize(("change", "more"), [(nothing, 0), (swapped_activation, 0), (gate_after_attention, 1)])
def test_it_compiles(folder, tmp_path, monkeypatch, change, more):
    # What is kept of compiled models knows the source files, and these do not change here.
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(engines, "DEFAULTS", {"recipe": "float32"})
    change(monkeypatch)
    _, expected = logits(folder, executor="eager")
    engine, found = logits(folder, executor="compiled")
    assert found.keys() == expected.keys()
    for at, row in expected.items():
        np.testing.assert_allclose(found[at], row, atol=1e-3, rtol=0)
    assert kernels(engine) <= 5 + more
