"""``StepCost``: how long a step will take, learned from the steps that were run."""

from __future__ import annotations

import numpy as np

FORGET = 0.98
PRIOR = 1e-6


class StepCost:
    """Least squares with forgetting over ``seconds = base + per_token * tokens + per_pair * pairs``.

    ``tokens`` are the tokens computed, ``pairs`` the (query, key) pairs of attention in thousands. Negative
    coefficients, which noise can produce, count as zero.
    """

    def __init__(self) -> None:
        self._normal = np.eye(3) * PRIOR
        self._right = np.zeros(3)
        self.coefficients = np.zeros(3)

    def learn(self, tokens: int, pairs: int, seconds: float) -> None:
        """Take a measured step into account."""
        features = np.array([1.0, tokens, pairs / 1000])
        self._normal = FORGET * self._normal + np.outer(features, features) + np.eye(3) * PRIOR * (1 - FORGET)
        self._right = FORGET * self._right + features * seconds
        self.coefficients = np.maximum(np.linalg.solve(self._normal, self._right), 0.0)

    def estimate(self, tokens: int, pairs: int) -> float:
        """Seconds that a step would take; 0 while nothing was learned."""
        return float(self.coefficients @ (1.0, tokens, pairs / 1000))
