"""The interpreter's logits of a batch: what the default program is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compiler.interpret import bind, run_program, storage
from headrace.compiler.ir import Kind, Part, Program
from headrace.runtime.compile import PreparedModel
from headrace.runtime.tuning.loads import Batch, Ints
from headrace.runtime.tuning.memory import PackedWeights


def interpreted(
    model: PreparedModel, weights: PackedWeights, batch: Batch, repeats: Sequence[int]
) -> npt.NDArray[np.float32]:
    """The logits of a batch whose states begin as zeros, by the interpreter; float32 [rows, vocab].

    Args:
        model: The program.
        weights: Its weights.
        batch: What to compute.
        repeats: How often each part runs.
    """
    parts = [
        Part(part.name, part.graph, part.repeats[:count])
        for part, count in zip(model.program.parts, repeats, strict=True)
    ]
    inputs: dict[str, npt.NDArray[Any]] = {}
    for part in parts:
        extents = {name: axis.extent for name, axis in part.graph.axes.items()}
        for declared in part.graph.inputs.values():
            shape = [e if isinstance(e := extents[a], int) else batch.sizes[e] for a in declared.type.axes]
            for repeat in part.repeats:
                name = bind(declared.state or declared.name, repeat)
                if declared.kind is Kind.WEIGHT:
                    inputs[name] = weights.value(declared.name, repeat)
                elif declared.kind is Kind.ARGUMENT:
                    inputs[name] = _shaped(batch.arguments[declared.name], shape)
                elif declared.kind is Kind.STATE:
                    inputs[name] = np.zeros(shape, storage(declared.type.dtype))
    found = run_program(Program(tuple(parts)), inputs, batch.sizes)["logits"]
    return np.asarray(found, np.float32)


def _shaped(values: Ints, shape: Sequence[int]) -> Ints:
    """An argument as the interpreter takes it: of a table whose rows have room, what is used."""
    if len(shape) < 2:
        return values
    wide = values.reshape(shape[0], -1)
    return wide[:, : math.prod(shape[1:])].reshape(shape)
