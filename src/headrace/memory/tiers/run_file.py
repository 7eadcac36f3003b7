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

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import xxhash

from headrace.memory.page_form import Bytes
from headrace.memory.tiers.files import OpenFile
from headrace.memory.tiers.keys import DIGEST_BYTES, KEY_BYTES
from headrace.memory.tiers.records import StoredRun

MARK = b"HRRUN\0\0\1"
BLOCK = 4096
MOST_HEADER = 1 << 20
READ_BYTES = 512 << 10  # at once: large enough for a disk, small enough to be checked and copied in a cache
_FIXED = np.dtype(
    [("mark", "V8"), ("checksum", "<u8"), ("identity", f"V{DIGEST_BYTES}"), ("pages", "<u4"), ("header", "<u4")]
)
_PAGE = np.dtype([("key", f"V{KEY_BYTES}"), ("nbytes", "<u4"), ("checksum", "<u8")])


Span = tuple[int, int]  # numbers of pages in a run: first and end


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


def file_bytes(run: StoredRun) -> int:
    """Size of the file of a run."""
    return header_bytes(len(run.keys)) + run.nbytes


def read_header(name: str, file: OpenFile, identity: bytes) -> tuple[StoredRun, list[int]]:
    """The run of a file, and the checksum of each page.

    Args:
        name: Of the file.
        file: The file.
        identity: 16 bytes, of the model.

    Raises:
        BadFileError: It is damaged, or not what its name says.
        OSError: It cannot be read.
    """
    data = _read(file, 0, BLOCK)
    data += _read(file, BLOCK, claimed_header(data) - BLOCK)
    run, sums = parse_header(data, identity)
    if run.name != name:
        raise BadFileError("it is another run")
    if file.nbytes != file_bytes(run):
        raise BadFileError(f"it has {file.nbytes} bytes, not {file_bytes(run)}")
    return run, sums


def read_pages(
    run: StoredRun, file: OpenFile, identity: bytes, spans: Sequence[Span], take: Callable[[Span, Bytes], bool]
) -> bool:
    """Read pages of a file, some at a time.

    Args:
        run: What the file should hold.
        file: The file.
        identity: 16 bytes, of the model.
        spans: Which pages.
        take: Is given some pages once they are there and right, and says whether to go on.

    Returns:
        Whether all were taken.

    Raises:
        BadFileError: It is damaged, or not that run.
        OSError: It cannot be read.
    """
    found, sums = read_header(run.name, file, identity)
    if found != run:
        raise BadFileError("its pages are others")
    start = header_bytes(len(run.keys))
    bites = list(_bites(run, spans))
    buffer = np.empty(max(run.begins[end] - run.begins[first] for first, end in bites), np.uint8)
    for first, end in bites:
        base = run.begins[first]
        out = buffer[: run.begins[end] - base]
        if not file.read(start + base, out):
            raise BadFileError("it is cut off")
        for page in range(first, end):
            if checksum(out[run.begins[page] - base : run.begins[page + 1] - base]) != sums[page]:
                raise BadFileError(f"its page {page} is damaged")
        if not take((first, end), out):
            return False
    return True


def _bites(run: StoredRun, spans: Sequence[Span]) -> Iterator[Span]:
    """The same pages in stretches of not much more than ``READ_BYTES``."""
    for first, end in spans:
        begin = first
        for page in range(first, end):
            if run.begins[page + 1] - run.begins[begin] >= READ_BYTES or page + 1 == end:
                yield begin, page + 1
                begin = page + 1


def _read(file: OpenFile, begin: int, size: int) -> bytes:
    out = np.empty(size, np.uint8)
    if not file.read(begin, out):
        raise BadFileError("it is cut off")
    return out.tobytes()
