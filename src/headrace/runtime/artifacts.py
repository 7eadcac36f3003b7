"""What compiling a model gave, kept on disk: the prepared model, the program, and the packed weights.

    programs/KEY.graphs.msgpack          before it is scheduled
    programs/KEY.msgpack                 scheduled by default
    programs/KEY-FINGERPRINT.msgpack     scheduled as a search has found to be faster
    weights/CONTENT-KEY-LAYOUT.bin       packed as a schedule wants them

A later start finds them and imports no PyTorch. Files are named by everything that they depend on, written beside their
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
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

import headrace
from headrace.compiler.codegen.cone import CannotEmit
from headrace.compiler.native.cores import default_threads
from headrace.compiler.native.cpu import cpu_features
from headrace.compiler.native.toolchain import find_compiler
from headrace.compiler.search.choices import gene_space
from headrace.compiler.search.database import Key, TuningDatabase
from headrace.compiler.search.genes import DEFAULT, Genome, InvalidGenome
from headrace.models.checkpoint import Checkpoint
from headrace.models.hub import cache_folder
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.quant.weights import stored_formats
from headrace.runtime.compile import CompiledModel, PreparedModel, Report, prepare_model, schedule_model
from headrace.runtime.native_program import aligned
from headrace.runtime.packed_weights import Directory, Progress, directory, fill

logger = logging.getLogger(__name__)

# Whose text decides what a program is.
SOURCES = ("compiler", "models", "quant", "runtime")


def open_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    recipe: Recipe,
    threads: int | None = None,
    report: Report = lambda what: None,
) -> tuple[CompiledModel, str]:
    """The compiled model, from the cache if it is there, and its key.

    The schedule is the one that ``headrace tune`` has found for this machine, else the default one.

    Args:
        checkpoint: The model.
        spec: Its dimensions.
        recipe: The numbers to compute with.
        threads: Threads that compute; one a core by default.
        report: Called with what is done next.

    Raises:
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
        ToolchainError: There is no C compiler.
    """
    key = program_key(checkpoint, spec, recipe)
    genome = tuned_genome(key, threads)
    try:
        return _open(checkpoint, spec, recipe, key, genome, report), key
    except (InvalidGenome, CannotEmit) as error:
        if not genome.values:
            raise
        logger.warning("a tuned program cannot be used, using the defaults: %s", error)
    return _open(checkpoint, spec, recipe, key, DEFAULT, report), key


def open_prepared(
    checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, report: Report = lambda what: None
) -> tuple[PreparedModel, Path]:
    """The model before it is scheduled, from the cache if it is there, and its file, which there may not be.

    Raises:
        Unsupported: The model cannot be captured.
    """
    path = cache_folder() / "programs" / f"{program_key(checkpoint, spec, recipe)}.graphs.msgpack"
    found = read_kept(path, PreparedModel)
    if found is None:
        found = prepare_model(checkpoint, spec, recipe, report)
        keep(path, found)
    return found, path


def tuning_key(program: str, threads: int | None) -> Key:
    """What a search's result holds for, on this machine.

    Raises:
        ToolchainError: There is no C compiler.
    """
    return Key(program, cpu_features().hardware_id, find_compiler().version, threads or default_threads())


def tuned_genome(program: str, threads: int | None) -> Genome:
    """The best schedule known here; the default one if no search was made."""
    entry = TuningDatabase().load(tuning_key(program, threads))
    if entry is None:
        return DEFAULT
    genome = Genome(tuple(sorted(entry.genome.items())))
    if genome.fingerprint != entry.fingerprint:
        logger.warning("a tuned program is damaged, using the defaults", extra={"fingerprint": entry.fingerprint})
        return DEFAULT
    return genome


def _open(
    checkpoint: Checkpoint, spec: ModelSpec, recipe: Recipe, key: str, genome: Genome, report: Report
) -> CompiledModel:
    name = f"{key}-{genome.fingerprint}" if genome.values else key
    path = cache_folder() / "programs" / f"{name}.msgpack"
    found = read_kept(path, CompiledModel)
    if found is None:
        prepared, _ = open_prepared(checkpoint, spec, recipe, report)
        if genome.values:
            gene_space(prepared.program).genome(genome.as_dict())
        report("scheduling")
        found = schedule_model(prepared, genome)
        keep(path, found)
    return found


def open_weights(
    model: CompiledModel, key: str, checkpoint: Checkpoint, progress: Progress | None = None
) -> tuple[Directory, npt.NDArray[np.uint8]]:
    """The packed weights, from the cache if they are there, and where each lies."""
    prepared = model.prepared
    where = directory(list(model.source.arrays.weights.values()), prepared.extents)
    layout = hashlib.sha256(repr(where).encode()).hexdigest()[:12]  # schedules may share it
    path = cache_folder() / "weights" / f"{checkpoint.content_id()}-{key}-{layout}.bin"
    block = _read_block(path, where.size)
    if block is None:
        block = fill(where, prepared.made, prepared.load(checkpoint), progress)
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


T = TypeVar("T")


def keep(path: Path, value: Any) -> None:
    """Keep a record in a file, if that can be written."""
    _write(path, lambda file: file.write(_encoder().encode(value)))


def read_kept(path: Path, kind: type[T]) -> T | None:
    """What ``keep`` has written; None if it is not there, or damaged."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind, dec_hook=_decode_array)
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
