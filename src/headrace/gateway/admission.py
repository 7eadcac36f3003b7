"""``Admission``: who may come in. Samples are counted here, by urgency, before anything is sent to the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace.gateway.job import Job

WINDOWS = 2  # times the engine's slots: while some run, as many are there to take their place


@dataclass(frozen=True, slots=True)
class Place:
    """What a request takes of the queue.

    Attributes:
        samples: How many of its samples may be in the engine at once; the others wait at the gateway, where they take
            nobody's place.
        priority: Lower is more urgent.
    """

    samples: int
    priority: int


def place_for(jobs: list[Job], *, slots: int, limit: int) -> Place:
    """The place that jobs need, all with the same ``n``; samples of one job go together, for they share its prompt.

    Args:
        jobs: A request's jobs.
        slots: How many samples the engine runs at once.
        limit: How many may run and wait.
    """
    n = jobs[0].params.n
    window = max(n, min(WINDOWS * slots, limit))
    return Place(min(len(jobs) * n, window), jobs[0].priority)


def may_enter(place: Place, *, ahead: int, held: int, limit: int) -> bool:
    """Whether a request may come in.

    What is less urgent takes no place from who is more so, up to twice the limit in all. A request larger than the
    limit is let in when nothing else is there, or it could never run.

    Args:
        place: What it needs.
        ahead: Samples that are in and at least as urgent.
        held: All samples that are in.
        limit: How many may run and wait.
    """
    return not held or (ahead + place.samples <= limit and held + place.samples <= 2 * limit)


class Admission:
    """The account of those who are in.

    Args:
        max_queue: Samples that may wait beyond those that run.
    """

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._held: Counter[int] = Counter()

    @property
    def held(self) -> int:
        """Samples that are in."""
        return self._held.total()

    def limit(self, slots: int) -> int:
        """How many samples of one urgency may run and wait."""
        return slots + self._max_queue

    def enter(self, jobs: list[Job], slots: int) -> Place | None:
        """Let a request in, whole; None if there is no place."""
        limit = self.limit(slots)
        place = place_for(jobs, slots=slots, limit=limit)
        ahead = sum(samples for priority, samples in self._held.items() if priority <= place.priority)
        if not may_enter(place, ahead=ahead, held=self.held, limit=limit):
            return None
        self._held[place.priority] += place.samples
        return place

    def leave(self, place: Place) -> None:
        """Give a place back."""
        self._held[place.priority] -= place.samples
        self._held += Counter()  # forgets what is empty
