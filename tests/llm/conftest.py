"""A tiny model, once for the folder."""

import pytest
from tiny_folder import save_tiny

from headrace import LLM


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """(folder, Transformers' model)."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def shared_llm(tiny):
    return LLM(tiny[0], threads=1, kv_memory=8 << 20)


@pytest.fixture
def llm(shared_llm):
    """The engine, which every test must leave clean."""
    yield shared_llm
    assert_clean(shared_llm)


def assert_clean(llm):
    engine = llm._driver._engine
    assert not engine.has_work
    assert not llm._driver._calls
    assert engine.stats().pages_used == 0
    engine.check()
