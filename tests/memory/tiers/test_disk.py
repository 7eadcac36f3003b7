"""The disk tier on a real folder, and on one that fails: what does not come back right does not come back."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from tier_doubles import Clock, FakeFiles

from headrace.memory.tiers import disk, run_file
from headrace.memory.tiers.copies import Copies
from headrace.memory.tiers.disk import DiskTier
from headrace.memory.tiers.files import Files
from headrace.memory.tiers.host import HostTier
from headrace.memory.tiers.keys import object_key
from headrace.memory.tiers.page_bytes import ArenaBytes
from headrace.memory.tiers.records import StoredRun

MODEL = b"m" * 16


def run_of(number, sizes=(40, 24)):
    return StoredRun(
        tuple(object_key(number.to_bytes(8, "little") + page.to_bytes(8, "little"), 0) for page in range(len(sizes))),
        tuple(sizes),
    )


def payload(run):
    rng = np.random.default_rng(int(run.name[:8], 16))
    return rng.integers(0, 256, run.nbytes, np.uint8)


def read(tier, run, spans=None):
    """The pages of a run, or None."""
    found = np.zeros(run.nbytes, np.uint8)
    spans = [(0, len(run.keys))] if spans is None else spans

    def take(span, data):
        found[run.begins[span[0]] : run.begins[span[1]]] = data
        return True

    return found if tier.get(run, spans, take) else None


def filled(files, limit=1 << 20, count=3, **options):
    tier = DiskTier(files, MODEL, limit, **options)
    runs = [run_of(n) for n in range(count)]
    assert all(tier.put(run, payload(run)) for run in runs)
    tier.check()
    return tier, runs


def test_one_file_that_cannot_be_read_hides_no_other(tmp_path):
    _, runs = filled(Files(tmp_path))
    files = Files(tmp_path)
    own = files.open

    def failing(name):
        if name == runs[0].name:
            raise OSError(errno.EIO, "a bad sector")
        return own(name)

    files.open = failing
    tier = DiskTier(files, MODEL, 1 << 20)
    tier.scan()
    assert [tier.exists(run.keys[0]) for run in runs] == [False, True, True]


def test_another_process_finds_what_was_stored(tmp_path):
    _, runs = filled(Files(tmp_path / "tiers" / "model"))
    tier = DiskTier(Files(tmp_path / "tiers" / "model"), MODEL, 1 << 20)
    assert not tier.exists(runs[0].keys[0])
    tier.scan()
    tier.check()
    for run in runs:
        assert tier.find(run.keys) == [(run, 0), (run, 1)]
        assert (read(tier, run) == payload(run)).all()
    assert tier.usage().runs == 3
    assert tier.usage().errors == 0
    assert stat.S_IMODE((tmp_path / "tiers" / "model").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tiers" / "model").iterdir()} == {0o600}


def test_a_part_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run_file, "READ_BYTES", 64)
    tier, _ = filled(Files(tmp_path))
    run = run_of(9, (40, 24, 100, 8, 16, 80))
    tier.put(run, payload(run))
    found = read(tier, run, [(1, 3), (4, 5)])
    expected = np.zeros(run.nbytes, np.uint8)
    for first, end in ((1, 3), (4, 5)):
        expected[run.begins[first] : run.begins[end]] = payload(run)[run.begins[first] : run.begins[end]]
    assert (found == expected).all()
    assert (read(tier, run) == payload(run)).all()


def test_what_was_not_used_for_longest_goes(tmp_path):
    limit = 3 * run_file.file_bytes(run_of(0))
    tier, runs = filled(Files(tmp_path), limit)
    for n, run in enumerate(runs):
        os.utime(tmp_path / run.name, (n, n))
    assert read(tier, runs[0]) is not None
    other = DiskTier(Files(tmp_path), MODEL, limit)
    for used in (tier, other):  # one that saw it, one that has it from the folder
        used.scan()
        new = run_of(7 if used is tier else 8)
        assert used.put(new, payload(new))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        run.name for run in (runs[0], run_of(7), run_of(8))
    )
    big = run_of(5, (limit,))
    assert tier.put(big, payload(big)), "what can never be stored must not be tried again"
    assert not tier.exists(big.keys[0])


def test_a_flipped_bit_is_a_miss_wherever_it_is():
    files = FakeFiles()
    filled(files, count=1)
    run = run_of(0)
    (name, (whole, used)) = next(iter(files.stored.items()))
    for at in range(len(whole)):
        for fresh in (True, False):
            files.stored[name] = (bytearray(whole), used)
            tier = DiskTier(files, MODEL, 1 << 20)
            if not fresh:
                tier.scan()
            files.stored[name][0][at] ^= 1 << at % 8
            tier.scan()
            assert read(tier, run) is None, f"byte {at}"
            assert name not in files.stored, "a damaged file stays"
            assert tier.usage().errors == 1
            tier.check()


def test_a_cut_file_is_a_miss_wherever_it_ends():
    files = FakeFiles()
    filled(files, count=1)
    (name, (whole, used)) = next(iter(files.stored.items()))
    for length in [*range(0, len(whole), 61), *range(len(whole) - 70, len(whole))]:
        tier = DiskTier(files, MODEL, 1 << 20)
        files.stored[name] = (bytearray(whole), used)
        tier.scan()
        files.stored[name] = (whole[:length], used)
        assert read(tier, run_of(0)) is None
        assert name not in files.stored
    files.stored[name] = (whole + b"!", used)
    tier = DiskTier(files, MODEL, 1 << 20)
    tier.scan()
    assert not tier.usage().runs


def test_foreign_files_are_left_alone_and_not_believed(tmp_path):
    tier, runs = filled(Files(tmp_path))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ("0" * 32)).write_bytes(b"x" * 10_000)
    (tmp_path / runs[0].name).replace(tmp_path / ("1" * 32))
    (tmp_path / ("2" * 32)).mkdir()
    os.symlink(tmp_path / "notes.txt", tmp_path / ("3" * 32))
    other = DiskTier(Files(tmp_path), b"n" * 16, 1 << 20)
    tier.scan()
    assert tier.usage().runs == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["notes.txt", "2" * 32, "3" * 32, runs[1].name, runs[2].name]
    )
    other.scan()
    assert other.usage().runs == 0, "another model's"


def test_two_tiers_share_a_folder(tmp_path):
    clock = Clock()
    a, runs = filled(Files(tmp_path), clock=clock)
    b = DiskTier(Files(tmp_path), MODEL, 1 << 20, clock)
    b.scan()
    a.remove(runs[0])
    assert read(b, runs[0]) is None
    assert b.usage().errors == 0, "that is no error"
    assert not b.exists(runs[0].keys[0])
    b.put(run_of(6), payload(run_of(6)))
    a.scan_if_due()
    assert not a.exists(run_of(6).keys[0])
    clock.now += disk.SCAN_SECONDS
    a.scan_if_due()
    assert (read(a, run_of(6)) == payload(run_of(6))).all()
    assert b.put(runs[1], payload(runs[1])), "both store the same"
    a.check()
    b.check()


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_nothing_is_left_alone_and_tried_again(fault):
    clock = Clock()
    files = FakeFiles(clock=clock)
    tier, runs = filled(files, clock=clock)
    files.broken["write"] = fault
    attempts = [tier.put(run_of(n), payload(run_of(n))) for n in range(10, 20)]
    assert not any(attempts)
    assert tier.usage().errors == 3
    assert (read(tier, runs[0]) == payload(runs[0])).all(), "it can still be read"
    files.broken.clear()
    clock.now += 61
    assert tier.put(run_of(10), payload(run_of(10)))


def test_a_disk_that_gives_nothing_is_left_alone_and_tried_again():
    clock = Clock()
    files = FakeFiles(clock=clock)
    tier, runs = filled(files, clock=clock)
    files.broken["read"] = errno.EIO
    assert [read(tier, run) for run in runs * 2] == [None] * 6
    assert tier.usage().errors == 3
    assert tier.reads.resting
    files.broken.clear()
    clock.now += 61
    assert (read(tier, runs[0]) == payload(runs[0])).all(), "a file was removed that may be good"


def test_the_folder_goes_away(tmp_path):
    folder = tmp_path / "tiers"
    tier, runs = filled(Files(folder))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert read(tier, runs[0]) is None
    tier.scan()
    assert tier.usage().runs == 0
    assert tier.put(runs[0], payload(runs[0]))
    assert (read(tier, runs[0]) == payload(runs[0])).all()
    tier.remove(runs[0])
    folder.rmdir()
    folder.write_text("a file")
    tier.scan()
    assert not tier.put(runs[1], payload(runs[1]))
    assert tier.usage().errors > 0


def test_a_folder_that_cannot_be_written_is_measured_and_read():
    _, runs = filled(FakeFiles(stored := {}))
    files = FakeFiles(stored)
    files.broken |= dict.fromkeys(("write", "remove", "touch"), errno.EROFS)
    tier = DiskTier(files, MODEL, 1 << 20)
    copies = Copies(ArenaBytes(np.zeros(8, np.uint8), []), HostTier(0), tier)
    copies.probe_disk()
    assert copies.rates["disk"].measured
    assert (read(tier, runs[0]) == payload(runs[0])).all()


def test_parts_of_dead_processes_are_removed(tmp_path):
    (tmp_path / f"{'0' * 32}.12345678.part").write_bytes(b"old")
    os.utime(tmp_path / f"{'0' * 32}.12345678.part", (1, 1))
    (tmp_path / f"{'0' * 32}.12345679.part").write_bytes(b"new")
    DiskTier(Files(tmp_path), MODEL, 1 << 20).scan()
    assert [path.name[33:] for path in tmp_path.iterdir()] == ["12345679.part"]


def test_what_is_forgotten_is_not_found_again():
    files = FakeFiles()
    tier, runs = filled(files)
    assert tier.forget([runs[1].keys[1], object_key(bytes(16), 7)]) == [runs[1]]
    assert read(tier, runs[0]) is not None
    files.broken["remove"] = errno.EIO
    tier.scan()
    assert not tier.exists(runs[1].keys[0])
    files.broken.clear()
    tier.scan()
    assert runs[1].name not in files.stored
    assert tier.put(runs[1], payload(runs[1]))
    tier.scan()
    assert (read(tier, runs[1]) == payload(runs[1])).all()


FULL_DISK = """
import resource, signal, sys
sys.path.insert(0, {support!r}); sys.path.insert(0, {here!r})
import pathlib, test_disk as t
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
tier = t.DiskTier(t.Files(pathlib.Path({folder!r})), t.MODEL, 1 << 20)
small, large = t.run_of(1), t.run_of(2, (4000,))
assert tier.put(small, t.payload(small))
assert not tier.put(large, t.payload(large))
assert tier.usage().errors == 1
assert (t.read(tier, small) == t.payload(small)).all()
"""

WRITER = """
import sys
sys.path.insert(0, {support!r}); sys.path.insert(0, {here!r})
import pathlib, test_disk as t
tier = t.DiskTier(t.Files(pathlib.Path({folder!r})), t.MODEL, 1 << 30)
for n in range(1 << 30):
    run = t.run_of(n, (n % 40 * 1000 + 1,) * 8)
    tier.put(run, t.payload(run))
    tier.evict(tier.usage().nbytes - (4 << 20))
    print(run.name, flush=True)
"""


def python(source, folder):
    here = os.path.dirname(__file__)
    support = os.path.join(here, "..", "..", "support")
    source = source.format(here=here, support=support, folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)


def test_a_real_full_disk_leaves_nothing_behind(tmp_path):
    assert hasattr(resource, "RLIMIT_FSIZE")
    assert python(FULL_DISK, tmp_path).wait() == 0
    assert [path.name for path in tmp_path.iterdir()] == [run_of(1).name]


@pytest.mark.parametrize("moment", [0.0, 0.013, 0.031])
def test_a_killed_process_leaves_no_wrong_bytes(tmp_path, moment):
    process = python(WRITER, tmp_path)
    for _ in range(20):
        process.stdout.readline()
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    tier = DiskTier(Files(tmp_path), MODEL, 1 << 30)
    tier.scan()
    tier.check()
    assert tier.usage().runs > 5
    assert tier.usage().errors == 0, "a file has its name before it is whole"
    for name, run in list(tier._index.runs.items()):
        assert (read(tier, run) == payload(run)).all(), name
    assert {path.name for path in tmp_path.iterdir()} == set(tier._index.runs), "parts stay"


def test_the_header_is_what_is_documented():
    run = run_of(3)
    data = run_file.encode_header(run, MODEL, [5, 6])
    assert len(data) == 4096
    assert data[:8] == b"HRRUN\0\0\1"
    assert data[16:32] == MODEL
    assert int.from_bytes(data[32:36], "little") == 2
    assert int.from_bytes(data[36:40], "little") == 4096
    assert data[40:58] == run.keys[0]
    assert int.from_bytes(data[58:62], "little") == 40
    assert int.from_bytes(data[62:70], "little") == 5
    assert not any(data[100:])
    assert run_file.parse_header(data, MODEL) == (run, [5, 6])
    many = StoredRun(tuple(object_key(bytes([n]) * 16, 0) for n in range(200)), (1,) * 200)
    assert len(run_file.encode_header(many, MODEL, [0] * 200)) == 8192
