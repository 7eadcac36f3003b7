"""Fixtures that several folders share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in fleet/assembly.py; whichever loads PyTorch first
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Compiling a model takes some seconds, and most tests are about something else; those that are not ask for it.
os.environ.setdefault("HEADRACE_EXECUTOR", "eager")
# A shared machine may stall any single example; and what CI runs must not depend on luck: people's runs explore.
settings.register_profile("headrace", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("headrace")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long checks may be long."""
    for item in items:
        if item.get_closest_marker("bars"):
            item.add_marker(pytest.mark.timeout(7200))


@pytest.fixture(scope="session", autouse=True)
def _threads():
    """One thread: tiny matrices on several are all barriers, and a test must not hang on the machine's cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model: the file that HEADRACE_TEST_MODEL names, else what `headrace pull smollm2-135m` fetches."""
    named = os.environ.get("HEADRACE_TEST_MODEL")
    if named:
        return Path(named)
    from headrace.models.hub import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public data that HEADRACE_TEST_DATA names; by default it lies beside the checkout."""
    data = Path(os.environ.get("HEADRACE_TEST_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
    if not data.is_dir():
        pytest.skip(f"there are no public data in {data} (HEADRACE_TEST_DATA)")
    return data
