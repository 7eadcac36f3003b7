"""Which runs a tier has, found by the pages in them, in order of last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from headrace.memory.tiers.records import StoredRun

Place = tuple[StoredRun, int]  # a run, and the number of a page in it


class RunIndex:
    """A map from pages to runs. Not for two threads at once."""

    def __init__(self) -> None:
        self.runs: OrderedDict[str, StoredRun] = OrderedDict()  # by name, least recently used first
        self._places: dict[bytes, Place] = {}

    def find(self, keys: Iterable[bytes]) -> list[Place | None]:
        """Where pages are."""
        return [self._places.get(key) for key in keys]

    def has(self, key: bytes) -> bool:
        """Whether a page is here."""
        return key in self._places

    def add(self, run: StoredRun) -> None:
        """Take a run, the one used last."""
        self.runs[run.name] = run
        for number, key in enumerate(run.keys):
            self._places.setdefault(key, (run, number))

    def remove(self, name: str) -> StoredRun:
        """Forget a run. Pages that another run has too are not found there until that is added again."""
        run = self.runs.pop(name)
        for key in run.keys:
            place = self._places.get(key)
            if place is not None and place[0] is run:  # else another run was there first
                del self._places[key]
        return run

    def use(self, name: str) -> None:
        """A run was used."""
        if name in self.runs:
            self.runs.move_to_end(name)

    def check(self) -> None:
        """Assert the invariants: whatever is found is there, and every run is found by its pages."""
        for key, (run, number) in self._places.items():
            assert self.runs.get(run.name) is run, "a page is found in a run that is gone"
            assert run.keys[number] == key, "a page is found at a wrong place"
        for run in self.runs.values():
            assert run.keys, "a run has no page"
