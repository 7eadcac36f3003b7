"""A tier that fails again and again is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 3  # in a row, before it rests
FIRST_SECONDS, MOST_SECONDS = 1.0, 60.0


class Rest:
    """Counts failures in a row. After some, each makes the tier rest, for longer and longer; a success ends that.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def resting(self) -> bool:
        """Whether it should not be asked now."""
        return self._clock() < self._until

    def failed(self) -> None:
        """Note a failure."""
        self._failures += 1
        if self._failures >= FAILURES:
            seconds = FIRST_SECONDS * 2.0 ** min(self._failures - FAILURES, 10)
            self._until = self._clock() + min(seconds, MOST_SECONDS)

    def worked(self) -> None:
        """Note a success."""
        self._failures, self._until = 0, 0.0
