import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

from headrace.bench import limits
from headrace.cli.app import app
from headrace.compiler.native import toolchain
from headrace.compiler.native.toolchain import NoCompiler, find_compiler

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)


@pytest.fixture(autouse=True)
def _short(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(limits, "SECONDS", 0.03)
    monkeypatch.setattr(limits, "BUFFER_BYTES", 128 << 20)


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)


@needs_compiler
def test_the_figures_are_in_proportion():
    told = []
    found = limits.measure_limits(told.append)
    assert found.threads == limits.usable_cores()
    assert 0 < found.memory_read_1_thread_gb_s <= 1.2 * found.memory_read_gb_s
    rates = {"int8": found.int8_gop_s, "bf16": found.bf16_gflop_s, "float32": found.float32_gflop_s}
    for kind, rate in rates.items():
        assert (rate is None) == (kind in found.reasons) == (kind not in found.instructions)
        assert rate is None or rate > 0
    present = [rate for rate in rates.values() if rate is not None]
    if len(present) == 3:
        assert present == sorted(present, reverse=True)
    assert found.compiler
    assert told


@needs_compiler
def test_kernels_say_how_much_they_do():
    library, _ = limits.load_kernels()
    lanes = {"f32_base": (10 * 16, 16 * 8), "f32_wide": (16 * 32,), "bf16_dot": (16 * 64, 16 * 16)}
    lanes |= {"i8_base": (10 * 64,), "i8_dot": (10 * 64, 16 * 32), "i8_wide": (16 * 128,)}
    found = {
        kernel.symbol: int(function(10))
        for choices in limits._kernels_of_cpu().values()
        for kernel, function in limits._available(library, choices)
        if kernel.symbol in lanes
    }
    for symbol, work in found.items():
        assert work in {10 * a_loop for a_loop in lanes[symbol]}


def test_without_a_compiler_memory_is_measured_all_the_same(no_compiler):
    with pytest.raises(NoCompiler, match="install gcc or clang"):
        find_compiler()
    found = limits.measure_limits()
    assert 0 < found.memory_read_1_thread_gb_s <= found.memory_read_gb_s
    assert found.int8_gop_s is found.bf16_gflop_s is found.float32_gflop_s is found.compiler is None
    assert set(found.reasons) == {"int8", "bf16", "float32"}
    assert found.instructions == {"memory_read": "NumPy"}


def test_the_command_line(no_compiler):
    result = CliRunner().invoke(app, ["bench", "limits"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "GB/s" in result.stdout
    assert "C compiler" in result.stdout
    result = CliRunner().invoke(app, ["bench", "limits", "--json", "-"], catch_exceptions=False)
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["memory_read_gb_s"] > 0


def test_an_unknown_cpu_has_reasons(monkeypatch):
    monkeypatch.setattr(limits.platform, "machine", lambda: "riscv64")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler here")
    found = limits.measure_limits()
    assert found.reasons["int8"] == "this CPU has no such instruction"
    assert found.memory_read_gb_s > 0
