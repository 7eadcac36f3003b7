"""What others have left beside a disk tier goes when it takes too much, the oldest first."""

import os
import time

import pytest

from headrace.memory.tiers.siblings import trim_siblings

OWN, OTHER, THIRD = (f"v1-{digit * 32}" for digit in "abc")


@pytest.fixture
def write(tmp_path):
    def write(folder, name, size, age):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (time.time() - age,) * 2)
        return path

    return write


def test_the_oldest_of_others_go_until_all_is_within_the_limit(tmp_path, write):
    own = write(OWN, "1", 40, 1000)
    kept, old, older = write(OTHER, "1", 30, 1), write(OTHER, "2", 30, 20), write(THIRD, "1", 30, 30)
    assert trim_siblings(tmp_path / OWN, 100) == 30
    assert not older.exists()
    assert not older.parent.exists()
    assert all(path.exists() for path in (own, kept, old))
    assert trim_siblings(tmp_path / OWN, 10) == 60
    assert own.exists()
    assert not kept.parent.exists()


def test_what_is_no_tiers_stays(tmp_path, write):
    foreign = [write("photos", "1", 50, 9), write("v1-short", "1", 50, 9)]
    inner = write(OTHER, "1", 50, 9).parent / "folder"
    inner.mkdir()
    (inner / "1").write_bytes(bytes(50))
    assert trim_siblings(tmp_path / OWN, 0) == 50
    assert (inner / "1").exists()
    assert all(path.exists() for path in foreign)


def test_there_may_be_no_folder(tmp_path):
    assert trim_siblings(tmp_path / "none" / OWN, 0) == 0
