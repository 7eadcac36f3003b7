"""A thread that does one thing after the other, and a bounded list of what it is to do."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)
MOST_JOBS = 64

Job = Callable[[], None]


class Worker:
    """Runs jobs in order, in a thread that does not keep the process alive: a hanging disk must not.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: deque[Job] = deque()
        self._urgent: deque[Job] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, *, urgent: bool = False) -> bool:
        """Take a job; False if there are too many, or it is closed. Never waits. Urgent ones are done first."""
        jobs = self._urgent if urgent else self._jobs
        with self._changed:
            if not self._open or len(jobs) >= MOST_JOBS:
                return False
            jobs.append(job)
            self._changed.notify_all()
            return True

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs and not self._urgent and not self._busy

    def drain(self, seconds: float) -> bool:
        """Wait until there is nothing to do; False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.idle, seconds)

    def close(self, seconds: float) -> bool:
        """Take no more jobs, do those there are; False if that takes too long, and they are left undone."""
        until = time.monotonic() + seconds
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._thread.join(max(0.0, until - time.monotonic()))
        with self._changed:
            self._jobs.clear()
            self._urgent.clear()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._urgent or self._jobs or not self._open)
                jobs = self._urgent or self._jobs
                if not jobs:
                    return
                job = jobs.popleft()
                self._busy = True
            try:
                job()
            except Exception:
                logger.exception("a transfer failed")
            del job
