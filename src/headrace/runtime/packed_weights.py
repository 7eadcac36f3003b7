"""A program's weights as it wants them: computed once, laid out as its loops come to them, side by side in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.codegen.arrays import Array
from headrace.compiler.codegen.layout import Layout, pack
from headrace.compiler.interpret import bind, interpret, storage
from headrace.compiler.ir import DType, Graph
from headrace.runtime.native_program import SLACK, aligned

Load = Callable[[str], npt.NDArray[Any]]
Progress = Callable[[int, int], None]
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight lies in the block.

    Attributes:
        name: In full.
        array: Its form.
        begin: The first byte of its region, which weights that lie in records share.
        size: Bytes of the region.
    """

    name: str
    array: Array
    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class Directory:
    """Where all weights lie.

    Attributes:
        places: Each weight once in each of its layouts.
        table: Of each repetition, the weights in the order of the program's table; None where it has no such weight.
        size: Bytes of the block.
    """

    places: tuple[Place, ...]
    table: tuple[Place | None, ...]
    size: int


def directory(weights: Sequence[Array], extents: Mapping[str, Mapping[str, int]]) -> Directory:
    """Lay weights out in a block, repetition by repetition, in the order in which they are read.

    Args:
        weights: The program's.
        extents: Of each weight, its axes' lengths.
    """
    repetitions = max((len(w.repeats) for w in weights), default=1)
    places: dict[tuple[str, Layout], Place] = {}
    regions: dict[tuple[str, ...], int] = {}
    table: list[Place | None] = []
    at = 0
    for n in range(repetitions):
        for weight in weights:
            if n >= len(weight.repeats):
                table.append(None)
                continue
            name = bind(weight.name, weight.repeats[n])
            key = (name, weight.layout)
            if key not in places:
                size = weight.layout.nbytes(weight.dtype, extents[weight.name])
                region = tuple(bind(member, weight.repeats[n]) for member in weight.record) or (name, repr(key[1]))
                if region not in regions:
                    regions[region] = at
                    at += -(-(size + SLACK) // ALIGNMENT) * ALIGNMENT
                places[key] = Place(name, weight, regions[region], size)
            table.append(places[key])
    return Directory(tuple(places.values()), tuple(table), at)


def fill(
    where: Directory, made: Mapping[str, Graph], load: Load, progress: Progress | None = None
) -> npt.NDArray[np.uint8]:
    """Compute and pack all weights.

    Args:
        where: Their places.
        made: Name (with ``*``) of each weight that is computed from others, to the graph that does it.
        load: Reads a stored weight by its full name, its axes in the order of their names.
        progress: Called after each with (bytes done, bytes in all).
    """
    block = aligned(where.size)
    done = 0
    for place in where.places:
        values = weight_value(place.array.name, _repeat(place), made, load)
        done += write(block[place.begin : place.begin + place.size], place.array, values)
        if progress is not None:
            progress(done, where.size)
    return block


def write(region: npt.NDArray[np.uint8], array: Array, values: npt.NDArray[Any]) -> int:
    """Pack a weight into its region, or its share of each record there; the bytes written.

    Args:
        region: uint8, the bytes of the array's layout.
        array: Its form.
        values: The weight, its axes in the order of their names.
    """
    packed = pack(stored_bits(values, array.dtype), array.axes, array.layout)
    heads = max((digits for digits, _ in array.layout.records), default=0)
    shape = [piece.extent for piece in array.layout.pieces[:heads]]
    strides = [step * packed.itemsize for step in array.layout.strides()[:heads]]
    own = packed.nbytes // math.prod(shape)
    share = np.ndarray((*shape, own), np.uint8, region, array.offset, (*strides, 1))
    share[:] = packed.view(np.uint8).reshape(share.shape)
    return packed.nbytes


def addresses(where: Directory, block: npt.NDArray[np.uint8]) -> list[int]:
    """The program's table of weights."""
    base = block.ctypes.data
    return [0 if place is None else base + place.begin + place.array.offset for place in where.table]


def weight_value(name: str, repeat: str, made: Mapping[str, Graph], load: Load) -> npt.NDArray[Any]:
    """A weight of a repetition, computed if it is not stored as it is; its axes in the order of their names."""
    graph = made.get(name)
    if graph is None:
        return load(bind(name, repeat))
    return interpret(graph, {own: load(bind(own, repeat)) for own in graph.inputs}, {})["value"]


def _repeat(place: Place) -> str:
    return next(r for r in place.array.repeats if bind(place.array.name, r) == place.name)


def stored_bits(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """As memory holds them: bfloat16 as its upper halves."""
    if dtype is DType.BF16 and values.dtype == np.float32:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values, np.uint16 if dtype is DType.BF16 else storage(dtype))
