"""The tuning database: a folder with a file for each program on each kind of machine.

A file is written beside its place and renamed, so whoever reads it sees all of one search or all of another. What
cannot be read, or is of another program, is left out with a warning: then the defaults serve.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.models.cache import cache_folder

VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """What a search's result holds for.

    Attributes:
        program: Names model, numbers, and the code that makes programs of them.
        hardware: ``CpuFeatures.hardware_id``.
        compiler: The C compiler's version.
        threads: That compute.
    """

    program: str
    hardware: str
    compiler: str
    threads: int

    @property
    def digest(self) -> str:
        """Of all of it; 24 hexadecimal digits."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Entry:
    """A search's result.

    Attributes:
        key: What it holds for.
        genome: The choices that differ from the defaults.
        fingerprint: Of the genome, to tell a damaged one.
        seconds: Workload to what a step takes by default and with the genome.
        choices: The choices in words.
        when: When it was found, ISO 8601.
        record: Where the search's record is; empty if there is none.
        version: Of the format.
    """

    key: Key
    genome: Mapping[str, int]
    fingerprint: str
    seconds: Mapping[str, tuple[float, float]]
    choices: tuple[str, ...]
    when: str
    record: str
    version: int = VERSION


class TuningDatabase:
    """What searches have found.

    Args:
        folder: Where. Default: ``tuning`` in the cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "tuning" if folder is None else folder

    def path(self, key: Key) -> Path:
        """The file of a key."""
        return self.folder / f"{key.digest}.json"

    def load(self, key: Key) -> Entry | None:
        """The best known for a key; None if nothing is known."""
        path = self.path(key)
        try:
            entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            _log.warning("a tuned program cannot be read, using the defaults: %s", error, extra={"file": str(path)})
            return None
        if entry.key != key or entry.version != VERSION:
            _log.warning(
                "a tuned program is of another model or machine, using the defaults", extra={"file": str(path)}
            )
            return None
        return entry

    def store(self, entry: Entry) -> Path:
        """Keep an entry in place of what was known.

        Raises:
            OSError: It cannot be written.
        """
        path = self.path(entry.key)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.folder, suffix=".part", delete=False) as file:
            try:
                file.write(msgspec.json.format(msgspec.json.encode(entry), indent=1))
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        return path
