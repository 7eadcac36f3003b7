"""What a transfer costs, from those that were measured, and whether it pays."""

from __future__ import annotations

import math

FORGET = 0.9  # weight of all earlier transfers when one more is measured


class TransferRate:
    """Seconds of a transfer: so many a transfer and so many a byte, by least squares; old ones count less and less."""

    def __init__(self) -> None:
        self._weight = self._bytes = self._seconds = self._squares = self._products = 0.0

    @property
    def measured(self) -> bool:
        """Whether anything was."""
        return self._weight > 0

    def add(self, nbytes: int, seconds: float) -> None:
        """Note a transfer."""
        megabytes = nbytes / 1e6
        self._weight = FORGET * self._weight + 1
        self._bytes = FORGET * self._bytes + megabytes
        self._seconds = FORGET * self._seconds + seconds
        self._squares = FORGET * self._squares + megabytes * megabytes
        self._products = FORGET * self._products + megabytes * seconds

    def load_seconds(self, nbytes: int, transfers: int = 1) -> float:
        """The seconds that so many transfers of so many bytes in all will take; infinite while nothing is measured."""
        if not self.measured:
            return math.inf
        each, per_megabyte = self._fit()
        return each * transfers + per_megabyte * nbytes / 1e6

    def _fit(self) -> tuple[float, float]:
        """Seconds of a transfer and of a megabyte; neither is negative."""
        spread = self._weight * self._squares - self._bytes * self._bytes
        if spread > 1e-6 * self._weight * self._squares:
            slope = (self._weight * self._products - self._bytes * self._seconds) / spread
            start = (self._seconds - slope * self._bytes) / self._weight
            if slope >= 0 and start >= 0:
                return start, slope
            if slope < 0:
                return self._seconds / self._weight, 0.0
        return 0.0, self._products / self._squares if self._squares else 0.0


def worth_loading(load_seconds: float, recompute_seconds: float) -> bool:
    """Whether stored state should be loaded rather than computed again."""
    return load_seconds < recompute_seconds


def patience(load_seconds: float, recompute_seconds: float) -> float:
    """Seconds after which a load is given up.

    Who waits as long as computing takes, and then computes, never takes more than twice the time of the better choice
    (ski rental, Karlin et al. 1988).
    """
    return max(0.1, 2 * load_seconds, recompute_seconds)
