"""First tokens behind prefixes from every tier."""

from tiny_folder import save_tiny

from headrace.bench.resumption import first_tokens
from headrace.fleet.options import EXECUTOR_VARIABLE


def test_every_tier_is_used(tmp_path, monkeypatch):
    """On a model so small that computing may be faster, loading is made to seem free."""
    monkeypatch.setenv(EXECUTOR_VARIABLE, "eager")
    monkeypatch.setattr("headrace.memory.tiered_memory.worth_loading", lambda load, compute: True)
    (tmp_path / "disk").mkdir()
    found = first_tokens(str(save_tiny(tmp_path)[0]), tmp_path / "disk", tokens=200, repeat=1)
    assert found.tokens == 200
    assert min(found.computed, found.arena, found.host, found.disk) > 0
    assert any((tmp_path / "disk").rglob("*"))
