"""What this machine can do at most: memory reads, and arithmetic on registers alone.

Figures of an engine mean something beside these: decode cannot read weights faster than memory gives them, prefill
cannot multiply faster than the registers do.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.toolchain import Compiler, ToolchainError

SOURCE = Path(__file__).with_name("limits.c")
REPEATS = 3
SECONDS = 0.1  # of one repetition
CALL_SECONDS = 0.002  # of one call into C, between two looks at the clock
BUFFER_BYTES = 512 << 20  # far more than caches hold
BUFFER_BYTES_A_THREAD = 32 << 20
ALIGNMENT = 512

Bytes = npt.NDArray[np.uint8]
# Does some work on behalf of one thread; returns how much.
Work = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of ``limits.c``.

    Attributes:
        symbol: Its name.
        feature: The bit of ``features()`` that allows to call it.
        instruction: What it measures.
    """

    symbol: str
    feature: int
    instruction: str


if TYPE_CHECKING:
    CFunction = ctypes._NamedFuncPointer
    Kernels = dict[str, list[tuple[Kernel, CFunction]]]

ARITHMETIC = ("int8", "bf16", "float32")
F32_BASE, F32_WIDE, BF16, I8_BASE, I8_DOT, I8_WIDE, READ_BASE, READ_WIDE = (1 << bit for bit in range(8))

X86: dict[str, tuple[Kernel, ...]] = {
    "int8": (
        Kernel("i8_wide", I8_WIDE, "vpdpbusd, 512 bit"),
        Kernel("i8_dot", I8_DOT, "vpdpbusd, 256 bit"),
        Kernel("i8_base", I8_BASE, "vpmaddubsw + vpmaddwd + vpaddd, 256 bit"),
    ),
    "bf16": (Kernel("bf16_dot", BF16, "vdpbf16ps, 512 bit"),),
    "float32": (
        Kernel("f32_wide", F32_WIDE, "vfmadd231ps, 512 bit"),
        Kernel("f32_base", F32_BASE, "vfmadd231ps, 256 bit"),
    ),
    "read": (Kernel("read_wide", READ_WIDE, "512 bit loads"), Kernel("read_base", READ_BASE, "256 bit loads")),
}
ARM: dict[str, tuple[Kernel, ...]] = {
    "int8": (Kernel("i8_dot", I8_DOT, "sdot, 128 bit"),),
    "bf16": (Kernel("bf16_dot", BF16, "bfdot, 128 bit"),),
    "float32": (Kernel("f32_base", F32_BASE, "fmla, 128 bit"),),
    "read": (Kernel("read_base", READ_BASE, "128 bit loads"),),
}
OTHER: dict[str, tuple[Kernel, ...]] = {
    "int8": (),
    "bf16": (),
    "float32": (),
    "read": (Kernel("read_base", READ_BASE, "vector loads"),),
}


class Limits(msgspec.Struct, frozen=True):
    """What a machine can do at most. A multiply-add counts as two operations; G is 10^9.

    Attributes:
        threads: Threads used: one a core that this process may use.
        memory_read_1_thread_gb_s: Memory read by one thread, GB/s.
        memory_read_gb_s: By all threads.
        int8_gop_s: int8 products added to int32, on all threads, G operations/s.
        bf16_gflop_s: bfloat16 products added to float32.
        float32_gflop_s: float32 multiply-adds.
        instructions: Figure to the instruction that reached it.
        reasons: Figure that is None to why.
        compiler: What compiled the kernels; None where NumPy read the memory.
    """

    threads: int
    memory_read_1_thread_gb_s: float
    memory_read_gb_s: float
    int8_gop_s: float | None
    bf16_gflop_s: float | None
    float32_gflop_s: float | None
    instructions: dict[str, str]
    reasons: dict[str, str]
    compiler: str | None


def measure_limits(report: Callable[[str], None] = lambda what: None) -> Limits:
    """Measure this machine; takes about four seconds, of which all cores are busy.

    Args:
        report: Called with what is measured next.
    """
    threads = usable_cores()
    kernels: Kernels = {}
    compiler, why_not = None, "this CPU has no such instruction"
    try:
        library, used = load_kernels()
        kernels = {kind: list(_available(library, choices)) for kind, choices in _kernels_of_cpu().items()}
        compiler = used.version
    except ToolchainError as error:
        why_not = str(error)
    best = {kind: _arithmetic(kind, kernels.get(kind, []), threads, report) for kind in ARITHMETIC}
    report("memory")
    one, every, how = _memory(kernels.get("read", []), threads)
    rates = {kind: None if found is None else _giga(found[0]) for kind, found in best.items()}
    return Limits(
        threads=threads,
        memory_read_1_thread_gb_s=_giga(one),
        memory_read_gb_s=_giga(every),
        int8_gop_s=rates["int8"],
        bf16_gflop_s=rates["bf16"],
        float32_gflop_s=rates["float32"],
        instructions={kind: found[1] for kind, found in best.items() if found} | {"memory_read": how},
        reasons={kind: why_not for kind, found in best.items() if not found},
        compiler=compiler,
    )


def load_kernels() -> tuple[ctypes.CDLL, Compiler]:
    """The functions of ``limits.c``, compiled at first use, and what compiled them.

    Raises:
        ToolchainError: They cannot be compiled or loaded here; the message says why.
    """
    builder = Builder()
    return builder.load(Source("limits", SOURCE.read_text(), flags=("-O2",))), builder.compiler


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _kernels_of_cpu() -> dict[str, tuple[Kernel, ...]]:
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return X86
    return ARM if machine in ("arm64", "aarch64") else OTHER


def _available(library: ctypes.CDLL, choices: tuple[Kernel, ...]) -> Iterator[tuple[Kernel, CFunction]]:
    features = library.features()
    for kernel in choices:
        if features & kernel.feature:
            function = library[kernel.symbol]
            function.restype = ctypes.c_uint64
            yield kernel, function


def _arithmetic(
    kind: str, choices: list[tuple[Kernel, CFunction]], threads: int, report: Callable[[str], None]
) -> tuple[float, str] | None:
    """Operations a second by the instruction that does most, and that instruction; None if there is none."""
    rates = []
    for kernel, function in choices:
        report(f"{kind}: {kernel.instruction}")
        rates.append((_best_rate([_calibrated(function)] * threads), kernel.instruction))
    return max(rates, default=None)


def _calibrated(function: CFunction) -> Work:
    """Calls of a kernel, each long enough that the clock and the call itself do not count."""
    function.argtypes = [ctypes.c_uint64]
    loops = 1024
    while loops < 1 << 40:
        begin = time.perf_counter()
        function(loops)
        if time.perf_counter() - begin > CALL_SECONDS:
            break
        loops *= 2
    return lambda: int(function(loops))


def _memory(readers: list[tuple[Kernel, CFunction]], threads: int) -> tuple[float, float, str]:
    """Bytes a second of one thread and of all, and how they were read."""
    parts = _buffers(threads)
    if not readers:
        one = _best_rate([_numpy_reader(parts)])
        return one, max(one, _best_rate([_numpy_reader([part]) for part in parts])), "NumPy"
    best = (0.0, 0.0, "")
    for kernel, function in readers:
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        # The lone thread walks over every part, or a machine of many cores would serve its small one from a cache.
        one = _best_rate([_reader(function, parts)])
        every = _best_rate([_reader(function, [part]) for part in parts])
        # A core that saturates the memory alone may read faster than many that disturb each other.
        best = max(best, (one, max(one, every), kernel.instruction), key=lambda found: found[1])
    return best


def _buffers(threads: int) -> list[Bytes]:
    """A part for each thread, touched by a thread of its own, so that it lies near where it is read."""
    wanted = max(BUFFER_BYTES, BUFFER_BYTES_A_THREAD * threads)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else wanted * 4
    size = max(min(wanted, free // 4) // threads // ALIGNMENT, 1) * ALIGNMENT

    def make(_: int) -> Bytes:
        raw = np.full(size + ALIGNMENT, 7, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(make, range(threads)))


def _reader(function: CFunction, parts: list[Bytes]) -> Work:
    return lambda: sum(int(function(part.ctypes.data, part.nbytes)) for part in parts)


def _numpy_reader(parts: list[Bytes]) -> Work:
    def read() -> int:
        for part in parts:
            np.bitwise_xor.reduce(part.view(np.uint64))
        return sum(part.nbytes for part in parts)

    return read


def _best_rate(works: list[Work]) -> float:
    """Work a second, all together, in the best of several repetitions; one thread a work."""
    with ThreadPoolExecutor(len(works)) as pool:
        return max(_rate(pool, works) for _ in range(REPEATS))


def _rate(pool: ThreadPoolExecutor, works: list[Work]) -> float:
    barrier = threading.Barrier(len(works))

    def run(work: Work) -> tuple[int, float, float]:
        barrier.wait()
        begin = now = time.perf_counter()
        done = 0
        while now - begin < SECONDS:
            done += work()
            now = time.perf_counter()
        return done, begin, now

    results = list(pool.map(run, works))
    return sum(done for done, _, _ in results) / (max(end for *_, end in results) - min(r[1] for r in results))


def _giga(rate: float) -> float:
    return round(rate / 1e9, 2)
