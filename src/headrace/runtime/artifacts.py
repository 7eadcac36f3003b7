"""What compiling a model gave, kept on disk: the prepared model, the program, and the packed weights.

    programs/KEY.graphs.msgpack          before it is scheduled
    programs/KEY.msgpack                 scheduled by default
    programs/KEY-FINGERPRINT.msgpack     scheduled as a search has found to be faster
    weights/CONTENT-KEY-LAYOUT.bin       packed as a schedule wants them

A later start finds them and imports no PyTorch. Files are named by everything that they depend on; see
``kept_files.py`` for how they are written and read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from pathlib import Path

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
from headrace.models.cache import cache_folder
from headrace.models.checkpoint import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.quant.weights import stored_formats
from headrace.runtime.compile import CompiledModel, PreparedModel, Report, prepare_model, schedule_model
from headrace.runtime.kept_files import keep, keep_block, read_block, read_kept
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
    block = read_block(path, where.size)
    if block is None:
        block = fill(where, prepared.made, prepared.load(checkpoint), progress)
        keep_block(path, block)
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
def code_digest(folders: tuple[str, ...] = SOURCES) -> str:
    """A digest of the source that results depend on, so that nothing outlives what made it.

    Args:
        folders: Where it lies, in the package; by default all that makes programs.
    """
    digest = hashlib.sha256()
    root = Path(headrace.__file__).parent
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".h", ".c"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
