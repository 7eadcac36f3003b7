"""What the disk tier asks of a file system; nothing else there touches one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from headrace.memory.page_form import Bytes

PART = ".part"  # a file being written


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a folder.

    Attributes:
        name: Its name.
        nbytes: Its size.
        used: Seconds since 1970, when it was last read or written.
    """

    name: str
    nbytes: int
    used: float


class OpenFile:
    """A file open for reading.

    Args:
        file: Unbuffered.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file

    @property
    def nbytes(self) -> int:
        """Its size."""
        return os.fstat(self._file.fileno()).st_size

    def forget(self) -> None:
        """Have the system drop what it has of the file in memory, where it can."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, begin: int, out: Bytes) -> bool:
        """Read bytes; False if the file ends before them."""
        self._file.seek(begin)
        view = memoryview(out.data)
        while view.nbytes:
            count = self._file.readinto(view)
            if not count:
                return False
            view = view[count:]
        return True


class Files:
    """One folder, made when first written to.

    Args:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Make the folder, if it is not there."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def entries(self) -> list[FileEntry]:
        """All files, in no order; nothing if there is no folder."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(FileEntry(entry.name, status.st_size, status.st_mtime))
        return found

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[OpenFile]:
        """A file to read."""
        with FileIO(self.folder / name) as file:
            yield OpenFile(file)

    def write(self, name: str, parts: tuple[bytes | Bytes, ...]) -> None:
        """Write a file beside its place, and rename it when it is whole and on the disk."""
        self.make()
        part = self.folder / f"{name}.{secrets.token_hex(4)}{PART}"
        try:
            with FileIO(part, "x", opener=_open_private) as file:
                for data in parts:
                    view = memoryview(data if isinstance(data, bytes) else data.data)
                    while view.nbytes:
                        view = view[file.write(view) :]
                os.fsync(file.fileno())
            os.replace(part, self.folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        (self.folder / name).unlink(missing_ok=True)

    def touch(self, name: str) -> None:
        """Note that a file was used."""
        os.utime(self.folder / name)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
