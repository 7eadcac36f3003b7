"""Stored state is found again only by who would compute the same."""

import numpy as np
import pytest
from engines import engine_for
from safetensors.torch import load_file, save_file
from tiny import make

from headrace.errors import InvalidInput


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    make("llama2").save_pretrained(path)
    return path


def root(folder, disk, **options):
    """Where the chain of prefixes begins in the tiers."""
    engine = engine_for(folder, disk_tier=str(disk), **options)
    store = engine.scheduler.tiers.store
    engine.close()
    return store.chain("key", np.zeros(16, np.int32))


def test_the_same_is_found_and_nothing_else(folder, tmp_path):
    roots = {
        "eager": root(folder, tmp_path, executor="eager"),
        "bfloat16": root(folder, tmp_path, executor="eager", dtype="bfloat16"),
        "int8": root(folder, tmp_path, executor="compiled"),
        "float32": root(folder, tmp_path, executor="compiled", recipe="float32"),
    }
    assert root(folder, tmp_path, executor="eager") == roots["eager"]
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][5:50] *= 2  # neither the first bytes, nor those in the middle, nor the last
    save_file(tensors, folder / "model.safetensors")
    roots["other weights"] = root(folder, tmp_path, executor="eager")
    assert len({tuple(found) for found in roots.values()}) == len(roots)


def test_what_others_left_beyond_the_limit_goes_at_the_start(folder, tmp_path):
    left = tmp_path / f"v1-{'0' * 32}" / "file"
    left.parent.mkdir()
    left.write_bytes(bytes(2000))
    engine_for(folder, executor="eager", disk_tier=str(tmp_path), disk_tier_size=3000).close()
    assert left.exists()
    engine_for(folder, executor="eager", disk_tier=str(tmp_path), disk_tier_size=1000).close()
    assert not left.exists()


@pytest.mark.parametrize(
    ("field", "value"), [("disk_tier", "file/folder"), ("disk_tier", "file"), ("host_tier", 1 << 59)]
)
def test_a_tier_that_cannot_be_is_refused_by_name(folder, tmp_path, monkeypatch, field, value):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput) as caught:
        engine_for(folder, executor="eager", **{field: value})
    assert caught.value.field == field
