import shutil
import sys
import time
from pathlib import Path

import pytest

from headrace.compiler.native import toolchain
from headrace.compiler.native.toolchain import BuildFailed, Compiler, NoCompiler, family_of, find_compiler

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


def script(tmp_path, text, name="compiler"):
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@needs_compiler
def test_cc_names_the_compiler(monkeypatch):
    real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    monkeypatch.setenv("CC", f"{real} -pipe")
    assert find_compiler().command == (real, "-pipe")


@pytest.mark.parametrize("named", ["/no/such/compiler", "'cc"])
def test_a_compiler_that_cc_names_and_is_not_there_is_an_error(monkeypatch, named):
    monkeypatch.setenv("CC", named)
    with pytest.raises(NoCompiler, match=f"CC names does not answer: {named}"):
        find_compiler()


def test_the_first_that_answers_is_taken(monkeypatch, tmp_path):
    script(tmp_path, "exit 1", "cc")
    script(tmp_path, "echo 'clang version 99.1'", "gcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_compiler()
    assert found.version == "clang version 99.1"
    assert found.family == "clang"


def test_without_any_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoCompiler, match="install gcc or clang, or the Python package ziglang"):
        find_compiler()


@pytest.mark.parametrize(
    ("command", "version", "family"),
    [
        (("cc",), "cc (Debian 12.2.0-14) 12.2.0", "gcc"),
        (("cc",), "Apple clang version 17.0.0", "clang"),
        (("python", "-m", "ziglang", "cc"), "clang version 22.1.8", "zig"),
        (("/opt/zig/zig", "cc"), "clang version 22.1.8", "zig"),
    ],
)
def test_families(command, version, family):
    assert family_of(command, version) == family


def test_what_a_compiler_says_is_told(tmp_path):
    compiler = Compiler((str(script(tmp_path, "echo warning: no >&2; echo x.c:1: error: bad >&2; exit 1")),), "cc 1")
    with pytest.raises(BuildFailed, match=r"cc 1: x\.c:1: error: bad") as caught:
        compiler.run([], folder=tmp_path)
    assert "warning: no" in caught.value.said


def test_a_compiler_that_is_killed(tmp_path):
    compiler = Compiler((str(script(tmp_path, "kill -9 $$")),), "cc 1")
    with pytest.raises(BuildFailed, match="killed by signal 9"):
        compiler.run([], folder=tmp_path)


def test_a_compiler_that_does_not_end_takes_its_children_along(tmp_path):
    compiler = Compiler((str(script(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")),), "cc 1")
    begin = time.monotonic()
    with pytest.raises(BuildFailed, match=r"did not finish in 0\.3 s"):
        compiler.run([], folder=tmp_path, seconds=0.3)
    assert time.monotonic() - begin < 10
    stat = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() - begin < 20
        time.sleep(0.01)


def test_a_compiler_that_is_gone(tmp_path):
    with pytest.raises(BuildFailed, match="cannot be run"):
        Compiler((str(tmp_path / "gone"),), "cc 1").run([], folder=tmp_path)


def test_zig_keeps_its_caches_in_ours(tmp_path, monkeypatch):
    zig = script(tmp_path, 'echo "$ZIG_GLOBAL_CACHE_DIR" >&2; exit 1', "zig")
    with pytest.raises(BuildFailed) as caught:
        Compiler((str(zig), "cc"), "zig").run([], folder=tmp_path)
    assert caught.value.said.strip() == str(tmp_path / "cache" / "zig")
    monkeypatch.setenv("HEADRACE_CACHE", str(zig))  # a file: no folder can be made in it
    with pytest.raises(BuildFailed) as caught:
        Compiler((str(zig), "cc"), "zig").run([], folder=tmp_path)
    assert caught.value.said.strip() == str(tmp_path / "zig")


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux")
def test_files_of_the_compiler():
    assert find_compiler().file("no-such-file.so") is None
