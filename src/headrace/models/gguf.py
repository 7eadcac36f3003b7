"""A GGUF file's metadata and tensor table, read over a memory map.

Layout (versions 2 and 3, little-endian; the ggml project's GGUF specification)::

    magic "GGUF" | version u32 | tensors u64 | pairs u64
    pairs x   ( key: string | type u32 | value )
    tensors x ( name: string | dims u32 | dims x u64, fastest first | format u32 | offset u64 )
    padding to `general.alignment` | tensor bytes, each at its offset from here

    string = length u64 | UTF-8 bytes;   array = type u32 | count u64 | values

The ``gguf`` package's own reader makes a NumPy view of every array element and takes seconds on a real
vocabulary; this one takes hundredths. Every read is checked against the end of the file before it happens, so
a damaged file gives a ``CheckpointError`` and allocates no more than the file could hold.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import CheckpointError
from headrace.models.stored import BLOCK_FORMATS, FLOAT_FORMATS, StoredWeight, unpack_blocks

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
# Bounds far above any real file and low enough that a damaged count cannot cost memory or time.
MAX_ARRAY = 1 << 22
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_STRING = 1 << 24
MAX_NESTING = 4
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4

_FLOATS = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How a tensor's elements are stored: ``block`` elements in ``size`` bytes."""

    name: str
    id: int
    block: int
    size: int


FORMATS: dict[int, TensorFormat] = {
    f.id: f
    for f in (
        TensorFormat("F32", 0, 1, 4),
        TensorFormat("F16", 1, 1, 2),
        TensorFormat("BF16", 30, 1, 2),
        TensorFormat("Q4_0", 2, 32, 18),
        TensorFormat("Q4_1", 3, 32, 20),
        TensorFormat("Q5_0", 6, 32, 22),
        TensorFormat("Q5_1", 7, 32, 24),
        TensorFormat("Q8_0", 8, 32, 34),
        TensorFormat("Q2_K", 10, 256, 84),
        TensorFormat("Q3_K", 11, 256, 110),
        TensorFormat("Q4_K", 12, 256, 144),
        TensorFormat("Q5_K", 13, 256, 176),
        TensorFormat("Q6_K", 14, 256, 210),
    )
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table.

    Attributes:
        name: GGUF name, such as ``blk.0.attn_q.weight``.
        shape: Slowest dimension first, as NumPy and PyTorch write it (the file stores it reversed).
        format: How the elements are stored.
        begin: First byte, counted from the start of the file.
        nbytes: Stored size.
    """

    name: str
    shape: tuple[int, ...]
    format: TensorFormat
    begin: int
    nbytes: int


class _Row(NamedTuple):
    """A tensor table entry as stored, not yet checked; the shape is turned already."""

    name: str
    shape: tuple[int, ...]
    format: int
    offset: int


class _Cursor:
    """Reads forward through the map and refuses to leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.end = len(data)
        self.at = 0
        self.path = path

    def fail(self, message: str, tensor: str | None = None) -> CheckpointError:
        return CheckpointError(message, file=self.path, tensor=tensor)

    def skip(self, size: int, what: str) -> int:
        """Move over ``size`` bytes and return where they begin."""
        begin = self.at
        if size > self.end - begin:
            raise self.fail(
                f"the file is truncated or damaged: {what} needs {size} bytes at byte {begin}, "
                f"and the file has {self.end}"
            )
        self.at = begin + size
        return begin

    def scalar(self, kind: int, what: str) -> Any:
        layout = _SCALARS[kind]
        return layout.unpack_from(self.data, self.skip(layout.size, what))[0]

    def count(self, kind: int, what: str, most: int) -> int:
        value: int = self.scalar(kind, what)
        if value > most:
            raise self.fail(f"the file is damaged: {what} is {value}, more than the {most} that can be")
        return value

    def string(self, what: str) -> str:
        size = self.count(10, f"the length of {what}", MAX_STRING)
        begin = self.skip(size, what)
        try:
            return self.data[begin : begin + size].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"the file is damaged: {what} is not UTF-8 ({error.reason})") from None

    def fits(self, count: int, what: str) -> None:
        """Refuse a count of elements, of 8 bytes at least, that the rest of the file cannot hold."""
        if count * 8 > self.end - self.at:
            raise self.fail(f"the file is truncated or damaged: {what} cannot hold {count} elements")

    def strings(self, count: int, what: str) -> list[str]:
        """An array of strings, in a loop of its own: a vocabulary is most of the time that opening takes."""
        self.fits(count, what)
        data, end, length_at = self.data, self.end, _SCALARS[10].unpack_from
        found: list[str] = []
        for _ in range(count):
            begin = self.at + 8
            size = length_at(data, self.at)[0] if begin <= end else MAX_STRING + 1
            if size > MAX_STRING or size > end - begin:
                self.string(what)  # raises, saying what is wrong
            try:
                found.append(data[begin : begin + size].decode("utf-8"))
            except UnicodeDecodeError:
                self.string(what)
            self.at = begin + size
        return found

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(kind, what)
        if kind == _STRING:
            return self.string(what)
        if kind != _ARRAY:
            raise self.fail(f"the file is damaged: {what} has the unknown type {kind}")
        if depth == MAX_NESTING:
            raise self.fail(f"the file is damaged: {what} nests arrays deeper than {MAX_NESTING}")
        return self.array(what, depth)

    def array(self, what: str, depth: int) -> list[Any]:
        kind = self.scalar(4, f"the element type of {what}")
        count = self.count(10, f"the element count of {what}", MAX_ARRAY)
        layout = _SCALARS.get(kind)
        if kind == _STRING:
            return self.strings(count, what)
        if layout is None:
            self.fits(count, what)
            return [self.value(kind, what, depth + 1) for _ in range(count)]
        begin = self.skip(layout.size * count, what)
        dtype = np.dtype("<" + layout.format[1:])
        elements: list[Any] = np.frombuffer(self.data, dtype, count, begin).tolist()
        return elements


class GGUFFile:
    """An open GGUF file: metadata as Python values, tensors by name, bytes by reference.

    The map stays open as long as the object or an array got from ``raw`` lives.

    Raises:
        CheckpointError: The file cannot be opened, is not GGUF, or is truncated or damaged anywhere in its
            header or tensor table, or a tensor lies outside the file.

    Attributes:
        metadata: Every key and value pair; arrays are lists.
        tensors: Every tensor by its GGUF name, in file order.
        data_begin: The first byte after header, tensor table and padding.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = map_file(path)
        cursor = _Cursor(self._map, path)
        tensor_count, pair_count = _preamble(cursor)
        self.metadata: dict[str, Any] = _read_metadata(cursor, pair_count)
        alignment = _alignment(cursor, self.metadata)
        rows = _read_table(cursor, tensor_count)
        self.data_begin = -(-cursor.at // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for row in rows:
            if row.name in self.tensors:
                raise cursor.fail("the tensor occurs twice", tensor=row.name)
            if row.offset % alignment:
                raise cursor.fail(
                    f"offset {row.offset} is not a multiple of the alignment {alignment}", tensor=row.name
                )
            self.tensors[row.name] = _place(cursor, row, self.data_begin)

    def raw(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """The tensor's stored bytes as a read-only view, ``uint8 [rows, bytes per row]``."""
        flat = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.begin)
        return flat.reshape(math.prod(tensor.shape[:-1]), -1)

    def read(self, tensor: GGUFTensor) -> npt.NDArray[np.float32]:
        """The tensor dequantized into a new writable ``float32`` array of ``tensor.shape``."""
        raw = self.raw(tensor)
        kind = tensor.format.name
        if kind == "F32":
            return raw.view("<f4").astype(np.float32).reshape(tensor.shape)
        if kind == "F16":
            return raw.view("<f2").astype(np.float32).reshape(tensor.shape)
        if kind == "BF16":
            return widen_bfloat16(raw.view("<u2")).reshape(tensor.shape)
        return self._dequantize(tensor, raw)

    def stored(self, tensor: GGUFTensor) -> StoredWeight:
        """The tensor in its own format if ``StoredWeight`` knows that, else dequantized."""
        kind, raw = stored_format(tensor), self.raw(tensor)
        if kind in BLOCK_FORMATS:
            return unpack_blocks(raw, kind, tensor.shape)
        if kind != tensor.format.name.lower():
            return StoredWeight(kind, tensor.shape, self._dequantize(tensor, raw))
        return StoredWeight(kind, tensor.shape, raw.view(_FLOATS[kind]).reshape(tensor.shape))

    def _dequantize(self, tensor: GGUFTensor, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        # Imported here: it is 70 ms that opening a file does not need.
        from gguf import GGMLQuantizationType, quants

        values: npt.NDArray[np.float32] = quants.dequantize(raw, GGMLQuantizationType(tensor.format.id))
        return values.reshape(tensor.shape)

    def header(self) -> memoryview:
        """The bytes before the tensors' data: all metadata and the tensor table."""
        return memoryview(self._map)[: self.data_begin]


def stored_format(tensor: GGUFTensor) -> str:
    """The format that ``GGUFFile.stored`` gives a tensor in: its own, but for vectors in blocks and other blocks."""
    kind = tensor.format.name.lower()
    known = (*FLOAT_FORMATS, *BLOCK_FORMATS) if len(tensor.shape) > 1 else FLOAT_FORMATS
    return kind if kind in known else "f32"


def widen_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """bfloat16 bit patterns as ``float32``: they are its upper half, so the widening is exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def map_file(path: Path) -> mmap.mmap:
    """A whole file as a read-only memory map.

    Raises:
        CheckpointError: It cannot be opened, or it is empty.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise CheckpointError("the file is empty", file=path) from None
    except OSError as error:
        raise CheckpointError(f"the file cannot be read: {error.strerror}", file=path) from None


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    begin = cursor.skip(4, "the magic number")
    magic = cursor.data[begin : begin + 4]
    if magic != MAGIC:
        raise cursor.fail(f"this is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.scalar(4, "the version")
    if version not in (2, 3):
        hint = "; it is big-endian" if version in (2 << 24, 3 << 24) else ""
        raise cursor.fail(f"GGUF version {version} is not supported, only 2 and 3 are{hint}")
    return (
        cursor.count(10, "the tensor count", MAX_TENSORS),
        cursor.count(10, "the metadata count", MAX_PAIRS),
    )


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}")
        if key in metadata:
            raise cursor.fail(f"the file is damaged: metadata key {key!r} occurs twice")
        what = f"metadata value {key!r}"
        metadata[key] = cursor.value(cursor.scalar(4, f"the type of {what}"), what)
    return metadata


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"metadata value 'general.alignment' must be a power of two, not {alignment!r}")
    return alignment


def _read_table(cursor: _Cursor, count: int) -> list[_Row]:
    rows = []
    for index in range(count):
        name = cursor.string(f"the name of tensor {index}")
        what = f"the table entry of tensor {name!r}"
        dims = cursor.count(4, f"the dimension count in {what}", MAX_DIMS)
        shape = tuple(cursor.scalar(10, what) for _ in range(dims))[::-1]
        rows.append(_Row(name, shape, cursor.scalar(4, what), cursor.scalar(10, what)))
    return rows


def _place(cursor: _Cursor, row: _Row, data: int) -> GGUFTensor:
    """Check one table entry against its format and the file's size."""
    name, shape = row.name, row.shape
    form = FORMATS.get(row.format)
    if form is None:
        known = ", ".join(f.name for f in FORMATS.values())
        raise cursor.fail(f"tensor format {row.format} is not supported; known are {known}", tensor=name)
    if not shape or 0 in shape:
        raise cursor.fail(f"shape {list(shape)} holds no elements", tensor=name)
    if shape[-1] % form.block:
        raise cursor.fail(
            f"rows of {shape[-1]} elements do not divide into {form.name} blocks of {form.block}", tensor=name
        )
    nbytes = math.prod(shape) // form.block * form.size
    begin = data + row.offset
    if begin + nbytes > cursor.end:
        raise cursor.fail(
            f"the file is truncated: the tensor ends at byte {begin + nbytes}, and the file has {cursor.end}",
            tensor=name,
        )
    return GGUFTensor(name, shape, form, begin, nbytes)
