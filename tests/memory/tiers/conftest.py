import pytest


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch):
    monkeypatch.setattr("headrace.memory.tiers.copies.PROBE_BYTES", (10, 100))
    monkeypatch.setattr("headrace.memory.tiers.copies._probe_key", lambda: bytes(18))
