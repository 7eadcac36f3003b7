"""Weights as inputs of a program: what each holds, and how it is got from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.interpret import bind
from headrace.compiler.ir import DType
from headrace.errors import CheckpointError
from headrace.models.checkpoint import Checkpoint
from headrace.models.stored import BLOCK, BLOCK_FORMATS, MIN_FACTORS, StoredWeight, dequantize

Array = npt.NDArray[Any]


class Piece(StrEnum):
    """What of a weight an input holds."""

    VALUES = "values"
    CODES = "codes"
    SCALES = "scales"
    MINS = "mins"


@dataclass(frozen=True, slots=True)
class Form:
    """How a program holds a weight, or the weights of one name in all repetitions of a part.

    Attributes:
        dtype: Of its elements, or of its codes if it is in blocks.
        blocks: Whether it is in blocks of 32 codes with a float16 scale.
        min_factor: In blocks: a block's min over its scale; None if mins are an input of their own.
    """

    dtype: DType
    blocks: bool = False
    min_factor: int | None = None


_FLOATS = {"f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16}
_CODES = {"q4_0": DType.U4, "q4_1": DType.U4, "q8_0": DType.U8}


def form_of(formats: Iterable[str]) -> Form:
    """The form that holds weights of all these formats without loss; files may store some layers finer than others.

    Args:
        formats: As ``Checkpoint.stored_format`` gives them.
    """
    found = sorted(set(formats))
    if not all(each in BLOCK_FORMATS for each in found):
        return Form(_FLOATS[found[0]] if len(found) == 1 else DType.F32)
    codes = DType.U8 if any(_CODES[each] is DType.U8 for each in found) else DType.U4
    return Form(codes, True, MIN_FACTORS.get(found[0]) if len(found) == 1 else None)


def stored_formats(checkpoint: Checkpoint) -> dict[str, str]:
    """The format of each weight, by name."""
    return {name: checkpoint.stored_format(name) for name in checkpoint.names()}


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where an input of a program comes from.

    Attributes:
        tensor: The checkpoint's name of the weight, with a ``*`` for the number of a repetition.
        piece: What of it.
        form: How the program holds it.
        dims: The axis of each dimension of the array that is got from ``StoredWeight``; empty where the size is 1 and
            there is none.
        block: Codes: elements in a block of the program, which divides that of the file.
    """

    tensor: str
    piece: Piece
    form: Form
    dims: tuple[str, ...]
    block: int = BLOCK

    @property
    def dtype(self) -> DType:
        """Element type of the input."""
        return self.form.dtype if self.piece in (Piece.VALUES, Piece.CODES) else DType.F16


def load_weight(checkpoint: Checkpoint, source: WeightSource, repeat: str = "") -> Array:
    """An input's array as ``interpret`` takes it: axes sorted by name, 4-bit codes one a byte, bfloat16 in float32.

    Often a view that is not contiguous; do not write to it.

    Raises:
        CheckpointError: There is no such tensor, or it cannot be read.
    """
    return arrange(load_piece(checkpoint.stored(bind(source.tensor, repeat)), source, checkpoint.path), source.dims)


def load_weights(checkpoint: Checkpoint, sources: Mapping[str, WeightSource], repeat: str = "") -> dict[str, Array]:
    """The arrays of some inputs, each tensor read once. See ``load_weight``.

    Args:
        checkpoint: Where they are.
        sources: By name of the input.
        repeat: What stands for the ``*``.

    Returns:
        By full name of the input.
    """
    tensors = {source.tensor for source in sources.values()}
    stored = {tensor: checkpoint.stored(bind(tensor, repeat)) for tensor in sorted(tensors)}
    return {
        bind(name, repeat): arrange(load_piece(stored[source.tensor], source, checkpoint.path), source.dims)
        for name, source in sources.items()
    }


def arrange(array: Array, dims: tuple[str, ...]) -> Array:
    """An array with its axes sorted and without dimensions that have none. No copy."""
    bare = array.reshape([n for n, axis in zip(array.shape, dims, strict=True) if axis])
    axes = [axis for axis in dims if axis]
    return bare.transpose(sorted(range(len(axes)), key=axes.__getitem__))


def load_piece(stored: StoredWeight, source: WeightSource, file: object = "") -> Array:
    """What an input holds of a weight, in the order of the weight's dimensions.

    Args:
        stored: The weight.
        source: What of it.
        file: For the error.

    Raises:
        CheckpointError: A scale is too large for the form.
    """
    if source.piece is Piece.VALUES:
        exact = stored.format == "f16" and source.form.dtype is DType.F16
        return stored.values if exact and stored.values is not None else dequantize(stored)
    if stored.codes is None or stored.scales is None:
        raise CheckpointError(f"stored as {stored.format}, not in blocks", file=file, tensor=source.tensor)
    if source.piece is Piece.CODES:
        return stored.codes.reshape(*stored.shape[:-1], -1, source.block)
    if source.piece is Piece.SCALES:
        return stored.scales
    return _mins(stored, source, file)


def _mins(stored: StoredWeight, source: WeightSource, file: object) -> npt.NDArray[np.float16]:
    if stored.mins is not None:
        return stored.mins
    assert stored.scales is not None
    # A power of two: exact unless it leaves the range.
    with np.errstate(over="ignore"):
        mins = stored.scales * np.float16(MIN_FACTORS[stored.format])
    if not np.array_equal(np.isfinite(mins), np.isfinite(stored.scales)):
        raise CheckpointError(
            "a scale is too large to store its block's min beside it", file=file, tensor=source.tensor
        )
    return mins
