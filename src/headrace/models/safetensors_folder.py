"""A Hugging Face model folder: ``config.json`` and weights in one or more safetensors files.

A safetensors file (format as documented by the safetensors project)::

    header size u64, little-endian | header: JSON | tensor bytes

    header = { name: {"dtype": "BF16", "shape": [576, 576], "data_offsets": [begin, end]}, ...,
               "__metadata__": {...} }       offsets count from the first byte after the header

With several files, ``model.safetensors.index.json`` says in its ``weight_map`` which holds which tensor.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from headrace.errors import CheckpointError
from headrace.models.checkpoint import SAFETENSORS_INDEX, TokenizerSource
from headrace.models.content_id import content_id
from headrace.models.gguf import map_file, widen_bfloat16
from headrace.models.stored import StoredWeight

# The limit of the reference implementation.
MAX_HEADER = 100_000_000
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_VIEWS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies: ``nbytes`` bytes from ``begin`` of ``file``, counted from the file's start."""

    file: SafetensorsFile
    dtype: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int

    def raw(self) -> npt.NDArray[np.uint8]:
        """The stored bytes, read-only."""
        return np.frombuffer(self.file.map, np.uint8, self.nbytes, self.begin)


class SafetensorsFile:
    """One open safetensors file.

    Raises:
        CheckpointError: The file cannot be opened, or header and size contradict each other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.map: mmap.mmap = map_file(path)
        header, data = self._header()
        self.tensors = {
            name: self._tensor(name, entry, data) for name, entry in header.items() if name != "__metadata__"
        }
        self._check_layout(data)

    def _header(self) -> tuple[dict[str, Any], int]:
        """The parsed header and the position of the first byte after it."""
        if len(self.map) < 8:
            raise CheckpointError("the file is truncated: it ends before its header", file=self.path)
        size = struct.unpack_from("<Q", self.map)[0]
        if size > MAX_HEADER:
            raise CheckpointError(f"this is not a safetensors file: header of {size} bytes", file=self.path)
        if 8 + size > len(self.map):
            raise CheckpointError(
                f"the file is truncated: its header ends at byte {8 + size}, and the file has {len(self.map)}",
                file=self.path,
            )
        return _parse_object(self.map[8 : 8 + size], "the header", self.path), 8 + size

    def _tensor(self, name: str, entry: object, data: int) -> StoredTensor:
        def fail(message: str) -> CheckpointError:
            return CheckpointError(message, file=self.path, tensor=name)

        if not isinstance(entry, dict):
            raise fail("its header entry is not an object")
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise fail(f"dtype {dtype!r:.50} is not supported; known are {', '.join(_SIZES)}")
        if not _is_counts(shape):
            raise fail(f"shape {shape!r:.50} is not a list of sizes")
        if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise fail(f"data_offsets {offsets!r:.50} are not a beginning and an end")
        begin, end = offsets
        if end - begin != math.prod(shape) * _SIZES[dtype]:
            raise fail(f"{end - begin} bytes do not hold shape {shape} of {dtype}")
        if data + end > len(self.map):
            raise fail(f"the file is truncated: the tensor ends at byte {data + end}, and the file has {len(self.map)}")
        return StoredTensor(self, dtype, tuple(shape), data + begin, end - begin)

    def _check_layout(self, data: int) -> None:
        """Tensors fill the file without gap or overlap, as the format demands."""
        at = data
        for name, tensor in sorted(self.tensors.items(), key=lambda item: (item[1].begin, item[1].nbytes)):
            if tensor.begin != at:
                raise CheckpointError(
                    f"the file is damaged: the tensor begins at byte {tensor.begin}, the one before it ends at {at}",
                    file=self.path,
                    tensor=name,
                )
            at += tensor.nbytes
        if at != len(self.map):
            raise CheckpointError(
                f"the file is damaged: its last tensor ends at byte {at}, and the file has {len(self.map)}",
                file=self.path,
            )


class SafetensorsFolder:
    """``Checkpoint`` over a model folder. See ``headrace.models.checkpoint`` for the methods' contracts.

    ``generation_config.json``, where present, decides ``eos_token_id``, as it does in Transformers.

    Raises:
        CheckpointError: ``config.json`` is missing or no JSON object, its weights are quantized, a shard is missing
            or damaged, or index and shards contradict each other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = _read_config(path)
        _refuse_quantized(self.config, path / "config.json")
        self.tokenizer = TokenizerSource(folder=path)
        self._tensors = dict(_open_tensors(path))

    def names(self) -> list[str]:
        """Names of all weights."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape."""
        return self._find(name).shape

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A weight as float32."""
        tensor = self._find(name)
        stored = tensor.raw().view(_VIEWS[tensor.dtype])
        values = widen_bfloat16(stored) if tensor.dtype == "BF16" else stored.astype(np.float32)
        return values.reshape(tensor.shape)

    def stored_format(self, name: str) -> str:
        """The format in which ``stored`` gives a weight."""
        return self._find(name).dtype.lower()

    def stored(self, name: str) -> StoredWeight:
        """A weight as the file holds it."""
        tensor = self._find(name)
        values = tensor.raw().view(_VIEWS[tensor.dtype]).reshape(tensor.shape)
        return StoredWeight(tensor.dtype.lower(), tensor.shape, values)

    def content_id(self) -> str:
        """A name of these weights."""
        tensors = sorted(self._tensors.items())
        names = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors]
        about = json.dumps([self.config, names], sort_keys=True).encode()
        files = sorted({tensor.file.path for _, tensor in tensors})
        return content_id(files, about, (tensor.raw() for _, tensor in tensors))

    def _find(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError("the checkpoint holds no such tensor", file=self.path, tensor=name) from None


def _is_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _parse_object(text: bytes, what: str, file: Path) -> dict[str, Any]:
    """A JSON object; anything else is the file's fault."""
    try:
        value = json.loads(text)
    # Besides malformed text: bad UTF-8 and overlong integers (ValueError), nesting without end.
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not valid JSON: {error!s:.100}", file=file) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object", file=file)
    return value


def _read_object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"the file cannot be read: {error.strerror}", file=path) from None
    return _parse_object(text, "the file", path)


def _read_config(folder: Path) -> dict[str, Any]:
    config = _read_object(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.exists():
        end = _read_object(generation).get("eos_token_id")
        if end is not None:
            config["eos_token_id"] = end
    return config


def _refuse_quantized(config: Mapping[str, Any], file: Path) -> None:
    """Said before a tensor's header is read, whose odd dtype would be all that is named."""
    quantized = config.get("quantization_config")
    if quantized is None:
        return
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    raise CheckpointError(
        f"config key 'quantization_config' is set: weights quantized as {method!r:.50} are not supported; "
        "use a copy of the model in bfloat16, float16 or float32",
        file=file,
    )


def _open_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor of the folder: by the index if there is one, else of all safetensors files."""
    if (folder / SAFETENSORS_INDEX).exists():
        yield from _open_sharded(folder)
        return
    whole = folder / "model.safetensors"
    # Some folders carry a second copy under another name; the conventional one is the model.
    paths = [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))
    seen: dict[str, Path] = {}
    for path in paths:
        for name, tensor in SafetensorsFile(path).tensors.items():
            if name in seen:
                raise CheckpointError(f"the tensor is also in {seen[name].name}", file=path, tensor=name)
            seen[name] = path
            yield name, tensor


def _open_sharded(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    index = folder / SAFETENSORS_INDEX
    places = _read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError("'weight_map' is missing or empty", file=index)
    shards: dict[str, SafetensorsFile] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{shard!r:.80} is not the name of a shard in this folder", file=index, tensor=name)
        if shard not in shards:
            if not (folder / shard).exists():
                raise CheckpointError(f"shard {shard} is missing", file=index, tensor=name)
            shards[shard] = SafetensorsFile(folder / shard)
        if name not in shards[shard].tensors:
            raise CheckpointError(f"the index places it in {shard}, which does not hold it", file=index, tensor=name)
        yield name, shards[shard].tensors[name]
    for shard, file in shards.items():
        for name in file.tensors:
            if places.get(name) != shard:
                raise CheckpointError("the index does not place the tensor here", file=folder / shard, tensor=name)
