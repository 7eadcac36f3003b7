"""Weights as a file holds them, not dequantized.

Three of the GGUF formats keep a row in blocks of 32 elements (the ggml project's ``block_q4_0``, ``block_q4_1`` and
``block_q8_0``, all little-endian)::

    q4_0   scale f16 | 16 bytes                low nibbles elements 0-15, high ones 16-31   w = scale * (code - 8)
    q4_1   scale f16 | min f16 | 16 bytes      the same                                      w = scale * code + min
    q8_0   scale f16 | 32 x int8                                                             w = scale * int8

Here all three are ``w = scale * code + min`` with unsigned codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 32
BLOCK_FORMATS = ("q4_0", "q4_1", "q8_0")
FLOAT_FORMATS = ("f32", "f16", "bf16")
MIN_FACTORS = {"q4_0": -8, "q8_0": -128}
"""What a block's scale is multiplied by to give its min, where the min is not stored."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in its own format.

    Attributes:
        format: One of ``FLOAT_FORMATS`` or ``BLOCK_FORMATS``.
        shape: Of the weight, slowest dimension first; below ``(*rows, K)``.
        values: Float formats: the elements, float32 or float16, bfloat16 as its bits in uint16. Else None.
        codes: Block formats: uint8 ``[*rows, K / 32, 32]``, one element a byte. Of 8-bit formats int8 + 128.
        scales: Block formats: float16 ``[*rows, K / 32]``.
        mins: ``q4_1``: float16 ``[*rows, K / 32]``. None where it is ``MIN_FACTORS[format] * scale``.
    """

    format: str
    shape: tuple[int, ...]
    values: npt.NDArray[Any] | None = None
    codes: npt.NDArray[np.uint8] | None = None
    scales: npt.NDArray[np.float16] | None = None
    mins: npt.NDArray[np.float16] | None = None

    def with_rows(self, order: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> StoredWeight:
        """The weight with its rows in another order.

        Args:
            order: Puts an array's first dimension in order.
        """
        arrays = (self.values, self.codes, self.scales, self.mins)
        return StoredWeight(self.format, self.shape, *(x if x is None else order(x) for x in arrays))


def unpack_blocks(raw: npt.NDArray[np.uint8], form: str, shape: tuple[int, ...]) -> StoredWeight:
    """The codes, scales and mins of a weight.

    Args:
        raw: uint8 ``[rows, bytes per row]``.
        form: One of ``BLOCK_FORMATS``.
        shape: Of the weight; the last size is a multiple of 32.
    """
    head = 4 if form == "q4_1" else 2
    size = head + (BLOCK if form == "q8_0" else BLOCK // 2)
    blocks = raw.reshape(*shape[:-1], shape[-1] // BLOCK, size)
    floats = np.ascontiguousarray(blocks[..., :head]).view("<f2")
    mins = np.ascontiguousarray(floats[..., 1]) if form == "q4_1" else None
    codes = _bytes_to_codes(blocks[..., head:]) if form == "q8_0" else _nibbles_to_codes(blocks[..., head:])
    return StoredWeight(form, shape, codes=codes, scales=np.ascontiguousarray(floats[..., 0]), mins=mins)


def _nibbles_to_codes(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    codes = np.empty((*packed.shape[:-1], BLOCK), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., : BLOCK // 2])
    np.right_shift(packed, 4, out=codes[..., BLOCK // 2 :])
    return codes


def _bytes_to_codes(signed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return signed ^ np.uint8(128)  # int8 + 128, on the bits


def dequantize(weight: StoredWeight) -> npt.NDArray[np.float32]:
    """The weight in float32, as ``Checkpoint.read`` gives it."""
    if weight.values is not None:
        bits = weight.values
        wide = (bits.astype(np.uint32) << 16).view(np.float32) if weight.format == "bf16" else bits.astype(np.float32)
        return wide.reshape(weight.shape)
    assert weight.codes is not None and weight.scales is not None  # noqa: PT018 - for the type checker
    scales = weight.scales.astype(np.float32)
    mins = scales * MIN_FACTORS[weight.format] if weight.mins is None else weight.mins.astype(np.float32)
    return (scales[..., None] * weight.codes + mins[..., None]).astype(np.float32).reshape(weight.shape)
