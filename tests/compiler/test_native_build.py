import errno
import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.compiler.native import build, cache
from headrace.compiler.native.build import Builder, Built, Source, zig_flags
from headrace.compiler.native.toolchain import BuildFailed, Compiler

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler here"
)

ANSWER = Source("answer", "int answer(void) { return 42; }", flags=("-O1",))


@pytest.fixture
def builder(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    cache.tidy.cache_clear()
    cache.private_folder.cache_clear()
    cache._notes.clear()
    return Builder()


@pytest.fixture
def count_compilations(monkeypatch):
    seen = []
    compile_one = Builder._compile

    def counted(self, source, scratch):
        seen.append(source.name)
        compile_one(self, source, scratch)

    monkeypatch.setattr(Builder, "_compile", counted)
    return seen


def test_a_library_is_compiled_once(builder, count_compilations):
    first = builder.build(ANSWER)
    assert not first.cached
    assert not first.note
    again = Builder().build(ANSWER)
    assert again == Built(first.path, cached=True)
    assert count_compilations == ["answer"]
    assert builder.load(ANSWER).answer() == 42
    (entry,) = builder.folder.iterdir()  # and no scratch is left
    assert sorted(path.name for path in entry.iterdir()) == ["build.json", "library.so", "source.c"]
    assert (entry / "source.c").read_text() == ANSWER.text


@pytest.mark.parametrize(
    "other",
    [
        Source("answer", "int answer(void) { return 43; }", flags=("-O1",)),
        Source("answer", ANSWER.text, flags=("-O2",)),
        Source("answer", ANSWER.text, flags=("-O1",), sanitize=True),
        Source("answer", ANSWER.text, flags=("-O1",), headers=(("more.h", ""),)),
        Source("another", ANSWER.text, flags=("-O1",)),
    ],
)
def test_what_a_library_depends_on_is_in_its_key(builder, other):
    assert builder.key(other) != builder.key(ANSWER)


def test_compiler_and_our_headers_are_in_the_key(builder, monkeypatch):
    key = builder.key(ANSWER)
    newer = Compiler(builder.compiler.command, "cc 99", builder.compiler.family)
    assert Builder(newer).key(ANSWER) != key
    monkeypatch.setattr(build, "_headers", lambda: b"other")
    assert builder.key(ANSWER) != key


def test_headers(builder):
    source = Source(
        "with",
        '#include "more.h"\n#include "headrace_pool.h"\nint f(void) { return MORE + HR_POOL_ABI; }',
        headers=(("more.h", "#define MORE 6"),),
    )
    assert builder.load(source).f() == 7


def test_floating_point_is_strict(builder):
    # Contracted to one rounding, (1 + e)(1 - e) - 1 is -e^2; with two it is 0.
    text = "float f(float a, float b, float c) { return a * b + c; }"
    library = builder.load(Source("strict", text, flags=("-O3", "-ffast-math", "-ffp-contract=fast", "-march=native")))
    import ctypes

    library.f.restype, library.f.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    assert library.f(1 + 2**-23, 1 - 2**-23, -1) == 0.0


def test_a_source_that_does_not_compile(builder):
    with pytest.raises(BuildFailed, match=r"bad does not compile.*nothing") as caught:
        builder.build(Source("bad", "int f(void) { return nothing; }"))
    assert "source.c:1" in caught.value.said
    assert not list(builder.folder.glob("*"))


def test_a_library_that_does_not_load(builder):
    with pytest.raises(BuildFailed, match=r"does not load.*undefined symbol"):
        builder.load(
            Source(
                "missing",
                "int there_is_no_such_thing(void); int f(void) { return there_is_no_such_thing(); }",
                flags=("-Wl,-z,now",),
            )
        )


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä"])
def test_names(name):
    with pytest.raises(BuildFailed, match="no name for a source"):
        Source(name, "")


def test_several_at_once_in_order_each_once(builder, count_compilations):
    sources = [Source(f"s{i % 3}", f"int f(void) {{ return {i % 3}; }}") for i in range(6)]
    sources.insert(2, Source("bad", "!"))
    built = builder.build_all(sources)
    assert isinstance(built.pop(2), BuildFailed)
    assert [b.path.parent.name[:2] for b in built] == ["s0", "s1", "s2"] * 2
    assert sorted(count_compilations) == ["bad", "s0", "s1", "s2"]


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "gone", "no record", "bad record", "a file", "bytes"])
def test_a_damaged_entry_is_built_again(builder, how):
    path = builder.build(ANSWER).path
    entry = path.parent
    if how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "flipped":
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "gone":
        path.unlink()
    elif how == "no record":
        (entry / "build.json").unlink()
    elif how == "bad record":
        (entry / "build.json").write_text(json.dumps(["sha256"]))
    elif how == "bytes":
        (entry / "build.json").write_bytes(b"\xff\xfe{")
    else:
        shutil.rmtree(entry)
        entry.write_text("in the way")
    assert not builder.build(ANSWER).cached
    assert builder.build(ANSWER).cached
    assert builder.load(ANSWER).answer() == 42
    assert len(list(builder.folder.iterdir())) == 1


def test_a_folder_that_is_a_file(builder, caplog):
    builder.folder.parent.mkdir(parents=True)
    builder.folder.write_text("")
    with caplog.at_level(logging.WARNING):
        first, second = builder.build(ANSWER), builder.build(Source("more", "int f(void) { return 1; }"))
    assert "cannot be kept" in first.note
    assert "HEADRACE_CACHE" in first.note
    assert second.note == first.note
    assert len(caplog.records) == 1
    assert builder.load(ANSWER).answer() == 42
    assert builder.build(ANSWER).cached
    assert not str(first.path).startswith(str(builder.folder))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_cache_that_is_full_or_read_only(builder, monkeypatch, code):
    copy = shutil.copyfile

    def fails_in_the_cache(source, target):
        if str(target).startswith(str(builder.folder)):
            Path(target).write_bytes(b"hal")  # what fits
            raise OSError(code, os.strerror(code))
        return copy(source, target)

    monkeypatch.setattr(cache.shutil, "copyfile", fails_in_the_cache)
    built = builder.build(ANSWER)
    assert os.strerror(code) in built.note
    assert builder.load(ANSWER).answer() == 42
    assert not list(builder.folder.iterdir())
    monkeypatch.undo()
    assert not built.path.is_relative_to(builder.folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_may_not_be_written(builder):
    builder.folder.mkdir(parents=True)
    builder.folder.chmod(0o500)
    assert builder.build(ANSWER).note


def test_no_room_for_temporary_files(builder, monkeypatch):
    def full(**options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", full)
    with pytest.raises(BuildFailed, match=r"No space left on device.*TMPDIR"):
        builder.build(ANSWER)


def _race(folder, barrier, results, seed):
    builder = Builder(folder=Path(folder))
    barrier.wait()
    values = []
    for i in range(6):
        source = Source("race", f"int f(void) {{ return {i}; }}", flags=("-O0",))
        values.append(builder.load(source).f())
        if seed == 0 and i == 3:  # damage what the others use
            path = builder.build(source).path
            path.with_name("build.json").write_text("{}")
    results.put(values)


def test_two_processes_on_one_folder(builder):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_race, args=(str(builder.folder), barrier, results, i)) for i in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [list(range(6))] * 2
    for process in processes:
        process.join(60)
    entries = list(builder.folder.iterdir())
    assert len(entries) == 6
    assert sum(cache.is_whole(entry) for entry in entries) >= 5


def test_what_is_old_is_swept_away(builder, monkeypatch):
    keep = builder.build(ANSWER).path.parent
    stale, fresh = builder.folder / ".new-stale", builder.folder / ".new-fresh"
    old_entry = builder.folder / "old-entry"
    for folder in (stale, fresh, old_entry):
        folder.mkdir()
        (folder / "library.so").write_bytes(b"x" * 1000)
    long_ago = time.time() - 2 * cache.YOUNG_SECONDS
    os.utime(stale, (long_ago, long_ago))
    os.utime(old_entry, (long_ago, long_ago))
    monkeypatch.setattr(cache, "KEEP_BYTES", 999)
    cache.tidy.cache_clear()
    builder.build(Source("more", "int f(void) { return 1; }"))
    assert not stale.exists()
    assert not old_entry.exists()
    assert fresh.exists()
    assert keep.exists()


def test_the_private_folder_goes_with_its_process(tmp_path):
    code = (
        "from headrace.compiler.native import cache; import os\n"
        "folder = cache.private_folder(); print(folder)\n"
        "if os.fork() == 0: raise SystemExit\n"
        "os.wait(); assert folder.is_dir()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not os.path.exists(done.stdout.strip())


@pytest.mark.parametrize(
    ("flags", "zig"),
    [
        (("-O3",), ("-mcpu=baseline", "-O3")),
        (("-march=x86-64", "-mavx2"), ("-mcpu=baseline", "-mavx2")),
        (("-march=armv8.2-a+dotprod+fp16", "-O2"), ("-mcpu=generic+dotprod+fullfp16", "-O2")),
        (("-march=armv8.2-a",), ("-mcpu=baseline",)),
    ],
)
def test_flags_for_zig(flags, zig):
    assert zig_flags(flags)[:-1] == zig
