"""The C compiler of this machine: which one there is, what it is called, and how it is run."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import HeadraceError
from headrace.models.cache import cache_folder

COMPILE_SECONDS = 120.0
SAID = 4000  # characters of what a compiler said that an error keeps

Family = Literal["gcc", "clang", "zig"]


class ToolchainError(HeadraceError):
    """No native code can be made or loaded here."""


class NoCompiler(ToolchainError):
    """There is no C compiler."""


class BuildFailed(ToolchainError):
    """A source does not compile, link or load.

    Args:
        message: What is wrong, in one line.
        said: What the compiler said; its last 4,000 characters are kept.
    """

    def __init__(self, message: str, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said[-SAID:]


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler.

    Attributes:
        command: How to call it.
        version: The first line of what it says of itself.
        family: Whose options it takes; ``gcc`` where it does not say.
    """

    command: tuple[str, ...]
    version: str
    family: Family = "gcc"

    def run(self, arguments: list[str], *, folder: Path, seconds: float = COMPILE_SECONDS) -> None:
        """Call it in a folder.

        Raises:
            BuildFailed: It failed or did not finish; the message has its first complaint, ``said`` the rest.
        """
        try:
            done = _run([*self.command, *arguments], seconds, folder)
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"{self.version} did not finish in {seconds:g} s") from None
        except OSError as error:
            raise BuildFailed(f"{self.version} cannot be run: {error}") from None
        if done.returncode:
            raise BuildFailed(f"{self.version}: {_first_complaint(done)}", said=done.stderr)

    def file(self, name: str) -> Path | None:
        """A file of its own, such as ``libasan.so``; None if it has none of that name."""
        try:
            said = _run([*self.command, f"-print-file-name={name}"], COMPILE_SECONDS).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return None
        # A compiler that does not find the file repeats the name.
        return Path(said) if os.path.isabs(said) and os.path.isfile(said) else None


def find_compiler() -> Compiler:
    """The C compiler: ``CC``, else ``cc``, ``gcc`` or ``clang``, else that of the ``ziglang`` package.

    Asked once for each value of ``CC`` and ``PATH``.

    Raises:
        NoCompiler: None of them answers, or the one that ``CC`` names does not.
    """
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(own: str, path: str) -> Compiler:
    if own:
        chosen = _ask(_words(own))
        if chosen is None:
            raise NoCompiler(f"the C compiler that CC names does not answer: {own}")
        return chosen
    candidates: list[tuple[str, ...]] = [(name,) for name in ("cc", "gcc", "clang") if shutil.which(name, path=path)]
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append((sys.executable, "-m", "ziglang", "cc"))
    for command in candidates:
        found = _ask(command)
        if found is not None:
            return found
    raise NoCompiler("there is no C compiler here: install gcc or clang, or the Python package ziglang")


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:  # a quote that is not closed
        return (command,)


def _ask(command: tuple[str, ...]) -> Compiler | None:
    try:
        said = _run([*command, "--version"], COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = said.stdout.partition("\n")[0].strip()
    if said.returncode or not version:
        return None
    return Compiler(command, version, family_of(command, version))


def family_of(command: tuple[str, ...], version: str) -> Family:
    """Whose options a compiler takes, by its name and by what it says of itself."""
    if any(Path(word).name in ("zig", "ziglang") for word in command):
        return "zig"
    return "clang" if "clang" in version else "gcc"


def _run(command: list[str], seconds: float, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    zig = family_of(tuple(command), "") == "zig"
    environment = {**(_zig_caches(folder) if zig else {}), **os.environ, "LC_ALL": "C"}
    # Which compiler runs is the user's own choice, by PATH and CC. It gets a session of its own: a driver that is
    # killed alone leaves its passes behind, and those keep the pipes open.
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            out, said = process.communicate(timeout=seconds)
        except BaseException:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def _zig_caches(folder: Path | None) -> dict[str, str]:
    """Where Zig keeps its caches: in ours, not in the home folder and the current one; else where it works."""
    cache = cache_folder() / "zig"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError:
        cache = Path(folder or tempfile.gettempdir()) / "zig"
    return {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}


def _first_complaint(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    lines = done.stderr.splitlines()
    return next((line for line in lines if "error" in line), done.stderr[-300:]).strip()
