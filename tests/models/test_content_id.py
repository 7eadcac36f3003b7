"""A name of weights that no two different ones share, and that is not computed twice."""

import os
import time

import numpy as np
import pytest

from headrace.models import content_id as module
from headrace.models.content_id import content_id


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"here")
    age(path, 100)
    return path


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def tensors():
    return [np.arange(5000, dtype=np.uint8), np.zeros(0, np.uint8), np.full(3, 7, np.uint8)]


def never():
    pytest.fail("it was known")
    yield


@pytest.mark.parametrize("at", [0, 1, 300, 2500, 4999])
def test_every_byte_counts(tmp_path, at):
    other = tensors()
    other[0][at] ^= 1
    assert content_id([], b"", tensors()) != content_id([], b"", other)


def test_the_description_counts():
    assert content_id([], b"a", tensors()) != content_id([], b"b", tensors())


def test_files_that_stay_as_they_are_are_read_once(file):
    first = content_id([file], b"about", tensors())
    assert content_id([file], b"about", never()) == first


def test_other_files_are_read(file):
    first = content_id([file], b"about", tensors())
    age(file, 50)
    assert content_id([file], b"about", tensors()[:1]) != first


def test_files_in_the_making_are_not_remembered(file):
    age(file, 0)
    first = content_id([file], b"about", tensors())
    assert content_id([file], b"about", tensors()[:1]) != first


@pytest.mark.parametrize("text", [b"", b"no id", b"\xff" * 32, b"0" * 31])
def test_a_damaged_note_is_written_anew(file, cache, text):
    first = content_id([file], b"about", tensors())
    (note,) = (cache / "ids").iterdir()
    note.write_bytes(text)
    assert content_id([file], b"about", tensors()) == first
    assert note.read_text() == first


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(file, cache):
    cache.write_text("no folder")
    assert content_id([file], b"about", tensors()) == content_id([file], b"about", tensors())
    assert module._note([file], b"about") is not None
