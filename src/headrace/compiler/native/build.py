"""C sources to shared libraries, each compiled once; ``cache.py`` keeps them.

Where the cache cannot be written, libraries go to a private folder that lasts as long as the process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.compiler.native import cache
from headrace.compiler.native.cache import LIBRARY, SOURCE
from headrace.compiler.native.toolchain import BuildFailed, Compiler, find_compiler
from headrace.models.cache import cache_folder

ABI = 1  # raise it when the same source, headers and flags shall give another library
HEADERS = Path(__file__).with_name("include")
AT_ONCE = 2  # compilers

# Values are those of IEEE 754 in the order of the source: nothing contracted, nothing reassociated. No error numbers
# and no traps are asked for, which changes no value and lets loops with sqrt or conditions be vectorized.
STRICT = ("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math")
BASE = ("-std=gnu11", "-shared", "-fPIC", "-pthread", *STRICT)
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")


@dataclass(frozen=True, slots=True)
class Source:
    """A C file to compile.

    Attributes:
        name: For people: letters, digits, ``_`` and ``-``; part of file names.
        text: The C code. It may include ``headrace_pool.h``.
        headers: Name and text of each further header that it includes.
        flags: Options beyond the usual ones: optimization, instruction sets.
        sanitize: Build with the address and undefined-behaviour sanitizers; only the sandbox can load that.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ("-O3",)
    sanitize: bool = False

    def __post_init__(self) -> None:
        if not self.name or not all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in self.name):
            raise BuildFailed(f"{self.name!r} is no name for a source: use letters, digits, _ and -")


@dataclass(frozen=True, slots=True)
class Built:
    """A library that can be loaded.

    Attributes:
        path: The shared library.
        cached: Whether it was there already.
        note: Why it is not in the shared cache, for people; empty where it is.
    """

    path: Path
    cached: bool
    note: str = ""


class Builder:
    """Compiles sources, through a cache.

    Safe in threads, and with other processes on the same folder.

    Args:
        compiler: Default: the one that is found.
        folder: Where libraries are kept. Default: ``native`` in the cache folder.

    Raises:
        NoCompiler: There is none.
    """

    def __init__(self, compiler: Compiler | None = None, folder: Path | None = None) -> None:
        self.compiler = compiler or find_compiler()
        self.folder = cache_folder() / "native" if folder is None else folder

    def flags(self, source: Source) -> tuple[str, ...]:
        """All flags that a source is compiled with, in order."""
        family = self.compiler.family
        own = zig_flags(source.flags) if family == "zig" else source.flags
        sanitize: tuple[str, ...] = SANITIZE if source.sanitize else ()
        if source.sanitize and family == "clang":
            sanitize += ("-shared-libasan",)
        # The last of two that contradict each other wins: STRICT, which is part of BASE.
        return (*own, *sanitize, *BASE)

    def key(self, source: Source) -> str:
        """The name of its entry in the cache: a digest of all that the library depends on."""
        said = repr((ABI, self.compiler, self.flags(source), source.headers, platform.machine(), sys.platform))
        digest = hashlib.sha256(b"\0".join([said.encode(), _headers(), source.text.encode()]))
        return f"{source.name}-{digest.hexdigest()[:32]}"

    def build(self, source: Source) -> Built:
        """Compile one source, unless it is in the cache.

        Raises:
            BuildFailed: It does not compile; or there is no room for temporary files.
        """
        entry = self.folder / self.key(source)
        if cache.is_whole(entry):
            return Built(entry / LIBRARY, cached=True)
        try:
            private = cache.private_folder() / entry.name
            if cache.is_whole(private):
                return Built(private / LIBRARY, cached=True, note=cache.told(self.folder))
            with tempfile.TemporaryDirectory(prefix="headrace-build-") as scratch:
                self._compile(source, Path(scratch))
                return self._keep(Path(scratch), entry, private)
        except OSError as error:
            raise BuildFailed(
                f"{source.name} cannot be built: {error}. Set TMPDIR or HEADRACE_CACHE to a folder with room."
            ) from None

    def _keep(self, scratch: Path, entry: Path, private: Path) -> Built:
        try:
            cache.publish(scratch, entry)
        except OSError as error:
            cache.publish(scratch, private)
            return Built(private / LIBRARY, cached=False, note=cache.tell_once(self.folder, error))
        return Built(entry / LIBRARY, cached=False)

    def build_all(self, sources: Iterable[Source], at_once: int = AT_ONCE) -> list[Built | BuildFailed]:
        """Compile several sources, some at a time; the same one twice is compiled once.

        Returns:
            For each source what became of it, in order: an error takes the place of its result.
        """
        wanted = list(sources)

        def one(source: Source) -> Built | BuildFailed:
            try:
                return self.build(source)
            except BuildFailed as error:
                return error

        with ThreadPoolExecutor(at_once) as pool:
            found = {source: pool.submit(one, source) for source in dict.fromkeys(wanted)}
            return [found[source].result() for source in wanted]

    def load(self, source: Source) -> ctypes.CDLL:
        """Build a source and load it into this process.

        Raises:
            BuildFailed: It does not compile, or does not load here.
        """
        for last in (False, True):
            path = self.build(source).path
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                # Another process may have swept it away in between.
                if last or path.is_file():
                    raise BuildFailed(f"{path} does not load: {error}") from None
        raise AssertionError("unreachable")

    def sanitizer_runtime(self) -> Path | None:
        """The library that has to be in a process before one built with ``sanitize``; None if there is none here."""
        names = {"gcc": ("libasan.so",), "clang": (f"libclang_rt.asan-{platform.machine()}.so", "libclang_rt.asan.so")}
        for name in names.get(self.compiler.family, ()) if sys.platform == "linux" else ():
            found = self.compiler.file(name)
            if found is not None:
                return found
        return None

    def _compile(self, source: Source, scratch: Path) -> None:
        for name, text in ((SOURCE, source.text), *source.headers):
            (scratch / name).write_text(text)
        flags = self.flags(source)
        arguments = [*flags, f"-I{HEADERS}", SOURCE, "-o", LIBRARY, "-lm"]
        try:
            self.compiler.run(arguments, folder=scratch)
        except BuildFailed as error:
            raise BuildFailed(f"{source.name} does not compile: {error}", said=error.said) from None
        cache.seal(scratch, {"compiler": self.compiler.version, "flags": flags, "machine": platform.machine()})


def zig_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags in GCC's words as Zig takes them.

    Zig names processors and not architectures, and compiles for the one at hand unless told otherwise, where the
    cache may be shared with another machine. It also traps undefined behaviour unless told otherwise.
    """
    march = next((flag.partition("=")[2] for flag in flags if flag.startswith("-march=")), "")
    extensions = march.split("+")[1:] if march.startswith("arm") else []
    names = ["fullfp16" if name == "fp16" else name for name in extensions]
    processor = "+".join(["generic", *names]) if names else "baseline"
    rest = [flag for flag in flags if not flag.startswith("-march=")]
    return (f"-mcpu={processor}", *rest, "-fno-sanitize=undefined")


@functools.cache
def _headers() -> bytes:
    return b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in sorted(HEADERS.glob("*.h")))
