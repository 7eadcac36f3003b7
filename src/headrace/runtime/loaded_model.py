"""``LoadedModel``: a compiled model in memory, from the cache or made now."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.compiler.build import load_program
from headrace.compiler.native.pool import ThreadPool
from headrace.models.checkpoint import Checkpoint
from headrace.models.spec import ModelSpec
from headrace.quant.recipes import Recipe
from headrace.runtime.artifacts import open_model, open_weights
from headrace.runtime.compile import CompiledModel
from headrace.runtime.packed_weights import Directory


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A compiled model in memory, before there is memory for sequences.

    Attributes:
        model: The program and what is known of it.
        library: Its native code.
        pool: Who computes.
        weights: Where each weight lies.
        block: The weights' memory, uint8.
    """

    model: CompiledModel
    library: ctypes.CDLL
    pool: ThreadPool
    weights: Directory
    block: npt.NDArray[np.uint8]


def load_compiled(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    recipe: Recipe,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> LoadedModel:
    """Compile a model, or find it compiled, and load it.

    Args:
        checkpoint: The model.
        spec: Its dimensions.
        recipe: The numbers to compute with.
        threads: Threads that compute; one a core by default.
        progress: Called with (what is being done, bytes of it done, bytes in all; 0 and 0 where they are not counted).

    Raises:
        ToolchainError: There is no C compiler, or it fails.
        Unsupported: The model cannot be captured.
        CannotEmit: There is no code for it.
    """
    model, key = open_model(checkpoint, spec, recipe, threads, lambda what: progress(what, 0, 0))
    progress("compiling", 0, 0)
    library = load_program(library_name(spec, recipe), model.source)
    where, block = open_weights(model, key, checkpoint, functools.partial(progress, "packing weights"))
    return LoadedModel(model, library, ThreadPool(threads), where, block)


def library_name(spec: ModelSpec, recipe: Recipe) -> str:
    """What a model's library is called; part of its key in the cache."""
    return f"{spec.family}-{recipe.name}"
