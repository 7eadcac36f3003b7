"""The file of a run: a header with all names and checksums, then the bytes.

::

    8 bytes    mark, with the version of the format
    8          checksum of the rest of the header
    16         identity of the model
    4, 4       pages; bytes of the header, a multiple of 4,096
    30 each    key, bytes, checksum of a page
    ...        zeros
    ...        pages, one after the other

A checksum is 64 bits of XXH3, little-endian as every number. A page can be read and checked without the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from headrace.memory.page_form import Bytes
from headrace.memory.tiers.keys import DIGEST_BYTES, KEY_BYTES
from headrace.memory.tiers.records import StoredRun

MARK = b"HRRUN\0\0\1"
BLOCK = 4096
MOST_HEADER = 1 << 20
_FIXED = np.dtype(
    [("mark", "V8"), ("checksum", "<u8"), ("identity", f"V{DIGEST_BYTES}"), ("pages", "<u4"), ("header", "<u4")]
)
_PAGE = np.dtype([("key", f"V{KEY_BYTES}"), ("nbytes", "<u4"), ("checksum", "<u8")])


class BadFileError(ValueError):
    """A file is not what its name says."""


def checksum(data: Bytes | bytes) -> int:
    """XXH3, 64 bits."""
    return xxhash.xxh3_64_intdigest(data if isinstance(data, bytes) else data.data)


def checksums(run: StoredRun, payload: Bytes) -> list[int]:
    """A checksum for each page of a run."""
    return [checksum(payload[begin:end]) for begin, end in zip(run.begins, run.begins[1:], strict=False)]


def header_bytes(pages: int) -> int:
    """Bytes of the header of so many pages."""
    return -(-(_FIXED.itemsize + pages * _PAGE.itemsize) // BLOCK) * BLOCK


def encode_header(run: StoredRun, identity: bytes, sums: Sequence[int]) -> bytes:
    """What stands before the bytes of a run.

    Args:
        run: Its pages.
        identity: 16 bytes, of the model.
        sums: Checksum of each page.
    """
    size = header_bytes(len(run.keys))
    data = bytearray(size)
    fixed = np.frombuffer(data, _FIXED, 1)
    fixed["mark"], fixed["identity"] = np.void(MARK), np.void(identity)
    fixed["pages"], fixed["header"] = len(run.keys), size
    pages = np.frombuffer(data, _PAGE, len(run.keys), _FIXED.itemsize)
    pages["key"] = np.frombuffer(b"".join(run.keys), f"V{KEY_BYTES}")
    pages["nbytes"], pages["checksum"] = run.sizes, sums
    fixed["checksum"] = checksum(bytes(data[16:]))
    return bytes(data)


def claimed_header(data: bytes) -> int:
    """Bytes of the header that begins with these 4,096 bytes, if it is one.

    Raises:
        BadFileError: It is none.
    """
    if len(data) < BLOCK or data[:8] != MARK:
        raise BadFileError("it is no file of ours, or of another version")
    size = int(np.frombuffer(data, _FIXED, 1)["header"][0])
    if not BLOCK <= size <= MOST_HEADER or size % BLOCK:
        raise BadFileError("its header is damaged")
    return size


def parse_header(data: bytes, identity: bytes) -> tuple[StoredRun, list[int]]:
    """The run that a file holds, and the checksum of each page.

    Args:
        data: The whole header.
        identity: 16 bytes, of the model.

    Raises:
        BadFileError: It is damaged, or another model's.
    """
    if len(data) != claimed_header(data):
        raise BadFileError("its header is cut off")
    fixed = np.frombuffer(data, _FIXED, 1)[0]
    if int(fixed["checksum"]) != checksum(data[16:]):
        raise BadFileError("its header is damaged")
    if fixed["identity"].tobytes() != identity:
        raise BadFileError("it is another model's")
    pages = np.frombuffer(data, _PAGE, int(fixed["pages"]), _FIXED.itemsize)
    run = StoredRun(tuple(key.tobytes() for key in pages["key"]), tuple(pages["nbytes"].tolist()))
    return run, pages["checksum"].tolist()
