"""Compiling a small C file on the user's machine, once, and loading it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.models.hub import cache_folder

FLAGS = ("-O2", "-std=gnu11", "-shared", "-fPIC")
COMPILE_SECONDS = 120


class NoCompiler(HeadraceError):
    """There is no C compiler, or it cannot compile."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: How to call it.
        version: The first line of what it says of itself.
    """

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The C compiler: ``CC``, else ``cc``, ``gcc`` or ``clang``, else that of the ``ziglang`` package.

    Raises:
        NoCompiler: None of them answers.
    """
    candidates = [tuple(shlex.split(os.environ["CC"]))] if os.environ.get("CC") else []
    candidates += [(name,) for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append((sys.executable, "-m", "ziglang", "cc"))
    for command in candidates:
        version = _version(command)
        if version:
            return Compiler(command, version)
    raise NoCompiler("there is no C compiler here: install gcc or clang, or the Python package ziglang")


def load_library(source: Path) -> tuple[ctypes.CDLL, Compiler]:
    """Compile a C file into the cache folder, unless it is there already, and load it.

    Raises:
        NoCompiler: It cannot be compiled or loaded here; the message says why.
    """
    compiler = find_compiler()
    text = source.read_bytes()
    key = hashlib.sha256(b"\0".join([text, repr((compiler, FLAGS, platform.machine(), sys.platform)).encode()]))
    name = f"{source.stem}-{key.hexdigest()[:24]}.so"
    target = cache_folder() / "native" / name
    try:
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            _compile(compiler, source, target)
        return ctypes.CDLL(str(target)), compiler
    except OSError as error:  # a cache folder that cannot be written, or a library that does not load
        raise NoCompiler(f"cannot build {name} in {target.parent}: {error}") from None


def _version(command: tuple[str, ...]) -> str:
    try:
        said = _run([*command, "--version"])
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.partition("\n")[0].strip() if said.returncode == 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # Which compiler runs is the user's own choice, by PATH and CC.
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMPILE_SECONDS)  # noqa: S603


def _compile(compiler: Compiler, source: Path, target: Path) -> None:
    # Beside the target, so that the last step is an atomic rename: whatever has the name is complete.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        part = Path(scratch) / target.name
        command = [*compiler.command, *FLAGS, str(source), "-o", str(part)]
        try:
            done = _run(command)
        except subprocess.TimeoutExpired:
            raise NoCompiler(f"{compiler.version} did not finish in {COMPILE_SECONDS} s") from None
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
            raise NoCompiler(f"{compiler.version} cannot compile {source.name}: {said.strip()}")
        os.replace(part, target)
