import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.compiler.native import cores, cpu
from headrace.compiler.native.build import Builder, Source
from headrace.compiler.native.cores import cpu_quota, default_threads, one_a_core, usable_cpus
from headrace.compiler.native.cpu import (
    CacheLevel,
    CpuFeatures,
    arm_model,
    cpu_features,
    linux_caches,
    parse_cpu_list,
    x86_brand,
    x86_features,
)

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)
needs_linux_x86 = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="compares with what Linux says of x86"
)


def registers(bits, signature=0, brand=b"", maker=(0, 0, 0)):
    """A CPUID that reports the features of these names."""
    found = {}
    for name in bits:
        leaf, subleaf, register, bit, _ = cpu.X86_FEATURES[name]
        found.setdefault((leaf, subleaf), [0, 0, 0, 0])[register] |= 1 << bit
    found.setdefault((1, 0), [0, 0, 0, 0])[0] = signature
    ebx, ecx, edx = maker
    found[0, 0] = [16, ebx, ecx, edx]
    brand = brand.ljust(48, b"\0")
    for i in range(3):
        words = [int.from_bytes(brand[at : at + 4], "little") for at in range(16 * i, 16 * i + 16, 4)]
        found[0x80000002 + i, 0] = words
    return lambda leaf, subleaf: tuple(found.get((leaf, subleaf), (0, 0, 0, 0)))


@needs_compiler
@needs_linux_x86
def test_features_are_those_that_linux_reports():
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    ours = cpu_features()
    assert ours.features == {name for name in cpu.X86_FEATURES if name in flags}
    info = Path("/proc/cpuinfo").read_text()
    assert ours.brand == " ".join(re.search(r"^model name\s*:(.*)$", info, re.MULTILINE)[1].split())
    numbers = (re.search(rf"^{key}\s*: (\S+)$", info, re.MULTILINE)[1] for key in ("cpu family", "model", "stepping"))
    assert ours.model.split() == [re.search(r"^vendor_id\s*: (\S+)$", info, re.MULTILINE)[1], ".".join(numbers)]


@needs_compiler
def test_the_compiler_takes_the_flags():
    ours = cpu_features()
    assert ours.compile_flags()
    Builder().build(Source("flags", "int f(void) { return 1; }", flags=ours.compile_flags()))
    assert cpu_features().hardware_id == ours.hardware_id
    assert re.fullmatch(r"[a-z0-9_]+-[a-z0-9-]+-[0-9a-f]{12}", ours.hardware_id)


def test_a_feature_counts_only_if_the_system_saves_its_registers():
    read = registers(cpu.X86_FEATURES)
    assert x86_features(read, cpu.YMM | cpu.ZMM | cpu.TILES) == set(cpu.X86_FEATURES)
    without_tiles = x86_features(read, cpu.ZMM)
    assert "avx512_vnni" in without_tiles
    assert "amx_int8" not in without_tiles
    without_zmm = x86_features(read, cpu.YMM)
    assert {"avx2", "fma", "f16c", "avx_vnni"} <= without_zmm
    assert not any(name.startswith("avx512") for name in without_zmm)
    assert x86_features(read, 0) == {"ssse3", "sse4_1", "bmi2", "gfni"}


def test_no_wide_feature_without_the_foundation():
    assert x86_features(registers(["avx2", "avx512_vnni"]), cpu.ZMM) == {"avx2"}


@given(st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4), st.integers(0, 2**64 - 1))
def test_any_registers_can_be_read(words, saved):
    def read(leaf, subleaf):
        return tuple(words)

    assert x86_features(read, saved) <= set(cpu.X86_FEATURES)
    assert all(isinstance(text, str) for text in x86_brand(read))


def test_brand_and_model():
    maker = (0x68747541, 0x444D4163, 0x69746E65)  # "Auth", "cAMD", "enti"
    read = registers([], 0x00B40F40, b"  AMD  Ryzen 9 9950X \0junk", maker)
    assert x86_brand(read) == ("AMD Ryzen 9 9950X", "AuthenticAMD 26.68.0")


def test_the_id_tells_hardware_apart_but_not_runs():
    one = CpuFeatures("x86_64", "A (R) CPU", "m 1", frozenset({"avx2", "fma"}), (CacheLevel(2, 1 << 20, 1),))
    same = CpuFeatures("x86_64", "A (R) CPU", "m 1", frozenset({"fma", "avx2"}), (CacheLevel(2, 1 << 20, 1),))
    assert one.hardware_id == same.hardware_id
    assert one.hardware_id.startswith("x86_64-a-r-cpu-")
    others = [
        CpuFeatures("x86_64", "A (R) CPU", "m 2", one.features, one.caches),
        CpuFeatures("x86_64", "A (R) CPU", "m 1", frozenset({"fma"}), one.caches),
        CpuFeatures("x86_64", "A (R) CPU", "m 1", one.features, (CacheLevel(2, 1 << 21, 1),)),
    ]
    assert len({one.hardware_id, *(other.hardware_id for other in others)}) == 4


def test_flags():
    x86 = CpuFeatures("x86_64", "", "", frozenset({"avx2", "fma", "avx512_vnni"}), ())
    assert x86.compile_flags() == ("-march=x86-64", "-mfma", "-mavx2", "-mavx512vnni")
    assert x86.compile_flags(["avx2", "amx_int8"]) == ("-march=x86-64", "-mavx2")
    arm = CpuFeatures("aarch64", "", "", frozenset({"neon", "dotprod", "bf16"}), ())
    assert arm.compile_flags() == ("-march=armv8.2-a+dotprod+bf16",)
    assert CpuFeatures("riscv64", "", "", frozenset(), ()).compile_flags() == ()
    assert x86.has("avx2", "fma")
    assert not x86.has("avx2", "amx_int8")


def test_caches_of_linux(tmp_path):
    told = [("1", "Data", "48K", "0,4"), ("1", "Instruction", "32K", "0,4"), ("3", "Unified", "32M", "0-7"),
            ("2", "Unified", "2048K", "0,4"), ("x", "Unified", "1K", "0"), ("4", "Unified", "much", "0")]  # fmt: skip
    for i, values in enumerate(told):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")
    (tmp_path / "index9").mkdir()
    caches = linux_caches(tmp_path)
    assert caches == (CacheLevel(1, 48 << 10, 2), CacheLevel(2, 2 << 20, 2), CacheLevel(3, 32 << 20, 8))
    features = CpuFeatures("x86_64", "", "", frozenset(), caches)
    assert features.cache_bytes(3) == 32 << 20
    assert features.cache_bytes(4) == 0
    assert linux_caches(tmp_path / "none") == ()


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists(cpus):
    parts = [f"{cpu}" for cpu in cpus]
    assert parse_cpu_list(",".join(parts)) == tuple(sorted(cpus))


@given(st.text(max_size=30))
def test_any_text_is_some_cpu_list(text):
    assert all(cpu >= 0 for cpu in parse_cpu_list(text))
    assert isinstance(arm_model(text), str)


def test_cpu_list_ranges():
    assert parse_cpu_list("0-2,5,x,7-6,8\n") == (0, 1, 2, 5, 8)


def test_arm_model():
    info = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n"
    assert arm_model(info) == "0x41 0xd40 0x1"


def test_one_a_core(tmp_path):
    for cpu_number in range(8):
        folder = tmp_path / f"cpu{cpu_number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu_number % 4},{cpu_number % 4 + 4}")
    assert one_a_core(range(8), tmp_path) == (0, 1, 2, 3)
    assert one_a_core((4, 5, 1), tmp_path) == (4, 5)
    assert one_a_core((0, 1), tmp_path / "unknown") == (0, 1)


@pytest.mark.parametrize(
    ("files", "line", "quota"),
    [
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"a/cpu.max": "max 100000", "cpu.max": "50000 100000"}, "0::/a", 0.5),
        ({"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, "0::/a/b", 2.0),
        ({"cpu.max": "200000 100000"}, "0::/path/on/the/host", 2.0),
        ({"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", 3.0),
        ({"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/x", None),
        ({"cpu.max": "nonsense"}, "0::/", None),
        ({}, "", None),
    ],
)
def test_quota(tmp_path, files, line, quota):
    mount = tmp_path / "mount"
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    (tmp_path / "groups").write_text(line + "\n")
    assert cpu_quota(tmp_path / "groups", mount) == quota


def test_threads_by_cores_and_quota(monkeypatch):
    monkeypatch.setattr(cores, "usable_cpus", lambda: tuple(range(4)))
    monkeypatch.setattr(cores, "one_a_core", tuple)
    for quota, threads in ((None, 4), (8.0, 4), (2.6, 3), (1.5, 2), (0.2, 1)):
        monkeypatch.setattr(cores, "cpu_quota", lambda quota=quota: quota)
        assert default_threads() == threads


def test_usable_cpus():
    assert len(usable_cpus()) <= (os.cpu_count() or 1)
    assert 1 <= default_threads() <= len(usable_cpus())
