"""What compiling a model gave, kept on disk: the program, and the packed weights.

A later start finds both and imports no PyTorch. Files are named by everything that they depend on, written beside their
place and renamed, so that whatever has the name is whole; what cannot be written is done without.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import headrace
from headrace.models.checkpoint import Checkpoint
from headrace.models.hub import cache_folder
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.quant.weights import stored_formats
from headrace.runtime.compile import CompiledModel, Report, compile_model
from headrace.runtime.native_program import aligned
from headrace.runtime.packed_weights import Directory, Progress, directory, fill

logger = logging.getLogger(__name__)

# Whose text decides what a program is.
SOURCES = ("compiler", "models", "quant", "runtime")


def open_model(
    checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, report: Report = lambda what: None
) -> tuple[CompiledModel, str]:
    """The compiled model, from the cache if it is there, and its key.

    Raises:
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
    """
    key = program_key(checkpoint, spec, recipe)
    path = cache_folder() / "programs" / f"{key}.msgpack"
    found = _read(path)
    if found is None:
        found = compile_model(checkpoint, spec, recipe, report)
        _write(path, lambda file: file.write(_encoder().encode(found)))
    return found, key


def open_weights(
    model: CompiledModel, key: str, checkpoint: Checkpoint, progress: Progress | None = None
) -> tuple[Directory, npt.NDArray[np.uint8]]:
    """The packed weights, from the cache if they are there, and where each lies."""
    where = directory(list(model.source.arrays.weights.values()), model.extents)
    path = cache_folder() / "weights" / f"{checkpoint.content_id()}-{key}.bin"
    block = _read_block(path, where.size)
    if block is None:
        block = fill(where, model.made, model.load(checkpoint), progress)
        _write(path, lambda file: file.write(block.data))
    return where, block


def program_key(checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe) -> str:
    """32 hexadecimal digits that name a program: model, numbers, and the code that makes it."""
    about = {
        "config": dict(checkpoint.config),
        "formats": stored_formats(checkpoint),
        "recipe": recipe.numerics_id,
        "context": spec.context_length,
        "code": code_digest(),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:32]


@functools.cache
def code_digest() -> str:
    """A digest of the compiler's own source, so that no program outlives what made it."""
    digest = hashlib.sha256()
    root = Path(headrace.__file__).parent
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".c"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_encode_array)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    raise NotImplementedError(f"{type(value).__name__} is not kept")


def _decode_array(kind: type, value: Any) -> Any:
    dtype, shape, data = value
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def _read(path: Path) -> CompiledModel | None:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=CompiledModel, dec_hook=_decode_array)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        logger.warning("a kept program cannot be read, compiling anew", extra={"file": str(path), "why": str(error)})
        return None


def _read_block(path: Path, size: int) -> npt.NDArray[np.uint8] | None:
    try:
        if path.stat().st_size != size:
            return None
        block = aligned(size)
        with path.open("rb") as file:
            if file.readinto(block.data) != size:
                return None
        return block
    except OSError:
        return None


def _write(path: Path, write: Callable[[Any], Any]) -> None:
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = file.name
            write(file)
        os.replace(part, path)
    except OSError as error:
        if part:
            Path(part).unlink(missing_ok=True)
        logger.warning("a compiled model cannot be kept", extra={"file": str(path), "why": str(error)})
