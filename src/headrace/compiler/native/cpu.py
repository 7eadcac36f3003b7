"""The processor: which instructions may be used, how large its caches are, and what a tuning database calls it.

Asked by CPUID, not by ``__builtin_cpu_supports``, which does not know these features in every compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.compiler.native.build import Builder, Source

# (leaf, subleaf) to (eax, ebx, ecx, edx).
ReadRegisters = Callable[[int, int], tuple[int, int, int, int]]

EAX, EBX, ECX, EDX = range(4)
# Register states in XCR0 (Intel SDM volume 1, section 13.1): SSE and AVX; opmask, upper halves, zmm16-31; tiles.
YMM, ZMM, TILES = 0x6, 0xE6, 0x60000

# Feature, as Linux names it: (leaf, subleaf, register, bit, states the system must save).
# Intel SDM volume 2A, CPUID.
X86_FEATURES: dict[str, tuple[int, int, int, int, int]] = {
    "ssse3": (1, 0, ECX, 9, 0),
    "sse4_1": (1, 0, ECX, 19, 0),
    "fma": (1, 0, ECX, 12, YMM),
    "f16c": (1, 0, ECX, 29, YMM),
    "avx": (1, 0, ECX, 28, YMM),
    "avx2": (7, 0, EBX, 5, YMM),
    "bmi2": (7, 0, EBX, 8, 0),
    "avx512f": (7, 0, EBX, 16, ZMM),
    "avx512dq": (7, 0, EBX, 17, ZMM),
    "avx512bw": (7, 0, EBX, 30, ZMM),
    "avx512vl": (7, 0, EBX, 31, ZMM),
    "avx512vbmi": (7, 0, ECX, 1, ZMM),
    "avx512_vbmi2": (7, 0, ECX, 6, ZMM),
    "gfni": (7, 0, ECX, 8, 0),
    "avx512_vnni": (7, 0, ECX, 11, ZMM),
    "amx_bf16": (7, 0, EDX, 22, TILES),
    "avx512_fp16": (7, 0, EDX, 23, ZMM),
    "amx_tile": (7, 0, EDX, 24, TILES),
    "amx_int8": (7, 0, EDX, 25, TILES),
    "avx_vnni": (7, 1, EAX, 4, YMM),
    "avx512_bf16": (7, 1, EAX, 5, ZMM),
    "avx_vnni_int8": (7, 1, EDX, 4, YMM),
}
# Bits of AT_HWCAP and AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h), and macOS's names.
ARM_HWCAP = {"asimd": 1, "asimdhp": 10, "asimddp": 20, "sve": 22}
ARM_HWCAP2 = {"sve2": 1, "i8mm": 13, "bf16": 14}
ARM_SYSCTL = {"asimdhp": "FEAT_FP16", "asimddp": "FEAT_DotProd", "i8mm": "FEAT_I8MM", "bf16": "FEAT_BF16"}
ARM_NAMES = {"asimd": "neon", "asimdhp": "fp16", "asimddp": "dotprod"}

# What GCC and Clang call the features that an option switches on.
X86_OPTIONS = {
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "fma": "fma",
    "f16c": "f16c",
    "avx": "avx",
    "avx2": "avx2",
    "bmi2": "bmi2",
    "avx512f": "avx512f",
    "avx512dq": "avx512dq",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "gfni": "gfni",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}
ARM_OPTIONS = ("fp16", "dotprod", "bf16", "i8mm")


@dataclass(frozen=True, slots=True)
class CacheLevel:
    """A cache that data goes through.

    Attributes:
        level: 1 is nearest to the core.
        size: Bytes.
        shared_by: Hardware threads that share it; 0 if unknown.
    """

    level: int
    size: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class CpuFeatures:
    """The processor that this process runs on.

    Attributes:
        architecture: ``x86_64``, ``aarch64``, or what the platform says.
        brand: Its name, as it says itself.
        model: Maker, family, model and stepping; empty where the system does not tell.
        features: Instruction sets that both processor and system support, as Linux names them for x86
            (``avx512_vnni``), as compilers do for ARM (``dotprod``).
        caches: Data and unified caches, nearest first; empty where the system does not tell.
    """

    architecture: str
    brand: str
    model: str
    features: frozenset[str]
    caches: tuple[CacheLevel, ...]

    def has(self, *features: str) -> bool:
        """Whether all of these may be used."""
        return self.features.issuperset(features)

    def cache_bytes(self, level: int) -> int:
        """Bytes of a cache level, 0 if there is none or nobody tells."""
        return max((cache.size for cache in self.caches if cache.level == level), default=0)

    @property
    def hardware_id(self) -> str:
        """The same for processors on which measurements mean the same: the key of a tuning database."""
        told = repr((self.model, sorted(self.features), self.caches))
        name = re.sub(r"[^a-z0-9]+", "-", self.brand.lower()).strip("-")[:48] or "cpu"
        return f"{self.architecture}-{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def compile_flags(self, wanted: Iterable[str] | None = None) -> tuple[str, ...]:
        """Options for the C compiler that switch features on: all that there are, or those wanted of them.

        They name features, not a processor: compilers know features earlier, and a cache may be shared.
        """
        chosen = self.features if wanted is None else self.features & set(wanted)
        if self.architecture == "x86_64":
            return ("-march=x86-64", *(f"-m{X86_OPTIONS[name]}" for name in X86_OPTIONS if name in chosen))
        if self.architecture == "aarch64":
            return ("-march=armv8.2-a" + "".join(f"+{name}" for name in ARM_OPTIONS if name in chosen),)
        return ()


@functools.cache
def cpu_features() -> CpuFeatures:
    """Ask the processor; once a process.

    Raises:
        ToolchainError: There is no C compiler to build the question with.
    """
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return _x86()
    if machine in ("arm64", "aarch64"):
        return _arm()
    return CpuFeatures(machine, platform.processor() or machine, "", frozenset(), _caches())


def x86_features(read: ReadRegisters, saved: int) -> frozenset[str]:
    """The features that CPUID reports and whose registers the system saves.

    Args:
        read: CPUID.
        saved: XCR0, the states that the system saves.
    """
    found = {
        name
        for name, (leaf, subleaf, register, bit, states) in X86_FEATURES.items()
        if read(leaf, subleaf)[register] >> bit & 1 and saved & states == states
    }
    if "avx512f" not in found:
        found = {name for name in found if not name.startswith("avx512")}
    return frozenset(found)


def x86_brand(read: ReadRegisters) -> tuple[str, str]:
    """Brand and model, such as ``("AMD EPYC", "AuthenticAMD 25.17.1")``."""
    brand = _text(value for leaf in range(0x80000002, 0x80000005) for value in read(leaf, 0))
    _, ebx, ecx, edx = read(0, 0)
    signature = read(1, 0)[EAX]
    family, model, stepping = signature >> 8 & 15, signature >> 4 & 15, signature & 15
    if family in (6, 15):
        model += (signature >> 16 & 15) << 4
    if family == 15:
        family += signature >> 20 & 255
    return " ".join(brand.split()), f"{_text((ebx, edx, ecx))} {family}.{model}.{stepping}"


def _text(registers: Iterable[int]) -> str:
    raw = b"".join(value.to_bytes(4, "little") for value in registers)
    return raw.partition(b"\0")[0].decode("ascii", "replace").strip()


def _x86() -> CpuFeatures:
    source = Path(__file__).with_name("cpu.c")
    library = Builder().load(Source("cpu", source.read_text(), flags=("-O2",)))
    library.hr_xgetbv.restype = ctypes.c_uint64

    @functools.cache
    def read(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        out = (ctypes.c_uint32 * 4)()
        library.hr_cpuid(ctypes.c_uint32(leaf), ctypes.c_uint32(subleaf), out)
        return out[0], out[1], out[2], out[3]

    features = x86_features(read, library.hr_xgetbv())
    if "amx_tile" in features and not library.hr_request_amx():
        features = frozenset(name for name in features if not name.startswith("amx"))
    return CpuFeatures("x86_64", *x86_brand(read), features, _caches())


def _arm() -> CpuFeatures:
    if sys.platform == "darwin":
        found = {"asimd"} | {name for name, key in ARM_SYSCTL.items() if _sysctl(f"hw.optional.arm.{key}")}
        brand, model = _sysctl_text("machdep.cpu.brand_string"), ""
    else:
        libc = ctypes.CDLL(None)
        libc.getauxval.restype, libc.getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        first, second = libc.getauxval(16), libc.getauxval(26)
        found = {name for name, bit in ARM_HWCAP.items() if first >> bit & 1}
        found |= {name for name, bit in ARM_HWCAP2.items() if second >> bit & 1}
        brand, model = platform.processor() or "aarch64", arm_model(_read(Path("/proc/cpuinfo")))
    features = frozenset(ARM_NAMES.get(name, name) for name in found)
    return CpuFeatures("aarch64", brand, model, features, _caches())


def arm_model(cpuinfo: str) -> str:
    """Implementer, part and variant of the first core in Linux's ``/proc/cpuinfo``, such as ``0x41 0xd40 0x1``."""
    found = (re.search(rf"CPU {name}\s*:\s*(\S+)", cpuinfo) for name in ("implementer", "part", "variant"))
    return " ".join(match[1] for match in found if match)


def _caches() -> tuple[CacheLevel, ...]:
    if sys.platform == "darwin":
        sizes = {1: "hw.perflevel0.l1dcachesize", 2: "hw.perflevel0.l2cachesize", 3: "hw.l3cachesize"}
        found = [(level, _sysctl(key)) for level, key in sizes.items()]
        return tuple(CacheLevel(level, size, 0) for level, size in found if size)
    return linux_caches(Path("/sys/devices/system/cpu/cpu0/cache"))


def linux_caches(folder: Path) -> tuple[CacheLevel, ...]:
    """The caches of a core, as Linux describes them in sysfs."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = []
    for index in folder.glob("index*"):
        size = re.fullmatch(r"(\d+)([KMG])", _read(index / "size"))
        level = _read(index / "level")
        if size and level.isdigit() and _read(index / "type") in ("Data", "Unified"):
            shared = len(parse_cpu_list(_read(index / "shared_cpu_list")))
            found.append(CacheLevel(int(level), int(size[1]) * units[size[2]], shared))
    return tuple(sorted(found, key=lambda cache: cache.level))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Linux's list format, ``0-3,8``; what cannot be read counts for nothing."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match:
            cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(cpus))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> int:
    value, size = ctypes.c_int64(), ctypes.c_size_t(8)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return 0 if failed else value.value


def _sysctl_text(name: str) -> str:
    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else value.value.decode(errors="replace")
