"""An embedding as it travels from a replica, and its length."""

from __future__ import annotations

import numpy as np

from headrace.runtime.batch import FloatArray


def to_vector(data: bytes, *, normalize: bool) -> FloatArray:
    """float32 [hidden] from the bytes of a ``TokenDelta``.

    Args:
        data: float32, little-endian.
        normalize: Give it length 1; a vector of zeros stays as it is.
    """
    vector = np.frombuffer(data, "<f4").astype(np.float64)
    length = np.linalg.norm(vector) if normalize else 0.0
    return np.asarray(vector / (length or 1.0), np.float32)
