"""Weights in their stored forms without a file, quantized by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from headrace.models.stored import BLOCK_FORMATS, StoredWeight, unpack_blocks


def stored(weight, form):
    """A float32 array as a file of this format would hold it."""
    kind = gguf.GGMLQuantizationType[form.upper()]
    raw = gguf.quantize(np.ascontiguousarray(weight, np.float32), kind)
    if form in BLOCK_FORMATS:
        return unpack_blocks(raw.reshape(-1, raw.shape[-1]), form, weight.shape)
    values = raw.view(np.uint16) if form == "bf16" else raw
    return StoredWeight(form, weight.shape, values)


def exact(weight):
    """What a weight stands for, in float64: not even the sum of a block's product and min is rounded."""
    if weight.codes is None:
        bits = weight.values
        return (bits.astype(np.uint32) << 16).view(np.float32) if weight.format == "bf16" else bits.astype(np.float64)
    scales = weight.scales.astype(np.float64)[..., None]
    factor = {"q4_0": -8, "q8_0": -128}.get(weight.format)
    mins = scales * factor if factor else weight.mins.astype(np.float64)[..., None]
    return (scales * weight.codes + mins).reshape(weight.shape)


class HeldCheckpoint:
    """The part of ``Checkpoint`` that recipes use, over weights in memory."""

    path = Path("memory")

    def __init__(self, weights):
        self.weights = weights

    def names(self):
        return list(self.weights)

    def stored_format(self, name):
        return self.weights[name].format

    def stored(self, name):
        return self.weights[name]
