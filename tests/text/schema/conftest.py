"""The official test suite of JSON Schema, and public schemas of tools."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from headrace.models.cache import cache_folder

SUITE = "jsonschema-4.26.0"  # its source distribution carries the suite


@pytest.fixture(scope="session")
def suite() -> Path:
    """The folder of draft 2020-12: in HEADRACE_TEST_SCHEMA_SUITE, else in what pip downloads once."""
    named = os.environ.get("HEADRACE_TEST_SCHEMA_SUITE")
    root = Path(named) if named else cache_folder() / "tests" / SUITE / "json"
    folder = root / "tests" / "draft2020-12"
    if not folder.is_dir() and not named:
        _download(root.parent.parent)
    if not folder.is_dir():
        pytest.skip(f"no JSON Schema test suite in {root}, and pip does not download it (HEADRACE_TEST_SCHEMA_SUITE)")
    return folder


def _download(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    requirement = SUITE.replace("-", "==")
    arguments = ["download", "--no-deps", "--no-binary", "jsonschema", "-d", str(folder), requirement]
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=False, capture_output=True, timeout=120)
    archive = folder / f"{SUITE}.tar.gz"
    if archive.is_file():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


@pytest.fixture(scope="session")
def tool_schemas() -> Path:
    """The public schemas in HEADRACE_TEST_DATA: files ``*__valid.jsonl`` and ``*__invalid.jsonl``."""
    data = Path(os.environ.get("HEADRACE_TEST_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
    if not (data / "walle_schemas").is_dir():
        pytest.skip(f"the public schemas of tools are not in {data} (HEADRACE_TEST_DATA)")
    return data / "walle_schemas"
