"""What compiling gave is found again; what is damaged or foreign, or cannot be written, is a warning, and no more."""

import logging
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_folder import save_tiny

from headrace.models.opening import open_checkpoint
from headrace.models.registry import load_spec
from headrace.quant.recipes import recipe_named
from headrace.runtime import artifacts, kept_files
from headrace.runtime.artifacts import open_model, open_weights, program_key
from headrace.runtime.kept_files import keep, keep_block, read_block, read_kept

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@dataclass(frozen=True)
class Record:
    name: str
    values: np.ndarray
    numbers: dict[str, int]


RECORD = Record("x", np.arange(6, dtype=np.float32).reshape(2, 3), {"a": 1})


def test_a_record_is_found_again(tmp_path):
    path = tmp_path / "deep" / "record"
    keep(path, RECORD)
    found = read_kept(path, Record)
    assert (found.name, found.numbers) == (RECORD.name, RECORD.numbers)
    assert np.array_equal(found.values, RECORD.values)
    assert [p.name for p in path.parent.iterdir()] == ["record"]


@given(st.integers(0, 10_000), st.integers(0, 7), st.booleans())
def test_a_damaged_record_is_none(tmp_path_factory, place, bit, short):
    path = tmp_path_factory.mktemp("record") / "x"
    keep(path, RECORD)
    data = bytearray(path.read_bytes())
    if short:
        data = data[: place % len(data)]
    else:
        data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert read_kept(path, Record) is None


def test_a_record_of_another_kind_is_none(tmp_path, caplog):
    path = tmp_path / "x"
    keep(path, {"something": "else"})
    with caplog.at_level(logging.WARNING):
        assert read_kept(path, Record) is None
    assert "compiling anew" in caplog.text
    path.unlink()
    path.mkdir()
    assert read_kept(path, Record) is None


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 100_003])
def test_a_block_is_found_again(tmp_path, size):
    block = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    keep_block(tmp_path / "x", block)
    found = read_block(tmp_path / "x", size)
    assert np.array_equal(found, block)
    assert not size or found.ctypes.data % 64 == 0


@pytest.mark.parametrize("damage", ["flip", "short", "long", "empty", "foreign", "mark"])
def test_a_damaged_block_is_none(tmp_path, caplog, damage):
    path = tmp_path / "x"
    keep_block(path, np.arange(256, dtype=np.uint8))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[77] ^= 4
    if damage == "mark":
        data[256] ^= 1
    changed = {"short": data[:100], "long": data + b"x", "empty": b"", "foreign": b"\0" * len(data)}.get(damage, data)
    path.write_bytes(changed)
    with caplog.at_level(logging.WARNING):
        assert read_block(path, 256) is None
    assert "packing anew" in caplog.text


def test_what_is_not_there_is_none_without_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert read_block(tmp_path / "x", 3) is None
        assert read_kept(tmp_path / "x", Record) is None
    assert not caplog.text


@pytest.mark.parametrize("why", ["read-only", "no folder", "full"])
def test_what_cannot_be_written_is_done_without(tmp_path, monkeypatch, caplog, why):
    folder = tmp_path / "cache"
    if why == "no folder":
        folder.write_text("a file is in the way")
    else:
        folder.mkdir()
    error = {"read-only": PermissionError(13, "Permission denied"), "full": OSError(28, "No space left on device")}.get(
        why
    )

    def refuse(*args, **kwargs):
        raise error

    if why == "read-only":  # a superuser may write everywhere
        monkeypatch.setattr(kept_files.tempfile, "NamedTemporaryFile", refuse)
    if why == "full":
        monkeypatch.setattr(kept_files.os, "replace", refuse)
    with caplog.at_level(logging.WARNING):
        keep(folder / "x", RECORD)
        keep_block(folder / "y", np.zeros(3, np.uint8))
    assert caplog.text.count("HEADRACE_CACHE") == 2
    assert why == "no folder" or list(folder.iterdir()) == []  # no half of a file either


def test_what_fails_otherwise_leaves_nothing_behind(tmp_path):
    with pytest.raises(NotImplementedError):
        keep(tmp_path / "x", {"x": object()})
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys, numpy as np
from pathlib import Path
from headrace.runtime.kept_files import keep_block, read_block
path = Path(sys.argv[1])
for turn in range(60):
    keep_block(path, np.full(200_000, int(sys.argv[2]), np.uint8))
    found = read_block(path, 200_000)
    assert found is not None and len(set(found.tolist())) == 1, turn
"""


def test_two_processes_at_once_never_see_half_a_file(tmp_path):
    path = tmp_path / "x"
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), n]) for n in ("1", "2")]
    assert [process.wait(60) for process in running] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    checkpoint = open_checkpoint(folder)
    return checkpoint, load_spec(checkpoint, "tiny"), recipe_named("bf16")


@pytest.fixture(scope="module")
def filled(model, tmp_path_factory):
    """A cache with a model in it."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(cache))
        compiled, key = open_model(*model)
        _, block = open_weights(compiled, key, model[0])
    return cache, compiled, key, block


def forbidden(*args, **kwargs):
    raise AssertionError("this should have been found")


def test_a_model_is_found_again(model, filled, monkeypatch):
    cache, compiled, key, block = filled
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    for name in ("prepare_model", "schedule_model", "fill"):
        monkeypatch.setattr(artifacts, name, forbidden)
    again, same_key = open_model(*model)
    assert (again.source, same_key) == (compiled.source, key)
    assert np.array_equal(open_weights(again, key, model[0])[1], block)


def test_damaged_weights_and_programs_are_made_again(model, filled, monkeypatch, caplog):
    cache, compiled, key, block = filled
    monkeypatch.setenv("HEADRACE_CACHE", str(cache))
    for path in (*(cache / "weights").iterdir(), cache / "programs" / f"{key}.msgpack"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        again, _ = open_model(*model)
        assert np.array_equal(open_weights(again, key, model[0])[1], block)
    assert again.source == compiled.source
    assert "compiling anew" in caplog.text
    assert "packing anew" in caplog.text
    caplog.clear()
    open_weights(open_model(*model)[0], key, model[0])  # and kept again
    assert not caplog.text


def test_the_key_names_all_that_a_program_depends_on(model, monkeypatch, tmp_path):
    checkpoint, spec, recipe = model
    key = program_key(checkpoint, spec, recipe)
    assert program_key(checkpoint, spec, recipe_named("float32")) != key
    root = tmp_path / "headrace"
    for folder in artifacts.SOURCES:
        (root / folder / "inner").mkdir(parents=True)
        (root / folder / "inner" / "a.py").write_text("x = 1\n")
    (root / "__init__.py").touch()
    monkeypatch.setattr(artifacts.headrace, "__file__", str(root / "__init__.py"))
    seen = set()
    for folder in ("", *artifacts.SOURCES):
        if folder:
            (root / folder / "inner" / "a.py").write_text("x = 2\n")
        artifacts.code_digest.cache_clear()
        seen.add(program_key(checkpoint, spec, recipe))
    artifacts.code_digest.cache_clear()
    assert len(seen) == 1 + len(artifacts.SOURCES)
    assert key not in seen
