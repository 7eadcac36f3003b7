"""Which executor runs where there is no C compiler, or where compiled code is asked for by name."""

import logging

import pytest
from engines import engine_for, request, run
from tiny import make

from headrace.compiler.native import toolchain
from headrace.compiler.native.toolchain import NoCompiler
from headrace.engine.sampling_params import SamplingParams
from headrace.errors import InvalidInput

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make("llama3").save_pretrained(folder)
    return folder


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)


def tokens(engine):
    return run(engine, request(0, [5, 6, 7], GREEDY))[0, 0].tokens


def test_without_a_compiler_auto_runs_pytorch_and_says_why(folder, no_compiler, caplog):
    with caplog.at_level(logging.WARNING):
        engine = engine_for(folder, executor="auto")
    (warning,) = [r for r in caplog.records if r.name == "headrace.fleet.assembly"]
    assert "PyTorch" in warning.message
    assert "install gcc or clang" in warning.message
    assert tokens(engine) == tokens(engine_for(folder, executor="eager"))


def test_without_a_compiler_compiled_is_refused(folder, no_compiler):
    with pytest.raises(NoCompiler, match="install gcc or clang"):
        engine_for(folder, executor="compiled")


def test_numerics_are_checked_by_name(folder):
    with pytest.raises(InvalidInput, match="invariant, free") as caught:
        engine_for(folder, numerics="loose")
    assert caught.value.field == "numerics"
