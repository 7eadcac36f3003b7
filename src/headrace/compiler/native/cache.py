"""Libraries on disk: a folder an entry, shared by the processes of a user.

    native/
        axpy-4f1c…e2/           the source's name, and the digest of everything the library depends on
            library.so
            source.c            for people
            build.json          digest of library.so, compiler, flags

An entry is made beside its place and renamed into it, so it is there as a whole or not at all; the digest tells a
library that a full or failing disk has damaged, which is then built again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

LIBRARY, SOURCE, RECORD = "library.so", "source.c", "build.json"
KEEP_BYTES = 512 << 20  # of the whole folder; a search makes thousands of libraries
YOUNG_SECONDS = 86_400.0  # what is younger may be in the making, or about to be loaded

_log = logging.getLogger(__name__)
_notes: dict[Path, str] = {}


def seal(folder: Path, record: Mapping[str, object]) -> None:
    """Write an entry's record, with the digest of its library."""
    digest = hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest()
    (folder / RECORD).write_text(json.dumps({"sha256": digest, **record}, indent=1))


def is_whole(entry: Path) -> bool:
    """Whether an entry is there and undamaged."""
    try:
        record = json.loads((entry / RECORD).read_bytes())
        return bool(record["sha256"] == hashlib.sha256((entry / LIBRARY).read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def publish(folder: Path, entry: Path) -> None:
    """Copy what was built in a folder beside its place in the cache, then give it its name.

    Raises:
        OSError: The cache cannot be written.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    tidy(entry.parent)
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        beside.chmod(0o755)
        for name in (SOURCE, LIBRARY, RECORD):
            shutil.copyfile(folder / name, beside / name)
        _rename(beside, entry)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _rename(beside: Path, entry: Path) -> None:
    for attempt in range(8):
        try:
            os.rename(beside, entry)
            return
        except OSError:
            if is_whole(entry):  # another process was faster
                return
            if attempt == 7:
                raise
            _remove(entry)


def _remove(entry: Path) -> None:
    """Take an entry away as a whole, for nobody shall see half of it."""
    with contextlib.suppress(OSError):
        away = Path(tempfile.mkdtemp(prefix=".old-", dir=entry.parent))
        if entry.is_dir() and not entry.is_symlink():
            os.rename(entry, away)
        else:
            entry.unlink()
        shutil.rmtree(away, ignore_errors=True)


@functools.cache
def tidy(folder: Path) -> None:
    """Remove what killed processes left behind, and the oldest entries beyond ``KEEP_BYTES``; once a process."""
    old = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            made = path.stat().st_mtime
            if time.time() - made > YOUNG_SECONDS:
                old.append((made, path))
    room = KEEP_BYTES
    for _, path in sorted(old, reverse=True):
        room -= sum(file.stat().st_size for file in path.glob("*") if file.is_file())
        if path.name.startswith((".new-", ".old-")) or room < 0:
            _remove(path)


@functools.cache
def private_folder() -> Path:
    """A folder of this process alone, removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-native-"))
    mine = os.getpid()

    def clean() -> None:
        if os.getpid() == mine:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(clean)
    return folder


def tell_once(folder: Path, error: OSError) -> str:
    """Log that a cache folder cannot be written, the first time; returns the words."""
    if folder not in _notes:
        _notes[folder] = (
            f"compiled kernels cannot be kept in {folder}: {error.strerror or error}; they will be compiled again "
            "next time. Set HEADRACE_CACHE to a folder that can be written and has room."
        )
        _log.warning(_notes[folder])
    return _notes[folder]


def told(folder: Path) -> str:
    """What ``tell_once`` said of a folder."""
    return _notes.get(folder, "")
