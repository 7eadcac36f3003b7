"""A small random model for whole engines."""

import pytest
from tiny import make


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make("llama3").save_pretrained(path)
    return path
