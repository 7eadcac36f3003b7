"""One seed, many independent streams of random numbers."""

from __future__ import annotations

import hashlib

import numpy as np

from headrace.errors import InvalidInput


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The random numbers that a seed gives for one purpose, independent of those for any other.

    Args:
        seed: Any non-negative integer.
        purpose: A name, such as ``arrivals``.

    Raises:
        InvalidInput: The seed is negative.
    """
    if seed < 0:
        raise InvalidInput(f"{seed} is negative; a seed is 0 or more", field="seed")
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little")])
