"""``StepCost``: how long a step will take, learned from the steps that were run."""

from __future__ import annotations

import numpy as np

FORGET = 0.98
PRIOR = 1e-6
BACKLOG = 64


class StepCost:
    """Least squares with forgetting over ``seconds = base + per_token * tokens + per_pair * pairs``.

    ``tokens`` are the tokens computed, ``pairs`` the (query, key) pairs of attention in thousands. Negative
    coefficients, which noise can produce, count as zero. Nothing is solved before somebody asks: a step that only
    decodes asks nothing.
    """

    def __init__(self) -> None:
        self._normal = np.eye(3) * PRIOR
        self._right = np.zeros(3)
        self._backlog: list[tuple[float, float, float, float]] = []  # features and seconds, not in the sums yet
        self._coefficients = (0.0, 0.0, 0.0)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """Seconds: base, per token, per 1000 pairs; 0 while nothing was learned."""
        if self._backlog:
            self._solve()
        return self._coefficients

    def learn(self, tokens: int, pairs: int, seconds: float) -> None:
        """Take a measured step into account."""
        self._backlog.append((1.0, tokens, pairs / 1000, seconds))
        if len(self._backlog) == BACKLOG:
            self._solve()

    def estimate(self, tokens: int, pairs: int) -> float:
        """Seconds that a step would take; 0 while nothing was learned."""
        base, per_token, per_1000_pairs = self.coefficients
        return base + per_token * tokens + per_1000_pairs * (pairs / 1000)

    def prefill_rate(self, tokens: int) -> float:
        """Tokens a second of a step with so many tokens of a prompt, by what was learned so far; 0: nothing yet."""
        base, per_token, per_1000_pairs = self._coefficients
        seconds = base + per_token * tokens + per_1000_pairs * tokens * tokens / 2000
        return tokens / seconds if seconds else 0.0

    def prefill(self, computed: int, pending: int) -> float:
        """Seconds to compute ``pending`` tokens of a sequence behind ``computed`` others, in one step."""
        return self.estimate(pending, pending * computed + pending * pending // 2)

    def _solve(self) -> None:
        steps = np.array(self._backlog)
        self._backlog.clear()
        features, seconds = steps[:, :3], steps[:, 3]
        weighted = features * FORGET ** np.arange(len(steps) - 1, -1, -1)[:, None]
        kept = FORGET ** len(steps)
        self._normal = kept * self._normal + weighted.T @ features + np.eye(3) * PRIOR * (1 - kept)
        self._right = kept * self._right + weighted.T @ seconds
        base, per_token, per_1000_pairs = np.maximum(np.linalg.solve(self._normal, self._right), 0.0).tolist()
        self._coefficients = base, per_token, per_1000_pairs
