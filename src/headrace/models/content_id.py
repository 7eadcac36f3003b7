"""What weights are called: a digest of all their bytes, remembered as long as the files stay as they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.models.cache import cache_folder

YOUNG = 2.0  # seconds; a file that was written so lately may be written again without another time
ID = re.compile(r"[0-9a-f]{32}\Z")


def content_id(files: Sequence[Path], about: bytes, tensors: Iterable[npt.NDArray[np.uint8]]) -> str:
    """32 hexadecimal digits that name a checkpoint's contents: XXH3 of 128 bits, no guard against forgery.

    Args:
        files: That hold the weights.
        about: Their description: config, tensor names, shapes, formats.
        tensors: uint8 of each, in the order of the description; read only if the files are not known yet.
    """
    note = _note(files, about) if files else None
    if note is not None and (known := _read(note)):
        return known
    digest = xxhash.xxh3_128(about)
    for tensor in tensors:
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    if note is not None:
        _write(note, digest.hexdigest())
    return digest.hexdigest()


def _note(files: Sequence[Path], about: bytes) -> Path | None:
    """Where the id of these very files is noted; None if they may still be in the making."""
    digest = hashlib.sha256(about)
    for path in files:
        status = path.stat()
        if time.time() - status.st_mtime < YOUNG:
            return None
        what = path.resolve(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        digest.update(repr(what).encode())
    return cache_folder() / "ids" / digest.hexdigest()[:32]


def _read(note: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = note.read_text(encoding="ascii")
        return text if ID.match(text) else None
    return None


def _write(note: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # then it is computed again the next time
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=note.parent)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(name, note)
