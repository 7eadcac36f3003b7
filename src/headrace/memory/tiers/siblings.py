"""Files that other models, recipes or versions have left beside a disk tier's own."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

FOLDER = re.compile(r"v\d+-[0-9a-f]{32}\Z")


def trim_siblings(own: Path, limit: int) -> int:
    """Remove siblings' files, the least recently used first, until all files of the tier take at most ``limit`` bytes.

    A server that uses one of them at this moment computes anew what it misses. Whatever cannot be removed stays.

    Args:
        own: The folder that stays as it is.
        limit: Bytes, of it and its siblings.

    Returns:
        Bytes removed.
    """
    files, total, removed = [], 0, 0
    for folder in _folders(own.parent):
        for size, used, path in _files(folder):
            total += size
            if folder != own:
                files.append((used, path, size))
    for _, path, size in sorted(files):
        if total - removed <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            removed += size
    for folder in _folders(own.parent):
        if folder != own:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
    return removed


def _folders(parent: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return [Path(entry.path) for entry in entries if FOLDER.match(entry.name) and entry.is_dir()]
    return []


def _files(folder: Path) -> list[tuple[int, float, Path]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_size, status.st_mtime, Path(entry.path)))
    return found
